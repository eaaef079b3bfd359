// How far a download has come and how long it will take, as text.
#pragma once

#include <cstdint>
#include <deque>
#include <string>

#include "apps/hub/download.h"

namespace edgellm {

class TransferProgress {
 public:
  // "512.0 MB of 1.2 GB, 45.1 MB/s, 0:15 left, model.safetensors and 2 more". Speed and time are of
  // the last seconds; left out in the first.
  std::string text(const hub::DownloadState& state, int64_t at_ns);

 private:
  struct Sample {
    int64_t at_ns;
    uint64_t fetched;
  };
  std::deque<Sample> samples_;
};

// "0:07", "12:34", "1:02:03".
std::string clock_text(uint64_t seconds);

}  // namespace edgellm
