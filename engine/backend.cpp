#include "engine/backend.h"

#include <algorithm>

namespace edgellm {

void Backend::decode(int sequence, int32_t id, int position, int n_max,
                     std::span<const int32_t> banned,
                     const std::function<bool(int32_t id)>& on_token) {
  const int32_t row = 0;
  const int n_steps = std::min(n_max, context() - position);
  for (int step = 0; step < n_steps; ++step, ++position) {
    int32_t chosen = -1;
    Outputs outputs;
    outputs.rows = {&row, 1};
    outputs.banned = banned;
    outputs.argmax = {&chosen, 1};
    forward({{&id, 1}, {&sequence, 1}, {&position, 1}}, outputs);
    if (!on_token(chosen) || chosen < 0) return;
    id = chosen;
  }
}

}  // namespace edgellm
