#include "apps/compare/clients/json.h"

#include <cmath>

#include "base/json.h"
#include "tokenizer/tokenizer.h"

namespace edgellm::peers {

std::optional<nlohmann::json> parse_json(std::string_view text) {
  if (auto json = try_parse_json(text)) return json;
  std::string repaired(text);
  size_t at = 0;
  while (true) {
    const size_t bad = find_invalid_utf8(std::string_view(repaired).substr(at));
    if (bad == std::string_view::npos) break;
    at += bad;
    repaired[at] = '?';
  }
  return try_parse_json(repaired);
}

const nlohmann::json* find(const nlohmann::json& object, std::string_view path) {
  const nlohmann::json* at = &object;
  while (true) {
    const size_t slash = path.find('/');
    if (!at->is_object()) return nullptr;
    const auto field = at->find(std::string(path.substr(0, slash)));
    if (field == at->end()) return nullptr;
    at = &*field;
    if (slash == std::string_view::npos) return at;
    path.remove_prefix(slash + 1);
  }
}

std::optional<std::string> text_of(const nlohmann::json& object, std::string_view path) {
  const nlohmann::json* field = find(object, path);
  if (field == nullptr || !field->is_string()) return std::nullopt;
  return field->get<std::string>();
}

std::optional<double> number_of(const nlohmann::json& object, std::string_view path) {
  const nlohmann::json* field = find(object, path);
  if (field == nullptr || !field->is_number()) return std::nullopt;
  return field->get<double>();
}

std::optional<int64_t> count_of(const nlohmann::json& object, std::string_view path) {
  const std::optional<double> number = number_of(object, path);
  if (!number || !(*number >= 0 && *number <= 0x1p53) || *number != std::floor(*number)) {
    return std::nullopt;
  }
  return static_cast<int64_t>(*number);
}

}  // namespace edgellm::peers
