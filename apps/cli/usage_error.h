// One line for a command line that CLI11 could not read: what was wrong, what may have been meant,
// where to look.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace edgellm {

// `arguments` are those of main() without the program's name.
std::string usage_message(const CLI::App& root, const CLI::ParseError& error,
                          const std::vector<std::string>& arguments);

}  // namespace edgellm
