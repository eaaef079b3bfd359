#include "tokenizer/regex.h"

#include <array>
#include <mutex>

#include "base/error.h"
#include "tokenizer/json_node.h"
#include "tokenizer/unicode.h"

namespace edgellm::tok {

namespace {

// Backtracking that one match may do, as Oniguruma counts it: its own default of ten million, and
// more for long texts, since `\s*[\r\n]+` alone backtracks once per space of a run. A pattern that
// needs more is exponential, and ends in an error instead of a hang.
constexpr unsigned long kRetries = 10'000'000;
constexpr unsigned long kRetriesPerByte = 64;

// Backtrack points kept at once, about 50 bytes each: one per character of the longest run.
constexpr unsigned int kMaxStackEntries = 1u << 25;

const OnigUChar* to_onig(const char* text) { return reinterpret_cast<const OnigUChar*>(text); }

std::string onig_message(int code, OnigErrorInfo* info) {
  std::array<OnigUChar, ONIG_MAX_ERROR_MESSAGE_LEN> buffer{};
  const int length = onig_error_code_to_str(buffer.data(), code, info);
  return std::string(buffer.begin(), buffer.begin() + length);
}

void initialize_once() {
  static std::once_flag once;
  std::call_once(once, [] {
    OnigEncoding encodings[] = {ONIG_ENCODING_UTF8};
    require(onig_initialize(encodings, 1) == ONIG_NORMAL, "Oniguruma does not start");
  });
}

}  // namespace

Regex::Searcher::Searcher() : region_(onig_region_new()), limits_(onig_new_match_param()) {
  if (region_ == nullptr || limits_ == nullptr) throw std::bad_alloc();
  onig_initialize_match_param(limits_.get());
  onig_set_match_stack_limit_size_of_match_param(limits_.get(), kMaxStackEntries);
}

Regex::Regex(std::string_view pattern, Syntax syntax, const std::string& where) {
  initialize_once();
  OnigRegexType* regex = nullptr;
  OnigErrorInfo info{};
  const int code =
      onig_new(&regex, to_onig(pattern.data()), to_onig(pattern.data() + pattern.size()),
               ONIG_OPTION_NONE, ONIG_ENCODING_UTF8,
               syntax == Syntax::kLiteral ? ONIG_SYNTAX_ASIS : ONIG_SYNTAX_DEFAULT, &info);
  regex_.reset(regex);
  if (code != ONIG_NORMAL) {
    throw Error(ExitCode::kModelFile, where + ": not a valid regular expression: " +
                                          in_quotes(onig_message(code, &info)));
  }
}

void Regex::find_all(std::string_view text, Searcher& searcher,
                     std::vector<ByteRange>& matches) const {
  matches.clear();
  const unsigned long retries = kRetries + kRetriesPerByte * text.size();
  onig_set_retry_limit_in_match_of_match_param(searcher.limits_.get(), retries);
  onig_set_retry_limit_in_search_of_match_param(searcher.limits_.get(), retries);

  const OnigUChar* begin = to_onig(text.data());
  const OnigUChar* end = begin + text.size();
  size_t from = 0;
  while (from <= text.size()) {
    const int found =
        onig_search_with_param(regex_.get(), begin, end, begin + from, end, searcher.region_.get(),
                               ONIG_OPTION_NONE, searcher.limits_.get());
    if (found == ONIG_MISMATCH) return;
    if (found < 0) {
      throw Error(ExitCode::kRuntime, "the tokenizer's regular expression gave up on " +
                                          std::to_string(text.size()) + " bytes of text (" +
                                          onig_message(found, nullptr) +
                                          "); give the text in smaller parts");
    }
    const ByteRange match{static_cast<size_t>(searcher.region_->beg[0]),
                          static_cast<size_t>(searcher.region_->end[0])};
    if (match.begin == match.end && !matches.empty() && matches.back().end == match.end) {
      // Nothing new here: search on behind the next character.
      from += from < text.size() ? read_utf8(text, from).n_bytes : 1;
      continue;
    }
    matches.push_back(match);
    from = match.end;
  }
}

}  // namespace edgellm::tok
