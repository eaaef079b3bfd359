// The backend of a batch: how many sequences share how much KV cache.
#pragma once

#include <memory>

#include "apps/batch/flags.h"
#include "engine/backend.h"

namespace edgellm {

// Prints a note about the size of the cache. Throws Error (kUsage, kDevice).
std::unique_ptr<Backend> make_batch_backend(const ModelFile& model, const BatchFlags& flags,
                                            Device device);

}  // namespace edgellm
