// Values of a binary file one after another, none of them beyond its end.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "base/files.h"

namespace edgellm::model_io {

class FileCursor {
 public:
  FileCursor(const InputFile& file, uint64_t at) : file_(file), at_(at) {}

  uint64_t at() const { return at_; }
  bool at_end() const { return at_ == file_.size(); }

  // `what` is for the message: "the flag of tensor ...".
  template <typename T>
  T read(const std::string& what) {
    T value;
    file_.read(skip(sizeof(T), what), &value, sizeof(T));
    return value;
  }
  std::string text(uint32_t bytes, const std::string& what) {
    // Longer than any name of Hugging Face.
    constexpr uint32_t kMaxNameBytes = 1000;
    if (bytes == 0 || bytes > kMaxNameBytes) {
      fail_in_file(file_.path(), what + " is " + std::to_string(bytes) +
                                     " bytes long, expected 1 to " + std::to_string(kMaxNameBytes));
    }
    std::string result(bytes, '\0');
    file_.read(skip(bytes, what), result.data(), bytes);
    return result;
  }
  // Moves behind `bytes` bytes and returns where they begin.
  uint64_t skip(uint64_t bytes, const std::string& what) {
    if (bytes > file_.size() - at_) {
      fail_file(file_.path(), "is cut off or damaged: " + what + " takes " + std::to_string(bytes) +
                                  " bytes from byte " + std::to_string(at_) + ", the file has " +
                                  std::to_string(file_.size()));
    }
    return std::exchange(at_, at_ + bytes);
  }

 private:
  const InputFile& file_;
  uint64_t at_;
};

}  // namespace edgellm::model_io
