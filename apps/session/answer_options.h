// How long an answer may be.
#pragma once

#include <string>
#include <vector>

namespace edgellm {

struct AnswerOptions {
  int max_tokens = -1;  // -1: no limit
  bool limit_is_given = false;
  std::vector<std::string> stop;
};

// Throws Error (kUsage) for a number of tokens that is none, a stop text that is empty or not
// UTF-8.
void check_answer(const AnswerOptions& options);
void check_max_tokens(int max_tokens, const std::string& as_given);

}  // namespace edgellm
