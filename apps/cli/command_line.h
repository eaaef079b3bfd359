// From the words of a command line to the values of a command's options. Every message about a
// wrong line is made here.
#pragma once

#include <span>
#include <string>

#include "apps/cli/options.h"

namespace edgellm {

// What one command's words ask for.
enum class Asked { kRun, kHelp };

// Hands every option of `command` what `words` (those behind the command's name) give it. Nothing
// is taken where help is asked for. Throws Error (kUsage): what was wrong, what was expected, what
// to type. `usage` is the command's usage line, `full_name` "edgellm run".
//
// - A long name may have its value behind `=`, and `_` in place of `-`; a short one may have it
//   attached (-n5).
// - Of an option that takes one value the last one given counts.
// - What stands behind `--` is no option.
Asked read_words(const Command& command, std::span<const std::string> words,
                 const std::string& full_name, const std::string& usage);

}  // namespace edgellm
