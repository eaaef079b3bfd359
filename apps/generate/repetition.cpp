#include "apps/generate/repetition.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <set>

namespace edgellm {

bool repeats_itself(std::span<const int32_t> ids) {
  constexpr size_t kWindow = 128;
  constexpr size_t kFewest = 64;
  constexpr size_t kGroup = 4;
  if (ids.size() < kFewest) return false;
  const std::span<const int32_t> last = ids.last(std::min(ids.size(), kWindow));
  const size_t n_groups = last.size() - kGroup + 1;
  std::set<std::array<int32_t, kGroup>> different;
  for (size_t i = 0; i < n_groups; ++i) {
    std::array<int32_t, kGroup> group;
    std::copy_n(last.begin() + static_cast<std::ptrdiff_t>(i), kGroup, group.begin());
    different.insert(group);
  }
  return 2 * different.size() < n_groups;
}

}  // namespace edgellm
