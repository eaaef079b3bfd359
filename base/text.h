// Text for error messages and for the metadata: printable names, hexadecimal hashes, counts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace edgellm {

// Names come from files that nobody vouches for: control characters and bytes above ASCII become
// \xNN and long names are cut, so that an error stays one harmless line.
std::string printable(std::string_view text, size_t limit = 160);

// A path as the user typed it: as printable(), but UTF-8 bytes stay and nothing is cut.
std::string printable_path(std::string_view path);

std::string hex64(uint64_t value);  // 16 lower-case digits
std::optional<uint64_t> parse_hex64(std::string_view text);

// The number with the shortest decimal that is this float again: 1e-05, not 9.999999747378752e-06.
double shortest_decimal(float value);

std::string shape_text(const std::vector<int64_t>& shape);  // "[2560, 640]"
std::string join(const std::vector<std::string>& items, std::string_view separator);

// A to Z as a to z.
std::string lower_ascii(std::string text);

bool is_utf8(std::string_view text);

// Of UTF-8.
size_t count_characters(std::string_view text);

}  // namespace edgellm
