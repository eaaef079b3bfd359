// How long a model stays loaded after its last request.
#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "base/json.h"

namespace edgellm::serve {

// Empty: until its memory is needed.
using KeepAlive = std::optional<std::chrono::milliseconds>;

// As Ollama has it: "90s", "5m", "1h30m", "300ms", or a number of seconds; any that is negative:
// empty. Throws Error (kUsage); `name` is whose value it is.
KeepAlive parse_keep_alive(const std::string& name, const std::string& text);

// The field keep_alive of a request. Throws Error (kUsage).
KeepAlive read_keep_alive(const Fields& body, const KeepAlive& otherwise);

}  // namespace edgellm::serve
