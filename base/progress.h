// How long work reports its progress.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

namespace edgellm {

// `what` names the step ("reading layer 3"); done and total are bytes of the whole job.
// May be empty: callers test it before use.
using Progress = std::function<void(std::string_view what, uint64_t done, uint64_t total)>;

}  // namespace edgellm
