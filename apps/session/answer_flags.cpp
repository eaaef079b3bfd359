#include "apps/session/answer_flags.h"

#include "apps/session/prompt.h"
#include "base/error.h"

namespace edgellm {

void add_answer_options(CLI::App& app, AnswerFlags& flags) {
  app.add_option("-n,--max-tokens", flags.max_tokens,
                 "Tokens to generate at most; -1: until the model stops or the context is full "
                 "[-1]")
      ->option_text("N");
  app.add_option("--stop", flags.stop, "End before this text; may be given several times")
      ->allow_extra_args(false)
      ->option_text("TEXT");
}

void check_max_tokens(int max_tokens, const std::string& as_given) {
  if (max_tokens >= 1 || max_tokens == -1) return;
  throw Error(ExitCode::kUsage, as_given +
                                    " is not a number of tokens; use 1 or more, or -1 to go on "
                                    "until the model stops or the context is full");
}

void check_answer_flags(const AnswerFlags& flags) {
  check_max_tokens(flags.max_tokens, "-n " + std::to_string(flags.max_tokens));
  for (const std::string& stop : flags.stop) {
    if (stop.empty()) throw Error(ExitCode::kUsage, "--stop needs a text that is not empty");
    require_utf8({stop, "--stop"});
  }
}

}  // namespace edgellm
