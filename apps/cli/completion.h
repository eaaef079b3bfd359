// Completion scripts for shells, made from the tree of options (option_tree.h). They need nothing
// but their shell: the program is not run while a line is completed.
#pragma once

#include <string>
#include <vector>

#include "apps/cli/option_tree.h"

namespace edgellm {

std::string bash_completion(const CommandInfo& program);
std::string zsh_completion(const CommandInfo& program);
std::string fish_completion(const CommandInfo& program);

// All options of a command, of all groups.
std::vector<OptionInfo> all_options(const CommandInfo& command);

// `text` between single quotes, with what `escape` says in place of a quote within.
std::string single_quoted(const std::string& text, const std::string& escape);

// `text` as one word of bash or zsh.
std::string shell_word(const std::string& text);

}  // namespace edgellm
