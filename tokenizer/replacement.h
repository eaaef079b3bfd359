// "Replace" of a tokenizer.json, which is a normalizer and a decoder: every match of a pattern, a
// literal string or a regular expression, becomes a fixed text.
#pragma once

#include <cstdint>
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

  // Replaces `out`. Throws Error (kUsage) if it would become longer than kMaxBytes.
  void apply(std::string_view text, std::string& out) const;

  // The pattern is a literal string of one character.
  bool is_of_one_character() const;

 private:
  std::string literal_;         // unless empty
  std::optional<Regex> regex_;  // otherwise
  std::string content_;
};

// The longest text that a normalizer may make: Oniguruma counts in int.
inline constexpr size_t kMaxNormalizedBytes = INT32_MAX;

// Throws Error (kUsage) for a text that became longer than that.
void check_normalized_size(size_t bytes);

}  // namespace edgellm::tok
