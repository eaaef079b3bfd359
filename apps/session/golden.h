// The golden of a model file: a short greedy run, made at conversion and repeated by `verify`.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/backend.h"
#include "model/model_file.h"

namespace edgellm {

// Greedy ids after `prompt_ids`, `count` of them or fewer where the context ends. Stop ids are not
// obeyed: the golden tests the arithmetic.
std::vector<int32_t> greedy_ids(Backend& backend, std::span<const int32_t> prompt_ids, int count);

// What a back end needs for that: positions, and a KV type that knows heads of that width.
int golden_context(const ModelConfig& config, size_t n_prompt_ids, int count);
KvType golden_kv_type(const ModelConfig& config);

// The golden of a finished file without one.
Golden make_golden(const std::string& path);

}  // namespace edgellm
