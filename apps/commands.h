// The subcommands. Each add_* function registers one with its options and returns what runs it; the
// flags live in the returned function. To add a command: a file with its add_* function, a line
// here and one in main.cpp. option_tree.h says how an option's value is described.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>

namespace edgellm {

struct Command {
  CLI::App* app;
  std::function<int()> run;  // returns the exit code
};

Command add_run(CLI::App& root);
Command add_chat(CLI::App& root);
Command add_batch(CLI::App& root);
Command add_convert(CLI::App& root);
Command add_info(CLI::App& root);
Command add_verify(CLI::App& root);
Command add_tokenize(CLI::App& root);
Command add_perplexity(CLI::App& root);
Command add_logits(CLI::App& root);
Command add_synth(CLI::App& root);
Command add_bench(CLI::App& root);
Command add_compare(CLI::App& root);
Command add_devices(CLI::App& root);
Command add_completion(CLI::App& root);
Command add_help(CLI::App& root);

}  // namespace edgellm
