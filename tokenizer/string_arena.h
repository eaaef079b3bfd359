// Many short strings in few allocations. Views stay valid while the arena lives, also when it is
// moved.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <string_view>
#include <vector>

namespace edgellm::tok {

class StringArena {
 public:
  std::string_view add(std::string_view text) {
    if (text.size() > n_free_) {
      n_free_ = std::max(kBlockBytes, text.size());
      blocks_.push_back(std::make_unique_for_overwrite<char[]>(n_free_));
      next_ = blocks_.back().get();
    }
    if (text.empty()) return {};
    char* const begin = next_;
    std::memcpy(begin, text.data(), text.size());
    next_ += text.size();
    n_free_ -= text.size();
    return {begin, text.size()};
  }

 private:
  static constexpr size_t kBlockBytes = 256 * 1024;  // LLaMA-3's vocabulary takes four

  std::vector<std::unique_ptr<char[]>> blocks_;
  char* next_ = nullptr;
  size_t n_free_ = 0;
};

}  // namespace edgellm::tok
