// The types of the KV cache (kernels/ops.h) by the names that options and reports have for them.
#pragma once

#include <string_view>

#include "kernels/ops.h"

namespace edgellm {

// The default first.
inline constexpr KvType kKvTypes[] = {KvType::kI16, KvType::kI8, KvType::kF32};

const char* to_string(KvType type);  // "i16", "i8", "f32"

// The type of one of these names.
KvType kv_type_of(std::string_view name);

}  // namespace edgellm
