// Oniguruma, the regular-expression engine of Hugging Face's tokenizers, behind RAII.
//
// A Regex is immutable and may be used by any number of threads, each with its own Searcher.
//
// No pattern makes the program hang: patterns have at most kMaxPatternBytes and no part whose cost
// Oniguruma does not count (regex_cost.h), backtracking is counted, and a Searcher has as much time
// as its texts are long.
#pragma once

#include <oniguruma.h>

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace edgellm::tok {

// A half-open range of bytes.
struct ByteRange {
  size_t begin, end;
};

class Regex {
 public:
  enum class Syntax {
    kOniguruma,  // the library's default, as the `onig` crate uses it
    kLiteral,    // the pattern matches itself
  };

  // Published patterns have at most a few hundred bytes. Compiling takes quadratic time.
  static constexpr size_t kMaxPatternBytes = 4096;

  // The memory that searching needs, and the time that it took; for one thread at a time.
  class Searcher {
   public:
    Searcher();

   private:
    friend class Regex;
    struct Free {
      void operator()(OnigRegion* region) const { onig_region_free(region, 1); }
      void operator()(OnigMatchParam* param) const { onig_free_match_param(param); }
    };
    std::unique_ptr<OnigRegion, Free> region_;
    std::unique_ptr<OnigMatchParam, Free> limits_;
    std::chrono::steady_clock::duration spent_{};
    std::chrono::steady_clock::duration allowed_{std::chrono::seconds(1)};
  };

  // `where` begins the message of the Error: kModelFile for a pattern that does not compile,
  // kUnsupported for one that is too long or whose time has no bound.
  Regex(std::string_view pattern, Syntax syntax, const std::string& where);

  // Replaces `matches` by all non-overlapping matches, left to right. An empty match directly after
  // the match before it does not count. Throws Error (kRuntime) where the pattern takes too much.
  void find_all(std::string_view text, Searcher& searcher, std::vector<ByteRange>& matches) const;

 private:
  struct Free {
    void operator()(OnigRegexType* regex) const { onig_free(regex); }
  };
  std::unique_ptr<OnigRegexType, Free> regex_;
};

}  // namespace edgellm::tok
