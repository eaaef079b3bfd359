// Options that take several values, with commas between them or by being given several times.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <string>
#include <vector>

namespace edgellm {

// `problem` says what is wrong with a value, or nothing where it is good. A list that is given
// replaces what `values` held.
CLI::Option* add_word_list(CLI::App& app, const std::string& names,
                           std::vector<std::string>& values, const std::string& description,
                           std::function<std::string(const std::string& word)> problem);

// Whole numbers from low to high.
CLI::Option* add_number_list(CLI::App& app, const std::string& names, std::vector<int>& values,
                             const std::string& description, int low, int high);

}  // namespace edgellm
