#include "tokenizer/replacement.h"

#include <algorithm>
#include <cstdint>

#include "base/error.h"
#include "tokenizer/unicode.h"

namespace edgellm::tok {

Replacement::Replacement(const JsonNode& node)
    : content_(node.at("content").string()), where_(node.path()) {
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

void Replacement::apply(std::string_view text, size_t limit, std::string& out) const {
  out.clear();
  size_t end = 0;  // of what is in `out`
  const auto replace = [&](size_t begin, size_t n_bytes) {
    out.append(text, end, begin - end);
    out += content_;
    check_growth(out.size(), limit, where_);
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

size_t growth_limit(size_t bytes, size_t slack) {
  constexpr size_t kFactor = 32;
  constexpr size_t kMax = INT32_MAX;  // Oniguruma counts in int
  return std::min(kMax, slack + kFactor * bytes);
}

void check_growth(size_t bytes, size_t limit, const std::string& where) {
  if (bytes <= limit) return;
  throw Error(ExitCode::kUnsupported, where + ": makes a text or token longer than " +
                                          std::to_string(limit) +
                                          " bytes; supported: about 32 times its length");
}

void check_steps(size_t n_steps, const JsonNode& node) {
  if (n_steps <= kMaxSteps) return;
  node.refuse("step " + std::to_string(n_steps), std::to_string(kMaxSteps) + " steps");
}

}  // namespace edgellm::tok
