#include "tokenizer/regex.h"

#include <algorithm>
#include <array>
#include <mutex>

#include "base/error.h"
#include "tokenizer/json_node.h"
#include "tokenizer/regex_cost.h"
#include "tokenizer/unicode.h"

namespace edgellm::tok {

namespace {

// Backtracking that one match may do, as Oniguruma counts it: its own default of ten million, and
// more for long texts, since `\s*[\r\n]+` alone backtracks once per space of a run. A pattern that
// needs more is exponential, and ends in an error instead of a hang.
constexpr unsigned long kRetries = 10'000'000;
constexpr unsigned long kRetriesPerByte = 64;

// What a step of that backtracking costs is unknown: in `a*a*+b` each reads the rest of the text.
// So a match may do this much at first, and four times as much each time that it gave up and time
// is left.
constexpr unsigned long kFirstRetries = 512;

// A match from every place may read all of the text behind it (`a+b` on many a's). So longer texts
// are matched place by place, with a look at the clock between them. onig_search() does not stop in
// between, and where it is to search a part only, it does not look behind that part either.
constexpr size_t kMaxSearchedBytes = 1024;

// Of one Searcher, besides its first second: fifty times what a real pattern takes.
constexpr std::chrono::microseconds kTimePerByte{5};

// Backtrack points kept at once, about 50 bytes each: one per character of the longest run.
constexpr unsigned int kMaxStackEntries = 1u << 25;

const OnigUChar* to_onig(const char* text) { return reinterpret_cast<const OnigUChar*>(text); }

std::string onig_message(int code, OnigErrorInfo* info) {
  std::array<OnigUChar, ONIG_MAX_ERROR_MESSAGE_LEN> buffer{};
  const int length = onig_error_code_to_str(buffer.data(), code, info);
  return std::string(buffer.begin(), buffer.begin() + length);
}

using Clock = std::chrono::steady_clock;

// \\G, where the search began: not the same place by place.
bool has_search_anchor(std::string_view pattern) {
  for (size_t i = 0; i + 1 < pattern.size(); ++i) {
    if (pattern[i] == '\\' && pattern[++i] == 'G') return true;
  }
  return false;
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
  if (pattern.size() > kMaxPatternBytes) {
    throw Error(ExitCode::kUnsupported, where + ": a pattern of " + std::to_string(pattern.size()) +
                                            " bytes is not supported; supported: up to " +
                                            std::to_string(kMaxPatternBytes) + " bytes");
  }
  if (syntax == Syntax::kOniguruma && has_search_anchor(pattern)) {
    throw Error(ExitCode::kUnsupported, where + ": \\G in a pattern is not supported");
  }
  const std::string_view part =
      syntax == Syntax::kOniguruma ? unbounded_part(pattern) : std::string_view();
  if (!part.empty()) {
    throw Error(ExitCode::kUnsupported,
                where + ": " + std::string(part) +
                    " in a pattern is not supported, since the time that it takes has no bound");
  }
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
  const unsigned long most_retries = kRetries + kRetriesPerByte * text.size();
  const auto give_up = [&](const std::string& why) {
    throw Error(ExitCode::kRuntime, "the tokenizer's regular expression gave up on " +
                                        std::to_string(text.size()) + " bytes of text (" + why +
                                        "); give the text in smaller parts");
  };
  searcher.allowed_ += kTimePerByte * text.size();
  const auto start = Clock::now();
  const auto check_time = [&] {
    if (searcher.spent_ + (Clock::now() - start) > searcher.allowed_) give_up("time limit over");
  };

  const OnigUChar* begin = to_onig(text.data());
  const OnigUChar* end = begin + text.size();
  // `attempt` is one call of Oniguruma.
  const auto with_patience = [&](const auto& attempt) {
    for (unsigned long retries = kFirstRetries;; retries = std::min(4 * retries, most_retries)) {
      onig_set_retry_limit_in_match_of_match_param(searcher.limits_.get(), retries);
      onig_set_retry_limit_in_search_of_match_param(searcher.limits_.get(), retries);
      const int found = attempt();
      check_time();
      const bool gave_up =
          found == ONIGERR_RETRY_LIMIT_IN_MATCH_OVER || found == ONIGERR_RETRY_LIMIT_IN_SEARCH_OVER;
      if (!gave_up || retries == most_retries) return found;
    }
  };

  size_t from = 0;
  while (from <= text.size()) {
    int found = ONIG_MISMATCH;
    if (text.size() <= kMaxSearchedBytes) {
      found = with_patience([&] {
        return onig_search_with_param(regex_.get(), begin, end, begin + from, end,
                                      searcher.region_.get(), ONIG_OPTION_NONE,
                                      searcher.limits_.get());
      });
    }
    for (size_t at = from; text.size() > kMaxSearchedBytes && at <= text.size();
         at += at < text.size() ? read_utf8(text, at).n_bytes : 1) {
      found = with_patience([&] {
        return onig_match_with_param(regex_.get(), begin, end, begin + at, searcher.region_.get(),
                                     ONIG_OPTION_NONE, searcher.limits_.get());
      });
      if (found != ONIG_MISMATCH) break;
    }
    if (found == ONIG_MISMATCH) break;
    if (found < 0) give_up(onig_message(found, nullptr));
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
  searcher.spent_ += Clock::now() - start;
}

}  // namespace edgellm::tok
