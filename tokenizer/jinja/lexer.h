// Cuts a chat template into text and the tokens of its tags, with Jinja's rules for white space as
// transformers sets them: trim_blocks (no newline behind a block tag) and lstrip_blocks (no spaces
// before a block tag that begins its line).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace edgellm::jinja {

struct Token {
  enum class Kind {
    kText,         // outside of tags; text
    kBlockBegin,   // {%
    kBlockEnd,     // %}
    kOutputBegin,  // {{
    kOutputEnd,    // }}
    kName,         // text
    kString,       // text, escapes resolved
    kInteger,      // integer
    kFloat,        // number
    kOperator,     // text
    kEnd,          // of the template
  };
  Kind kind;
  int line;
  std::string text;
  int64_t integer = 0;
  double number = 0;
};

// `where` begins the message of an Error (kModelFile) for what is no template. The last token is
// kEnd. `source` is valid UTF-8.
std::vector<Token> tokenize_template(std::string_view source, const std::string& where);

// Throws the Error for a fault in a line: "WHERE, line 3: WHAT". `what` may hold text of the
// template or of a message: control characters become spaces, and a long one is cut.
[[noreturn]] void fail(ExitCode code, const std::string& where, int line, const std::string& what);
// The same for what is no template, or goes wrong while it runs (kModelFile).
[[noreturn]] void fail_broken(const std::string& where, int line, const std::string& what);
// The same for what is sound Jinja but beyond this interpreter (kUnsupported).
[[noreturn]] void fail_unsupported(const std::string& where, int line, const std::string& what);

}  // namespace edgellm::jinja
