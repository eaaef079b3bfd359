// Paragraphs as people read them; numbers are in base/number_format.h.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "base/number_format.h"

namespace edgellm {

// The text in lines of at most `width` columns (a longer word stands alone), each but the first
// indented, each ended by a newline. A byte counts as a column: our texts are ASCII.
std::string wrapped(std::string_view text, size_t width, size_t indent);

// "  heading   text", the text wrapped in a column of its own that begins at `column`; below the
// heading where that is too long.
std::string definition(std::string_view heading, std::string_view text, size_t column,
                       size_t width);

}  // namespace edgellm
