// Help as people read it in a terminal: examples first, then usage, then options in groups.
#pragma once

#include <cstddef>
#include <string>

#include "apps/cli/option_tree.h"

namespace edgellm {

// What `edgellm` alone prints.
std::string short_help(const CommandInfo& program);

// What `edgellm [COMMAND] --help` prints, wrapped at `width` columns.
std::string help_text(const CommandInfo& command, size_t width);

// "edgellm run [OPTIONS] MODEL [PROMPT]"
std::string usage_line(const CommandInfo& command);

// "-n, --max-tokens N"
std::string option_heading(const OptionInfo& option);

}  // namespace edgellm
