#include "tests/apps/batch_files.h"

#include <catch2/catch.hpp>
#include <sstream>

namespace edgellm::test {

Records records_of(const std::string& text) {
  Records records;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    INFO(line);
    const auto record = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    REQUIRE(record.is_object());
    CHECK(record["id"].get<std::string>().starts_with("batch_req_"));
    const std::string id = record["custom_id"];
    REQUIRE(records.emplace(id, record).second);
  }
  REQUIRE((text.empty() || text.back() == '\n'));
  return records;
}

Records read_records(const std::string& path) { return records_of(read_file(path)); }

std::string answer_of(const nlohmann::json& record) {
  INFO(record.dump());
  REQUIRE(record["error"].is_null());
  REQUIRE(record["response"]["status_code"] == 200);
  const auto& choice = record["response"]["body"]["choices"][0];
  return choice.contains("text") ? choice["text"] : choice["message"]["content"];
}

std::map<std::string, std::string> answers_of(const Records& records) {
  std::map<std::string, std::string> answers;
  for (const auto& [id, record] : records) {
    const auto& body = record["response"]["body"];
    answers[id] = answer_of(record) + " | " +
                  body["choices"][0]["finish_reason"].get<std::string>() + " | " +
                  body["usage"]["total_tokens"].dump();
  }
  return answers;
}

std::string story_requests(int n, int n_tokens) {
  const std::vector<std::string> heroes = {"a king", "a fox", "the moon", "two sisters",
                                           "a tailor"};
  std::string text;
  for (int i = 0; i < n; ++i) {
    const std::string hero = heroes[static_cast<size_t>(i) % heroes.size()];
    const nlohmann::json request = {
        {"id", "r" + std::to_string(i)},
        {"prompt", "Once upon a time there lived " + hero + " number " + std::to_string(i)},
        {"max_tokens", n_tokens},
        {"ignore_eos", true}};
    text += request.dump() + "\n";
  }
  return text;
}

std::vector<std::string> batch_args(const std::string& in, const std::string& out,
                                    const std::vector<std::string>& more) {
  std::vector<std::string> args = {"batch", demo_model(), "-i", in, "-o", out};
  args.insert(args.end(), more.begin(), more.end());
  return args;
}

Result run_batch_to(int exit_code, const std::string& in, const std::string& out,
                    const std::vector<std::string>& more, const Program::Streams& streams) {
  const Result result = run(batch_args(in, out, more), streams);
  INFO(result.err);
  CHECK(result.exit_code == exit_code);
  CHECK(result.out.empty());
  return result;
}

}  // namespace edgellm::test
