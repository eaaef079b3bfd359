// Inputs and outputs of `edgellm batch` for its tests.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/apps/program.h"

namespace edgellm::test {

using Records = std::map<std::string, nlohmann::json>;  // by custom_id

// Every line a whole record, every id once.
Records records_of(const std::string& text);

// The same of a file.
Records read_records(const std::string& path);

// The answer's text of a record that has one.
std::string answer_of(const nlohmann::json& record);

// By id, without what differs from run to run (timings).
std::map<std::string, std::string> answers_of(const Records& records);

// Lines of the short form, one for each of n stories, of `n_tokens` each; ids "r0", "r1", ...
std::string story_requests(int n, int n_tokens);

// `edgellm batch DEMO -i in -o out ...`.
std::vector<std::string> batch_args(const std::string& in, const std::string& out,
                                    const std::vector<std::string>& more = {});

// Runs it and checks the exit code.
Result run_batch_to(int exit_code, const std::string& in, const std::string& out,
                    const std::vector<std::string>& more = {},
                    const Program::Streams& streams = {});

}  // namespace edgellm::test
