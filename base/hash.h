// xxh3-64, the hash of every section and of the metadata of a `.tmac2` file.
#pragma once

#include <xxhash.h>

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/error.h"

namespace edgellm {

inline uint64_t xxh3(const void* data, size_t bytes) { return XXH3_64bits(data, bytes); }

// The same hash over bytes that arrive in pieces.
class Hasher {
 public:
  Hasher() : state_(XXH3_createState()) {
    require(state_ != nullptr, "xxh3 state");
    XXH3_64bits_reset(state_.get());
  }
  void update(const void* data, size_t bytes) { XXH3_64bits_update(state_.get(), data, bytes); }
  uint64_t digest() const { return XXH3_64bits_digest(state_.get()); }

 private:
  struct Free {
    void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
  };
  std::unique_ptr<XXH3_state_t, Free> state_;
};

}  // namespace edgellm
