// What the kernels of the certified head share: head_certified.cu, head_certified_rows.cu and
// head_candidates.cu.
#pragma once

#include <type_traits>

#include "kernels/choice.h"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/device/reduce.cuh"

namespace edgellm::cuda {

// Calls `run` with the type as a constant.
template <class Run>
void with_type(DenseType type, const Run& run) {
  switch (type) {
    case DenseType::kF32:
      return run(std::integral_constant<DenseType, DenseType::kF32>());
    case DenseType::kF16:
      return run(std::integral_constant<DenseType, DenseType::kF16>());
    case DenseType::kBF16:
      return run(std::integral_constant<DenseType, DenseType::kBF16>());
  }
}

__device__ inline bool is_banned(const HeadArgs& args, int id) {
  for (int b = 0; b < args.n_banned; ++b) {
    if (args.banned[b] == id) return true;
  }
  return false;
}

// What the bounds are for: the arg-max of each row of states, or choices by rules. A kernel's `Use`
// says which ids stand apart, as their lower bounds must not speak against others, and where the
// largest lower bounds of the other ids go.
struct ForArgMax {
  static constexpr bool kByRules = false;
};
struct ForChoices {
  static constexpr bool kByRules = true;
  ChooseArgs choose;
  int groups;

  // The marks of the row's sequence; null where it has none.
  __device__ const uint16_t* marks_of(int row) const {
    const int sequence = choose.places.sequence[choose.row_list[row]];
    if (choose.rules[sequence].marks == 0) return nullptr;
    return choose.marks + static_cast<size_t>(sequence) * static_cast<size_t>(choose.vocab);
  }
  __device__ float* lower_of(const Workspace& workspace, int row, int group) const {
    return workspace.group_lower + static_cast<size_t>(row) * static_cast<size_t>(groups) + group;
  }
};

// The tensor cores take a step as two digits: step = 256 * high_digit + low_digit. A row of
// `Workspace::steps` is then the high digits, int8 [pitch], followed by the low ones, uint8
// [pitch].
__device__ inline int8_t high_digit(int step) { return static_cast<int8_t>(step >> 8); }
__device__ inline uint8_t low_digit(int step) { return static_cast<uint8_t>(step & 255); }

}  // namespace edgellm::cuda
