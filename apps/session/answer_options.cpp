#include "apps/session/answer_options.h"

#include "apps/session/prompt.h"
#include "base/error.h"

namespace edgellm {

void check_max_tokens(int max_tokens, const std::string& as_given) {
  if (max_tokens >= 1 || max_tokens == -1) return;
  throw Error(ExitCode::kUsage, as_given +
                                    " is not a number of tokens; use 1 or more, or -1 to generate "
                                    "until the model stops or the context is full");
}

void check_answer(const AnswerOptions& options) {
  check_max_tokens(options.max_tokens, "-n " + std::to_string(options.max_tokens));
  for (const std::string& stop : options.stop) {
    if (stop.empty()) throw Error(ExitCode::kUsage, "--stop needs a text that is not empty");
    require_utf8({stop, "--stop"});
  }
}

}  // namespace edgellm
