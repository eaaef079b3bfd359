// Oniguruma, the regular-expression engine of Hugging Face's tokenizers, behind RAII.
//
// A Regex is immutable and may be used by any number of threads, each with its own Searcher.
#pragma once

#include <oniguruma.h>

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

  // The memory that searching needs; for one thread at a time.
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
  };

  // `where` begins the message of the Error (kModelFile) for a pattern that does not compile.
  Regex(std::string_view pattern, Syntax syntax, const std::string& where);

  // Replaces `matches` by all non-overlapping matches, left to right. An empty match directly after
  // the match before it does not count.
  void find_all(std::string_view text, Searcher& searcher, std::vector<ByteRange>& matches) const;

 private:
  struct Free {
    void operator()(OnigRegexType* regex) const { onig_free(regex); }
  };
  std::unique_ptr<OnigRegexType, Free> regex_;
};

}  // namespace edgellm::tok
