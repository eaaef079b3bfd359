#include "engine/kv_type.h"

#include <algorithm>
#include <iterator>

#include "base/error.h"

namespace edgellm {

const char* to_string(KvType type) {
  return type == KvType::kI16 ? "i16" : type == KvType::kI8 ? "i8" : "f32";
}

KvType kv_type_of(std::string_view name) {
  const auto* const type = std::find_if(std::begin(kKvTypes), std::end(kKvTypes),
                                        [&](KvType each) { return to_string(each) == name; });
  require(type != std::end(kKvTypes), "a KV type was not checked");
  return *type;
}

}  // namespace edgellm
