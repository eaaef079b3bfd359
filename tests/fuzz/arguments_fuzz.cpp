// The command line: every command's options. Parsed only; no command runs.
//
// An input is the arguments, each with a zero byte behind it.
#include "apps/commands.h"
#include "tests/fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace edgellm;
  Program program("", "");
  add_commands(program);
  fuzz::Input input(data, size);
  std::vector<std::string> arguments;
  while (!input.at_end()) arguments.emplace_back(input.text());
  // A complaint may quote an argument of several lines: main writes it as one (print_error).
  std::string complaint = "none";
  try {
    program.parse(arguments);
  } catch (const Error& error) {
    complaint = error.what();
  }
  if (complaint.empty()) throw std::logic_error("a complaint without a message");
  return 0;
}
