// How long an answer may be: the options of every command that generates text.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace edgellm {

struct AnswerFlags {
  int max_tokens = -1;  // -1: no limit
  std::vector<std::string> stop;
};

// -n and --stop.
void add_answer_options(CLI::App& app, AnswerFlags& flags);

// Throws Error (kUsage) for a number of tokens that is none, a stop text that is empty or not
// UTF-8.
void check_answer_flags(const AnswerFlags& flags);
void check_max_tokens(int max_tokens, const std::string& as_given);

}  // namespace edgellm
