// Where a decoder is in a list of tokens that comes bit by bit. Made empty; belongs to one list.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace edgellm {

struct DecodeState {
  struct Step {
    std::string held;     // bytes that wait for what comes next
    size_t n_tokens = 0;  // that went through
    size_t n_cut = 0;     // characters cut off the front
    bool at_front = true;
  };
  std::vector<Step> steps;  // one for each step of the decoder
};

}  // namespace edgellm
