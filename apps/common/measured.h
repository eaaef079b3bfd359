// A measured value, or the reason why there is none. A report neither leaves a metric out nor fills
// it with a guess: a missing one says why.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <variant>

#include "base/error.h"

namespace edgellm {

// Why something was not measured, in words for people: "no NVIDIA driver is installed".
struct NotAvailable {
  std::string reason;
};

template <class T>
class Measured {
 public:
  Measured(T value) : state_(std::move(value)) {}
  Measured(NotAvailable missing) : state_(std::move(missing)) {
    require(!reason().empty(), "a missing measurement has a reason");
  }
  Measured() : Measured(NotAvailable{"not measured"}) {}

  bool has_value() const { return std::holds_alternative<T>(state_); }
  explicit operator bool() const { return has_value(); }
  const T& operator*() const { return std::get<T>(state_); }
  const T* operator->() const { return &std::get<T>(state_); }
  const std::string& reason() const { return std::get<NotAvailable>(state_).reason; }

  // The reason, for a value of another type.
  NotAvailable missing() const { return std::get<NotAvailable>(state_); }

  template <class F>
  auto map(F&& function) const -> Measured<decltype(function(std::declval<const T&>()))> {
    if (!has_value()) return missing();
    return function(**this);
  }

 private:
  std::variant<T, NotAvailable> state_;
};

// object[name] = the value, or null with the reason at object["not_available"][name].
template <class T>
void put(nlohmann::ordered_json& object, const std::string& name, const Measured<T>& measured) {
  if (measured) {
    object[name] = *measured;
  } else {
    object[name] = nullptr;
    object["not_available"][name] = measured.reason();
  }
}

}  // namespace edgellm
