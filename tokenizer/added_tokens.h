// Tokens that are cut out of the text before anything else looks at it ("<|eot_id|>").
//
// The matching is that of Hugging Face's tokenizers: leftmost, of those the longest, without
// overlap; single_word, lstrip and rstrip are applied to what was found.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace edgellm::tok {

struct AddedToken {
  std::string content;
  int32_t id;
  bool single_word;  // only where no word character is directly before or behind it
  bool lstrip;       // swallows the white space before it
  bool rstrip;       // swallows the white space behind it
  bool normalized;   // looked for in the normalised text, otherwise in the text as it came
  bool special;      // left out of decoded text
};

// A stretch of text: an added token, or what is between them.
struct Section {
  static constexpr int32_t kText = -1;
  int32_t id;  // kText, or the token's
  std::string_view text;
};

class AddedTokenMatcher {
 public:
  // A bound on the work per byte of text, for any file. Real ones stay below a hundred.
  static constexpr size_t kMaxTokenBytes = 1024;

  AddedTokenMatcher() = default;
  // Contents must differ, and be of 1 to kMaxTokenBytes bytes.
  explicit AddedTokenMatcher(std::vector<AddedToken> tokens);

  // Whether a special token that was found at `begin` counts; if not, it is text.
  using Counts = std::function<bool(const AddedToken& token, size_t begin)>;

  // Replaces `sections`; they cover all of `text` except what lstrip and rstrip swallow. All tokens
  // count where `counts` is empty.
  void split(std::string_view text, std::vector<Section>& sections,
             const Counts& counts = {}) const;

 private:
  const AddedToken* longest_at(std::string_view text, size_t offset) const;

  std::vector<AddedToken> tokens_;  // sorted by content, as bytes
  // Those that begin with byte b: [first_[b], first_[b + 1]).
  std::array<uint32_t, 257> first_{};
};

}  // namespace edgellm::tok
