// Tables of builtins by name.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>

namespace edgellm::jinja {

template <class Table>
auto find_in(const Table& table, std::string_view name) {
  return std::find_if(table.begin(), table.end(),
                      [&](const auto& entry) { return entry.first == name; });
}

template <class Table>
std::string names_in(const Table& table) {
  std::string names;
  for (const auto& [name, unused] : table) {
    names += (names.empty() ? "" : ", ") + std::string(name);
  }
  return names;
}

}  // namespace edgellm::jinja
