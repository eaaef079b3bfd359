// The command line: every command's options. Parsed only; no command runs.
//
// An input is the arguments, each with a zero byte behind it.
#include <algorithm>

#include "apps/commands.h"
#include "tests/fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace edgellm;
  CLI::App root;
  root.require_subcommand(0, 1);
  std::vector<Command> commands;  // own what the options are written to
  for (const auto add : {add_run, add_chat, add_convert, add_info, add_verify, add_tokenize,
                         add_perplexity, add_logits, add_synth, add_devices, add_batch, add_bench,
                         add_compare, add_completion, add_help}) {
    commands.push_back(add(root));
  }
  fuzz::Input input(data, size);
  std::vector<std::string> arguments;
  while (!input.at_end()) arguments.emplace_back(input.text());
  std::reverse(arguments.begin(), arguments.end());  // CLI11 takes them from the back
  // A complaint may quote an argument of several lines: main writes it as one (print_note).
  std::string complaint = "none";
  try {
    root.parse(arguments);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() != 0) complaint = error.what();
  } catch (const Error& error) {
    complaint = error.what();
  }
  if (complaint.empty()) throw std::logic_error("a complaint without a message");
  return 0;
}
