// JSON of servers that nobody vouches for, parsed as strictly as files are (base/json.h). Unlike in
// a file, a field that is missing or of another type is no fault: it is no value.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace edgellm::peers {

// Empty where `text` is not JSON. Bytes that are not UTF-8 are read as question marks: a server may
// cut a character in two.
std::optional<nlohmann::json> parse_json(std::string_view text);

// The field at the end of a path of names separated by "/"; null where there is none.
const nlohmann::json* find(const nlohmann::json& object, std::string_view path);

std::optional<std::string> text_of(const nlohmann::json& object, std::string_view path);
std::optional<double> number_of(const nlohmann::json& object, std::string_view path);
// A number of 0 to 2^53 without a fraction.
std::optional<int64_t> count_of(const nlohmann::json& object, std::string_view path);

}  // namespace edgellm::peers
