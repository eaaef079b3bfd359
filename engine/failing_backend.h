// A fault on demand: a device that fails after some passes, as one does whose driver or hardware
// gives up. For tests, and for drills with EDGELLM_FAIL_DEVICE (docs/batch.md).
#pragma once

#include <cstdint>
#include <memory>

#include "engine/backend.h"

namespace edgellm {

// Runs `n_passes` passes as `backend` does, and throws Error (kDevice) from every later one. A step
// of Backend::decode_rows() is a pass.
std::unique_ptr<Backend> make_failing_backend(std::unique_ptr<Backend> backend, int64_t n_passes);

}  // namespace edgellm
