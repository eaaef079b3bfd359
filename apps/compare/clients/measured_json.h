// Fields of a server's answer as measurements: what is not there has the reason that it is not.
#pragma once

#include <string>
#include <string_view>

#include "apps/common/measured.h"
#include "apps/compare/clients/json.h"

namespace edgellm::peers {

template <class T>
Measured<T> measured(const std::optional<T>& value, const std::string& reason) {
  if (!value) return NotAvailable{reason};
  return *value;
}

inline Measured<uint64_t> measured_bytes(const nlohmann::json& object, std::string_view path,
                                         const std::string& reason) {
  const std::optional<int64_t> value = count_of(object, path);
  if (!value) return NotAvailable{reason};
  return static_cast<uint64_t>(*value);
}

}  // namespace edgellm::peers
