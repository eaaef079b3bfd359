// "Replace" of a tokenizer.json, which is a normalizer and a decoder: every match of a pattern, a
// literal string or a regular expression, becomes a fixed text.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/json_node.h"
#include "tokenizer/regex.h"

namespace edgellm::tok {

class Replacement {
 public:
  // Throws Error: kModelFile for what is broken, kUnsupported for an empty literal pattern.
  explicit Replacement(const JsonNode& node);

  // Replaces `out`. Throws Error (kUnsupported) if it would become longer than `limit`.
  void apply(std::string_view text, size_t limit, std::string& out) const;

  // The pattern is a literal string of one character.
  bool is_of_one_character() const;

 private:
  std::string literal_;         // unless empty
  std::optional<Regex> regex_;  // otherwise
  std::string content_;
  std::string where_;  // in the file
};

// What the steps of a normalizer or decoder may make of `bytes` bytes: real ones of NFKD make
// eleven times as much. `slack` comes on top.
size_t growth_limit(size_t bytes, size_t slack);

// Throws Error (kUnsupported), beginning with `where`, if a text became longer than that.
void check_growth(size_t bytes, size_t limit, const std::string& where);

// Real files have up to five steps; a bound on the work for any file.
inline constexpr size_t kMaxSteps = 32;

// Throws Error (kUnsupported) for one step more than that.
void check_steps(size_t n_steps, const JsonNode& node);

}  // namespace edgellm::tok
