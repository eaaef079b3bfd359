// The report of `edgellm bench` (docs/bench.md) as a page with charts.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

namespace edgellm::bench {

// `report`: the object of -o json.
std::string report_page(const nlohmann::ordered_json& report);

// Every number and text of an object as a name and its value; a missing one as "n/a: reason".
std::vector<std::pair<std::string, std::string>> facts_of(const nlohmann::ordered_json& object);

}  // namespace edgellm::bench
