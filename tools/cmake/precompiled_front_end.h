// The same for front ends and tests, which also leave the code of the JSON classes to
// json_instances.cpp. (GCC 12 at -O3 would warn of its own library there.)
#pragma once

#include "tools/cmake/precompiled.h"

extern template class nlohmann::basic_json<>;
extern template class nlohmann::basic_json<nlohmann::ordered_map>;
