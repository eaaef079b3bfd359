// The report of `edgellm bench` (docs/bench.md) as a page with charts.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace edgellm::bench {

// `report`: the object of -o json.
std::string report_page(const nlohmann::ordered_json& report);

}  // namespace edgellm::bench
