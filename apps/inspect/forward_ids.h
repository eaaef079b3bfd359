// Runs known ids through a model, pass by pass, for commands that look at logits and hidden states.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "engine/backend.h"

namespace edgellm {

enum class WantLogits { kNone, kLast, kAll };

struct ForwardWants {
  WantLogits logits = WantLogits::kNone;
  size_t logits_from = 0;  // kAll: of the ids from this place on
  bool hidden = false;
};

// What one pass gave. Valid during the call only.
struct ForwardPass {
  int first = 0;  // position of the first id of the pass
  int rows = 0;
  std::span<const float> logits;  // [rows, or those of them that were wanted; vocab]
  std::span<const float> hidden;  // [layers + 1, rows, dim] or empty
};

// Begins a new sequence. `ids` must fit the backend's context.
void forward_ids(Backend& backend, std::span<const int32_t> ids, const ForwardWants& wants,
                 const std::function<void(const ForwardPass&)>& on_pass);

}  // namespace edgellm
