#include "tokenizer/replacement.h"

#include "base/error.h"
#include "tokenizer/unicode.h"

namespace edgellm::tok {

Replacement::Replacement(const JsonNode& node) : content_(node.at("content").string()) {
  const JsonNode pattern = node.at("pattern");
  if (const JsonNode regex = pattern.find("Regex"); !regex.is_null()) {
    regex_.emplace(regex.string(), Regex::Syntax::kOniguruma, regex.path());
    return;
  }
  const JsonNode literal = pattern.at("String");
  literal_ = literal.string();
  if (literal_.empty()) literal.refuse("an empty pattern", "a string of at least one character");
}

bool Replacement::is_of_one_character() const {
  return !literal_.empty() && read_utf8(literal_, 0).n_bytes == literal_.size();
}

void Replacement::apply(std::string_view text, std::string& out) const {
  out.clear();
  size_t end = 0;  // of what is in `out`
  const auto replace = [&](size_t begin, size_t n_bytes) {
    out.append(text, end, begin - end);
    out += content_;
    check_normalized_size(out.size());
    end = begin + n_bytes;
  };
  if (regex_) {
    Regex::Searcher searcher;
    std::vector<ByteRange> matches;
    if (!text.empty()) regex_->find_all(text, searcher, matches);
    for (const ByteRange& match : matches) replace(match.begin, match.end - match.begin);
  } else {
    for (size_t at = text.find(literal_); at != std::string_view::npos;
         at = text.find(literal_, end)) {
      replace(at, literal_.size());
    }
  }
  out.append(text, end);
}

void check_normalized_size(size_t bytes) {
  if (bytes <= kMaxNormalizedBytes) return;
  throw Error(ExitCode::kUsage, "the tokenizer's normalizer makes the text longer than " +
                                    std::to_string(kMaxNormalizedBytes) +
                                    " bytes; give it in parts");
}

}  // namespace edgellm::tok
