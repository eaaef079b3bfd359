// Numbers as people read them.
#pragma once

#include <cstdint>
#include <string>

namespace edgellm {

std::string fixed(double value, int decimals);

// "7.1 MB": decimal units, as disks are sold and memory bandwidths are stated.
std::string human_bytes(uint64_t bytes);

// "17.3 M", "2.4 B".
std::string human_count(uint64_t count);

}  // namespace edgellm
