// Manual pages in the roff language of man(7), made from the tree of options.
#pragma once

#include <string>

#include "apps/cli/option_tree.h"

namespace edgellm {

// edgellm.1 where `command` is the program itself, else edgellm-COMMAND.1.
std::string man_page(const CommandInfo& command, const CommandInfo& program);

// Every page, edgellm.1 and edgellm-COMMAND.1, into a folder that exists.
void write_man_pages(const CommandInfo& program, const std::string& folder);

}  // namespace edgellm
