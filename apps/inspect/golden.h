// The golden of a model file: a short greedy run, made at conversion and repeated by `verify`.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "model/model_file.h"

namespace edgellm {

// Greedy ids after `prompt_ids`, `count` of them or fewer where the context ends. Stop ids are not
// obeyed: the golden tests the arithmetic. With `low_memory` weights do not stay in memory.
std::vector<int32_t> greedy_ids(const ModelFile& model, std::span<const int32_t> prompt_ids,
                                int count, int threads, bool low_memory);

// The golden of a finished file without one.
Golden make_golden(const std::string& path);

}  // namespace edgellm
