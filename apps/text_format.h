// Numbers and paragraphs as people read them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace edgellm {

std::string fixed(double value, int decimals);

// "7.1 MB": decimal units, as disks are sold and memory bandwidths are stated.
std::string human_bytes(uint64_t bytes);

// "17.3 M", "2.4 B".
std::string human_count(uint64_t count);

// The text in lines of at most `width` columns (a longer word stands alone), each but the first
// indented, each ended by a newline. A byte counts as a column: our texts are ASCII.
std::string wrapped(std::string_view text, size_t width, size_t indent);

// "  heading   text", the text wrapped in a column of its own that begins at `column`; below the
// heading where that is too long.
std::string definition(std::string_view heading, std::string_view text, size_t column,
                       size_t width);

}  // namespace edgellm
