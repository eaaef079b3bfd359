// The code of nlohmann's JSON classes, once for all front ends (precompiled_front_end.h).
#include <nlohmann/json.hpp>

template class nlohmann::basic_json<>;
template class nlohmann::basic_json<nlohmann::ordered_map>;
