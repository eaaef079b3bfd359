// Ollama's API.
#include <catch2/catch.hpp>

#include "tests/apps/program.h"
#include "tests/serve/served.h"

namespace edgellm::test {
namespace {

using nlohmann::json;

std::string joined(const std::vector<json>& lines) {
  std::string text;
  for (const json& line : lines) {
    text += line.contains("message") ? line["message"]["content"].get<std::string>()
                                     : line["response"].get<std::string>();
  }
  return text;
}

void check_figures(const json& last, int n_tokens) {
  CHECK(last["done"] == true);
  CHECK(last["eval_count"] == n_tokens);
  CHECK(last["prompt_eval_count"].get<int>() > 0);
  for (const char* name : {"total_duration", "prompt_eval_duration", "eval_duration"}) {
    CHECK(last[name].get<int64_t>() > 0);
  }
  CHECK(last["total_duration"] >= last["eval_duration"]);
}

TEST_CASE("Ollama's generate goes through the chat template, raw does not") {
  const Served server;
  const std::string prompt = "Tell me a story about a wolf.";
  const json options = {{"temperature", 0}, {"num_predict", 20}, {"num_thread", 4}};
  const auto alone = [&](std::vector<std::string> args) {
    args.insert(args.begin(), {"run", demo_model(), "--json", "-n", "20", "--device", "cpu"});
    return json_of(run(args))["text"];
  };
  json body = {{"model", "storyteller"}, {"prompt", prompt}, {"options", options}};
  const std::vector<json> lines = post_lines(server, "/api/generate", body);
  CHECK(joined(lines) == alone({"--chat", prompt}));
  check_figures(lines.back(), 20);
  CHECK(lines.back()["done_reason"] == "length");
  for (size_t i = 0; i + 1 < lines.size(); ++i) CHECK(lines[i]["done"] == false);
  body.update({{"raw", true}, {"stream", false}, {"keep_alive", "5m"}});
  const json whole = post(server, "/api/generate", body);
  CHECK(whole["response"] == alone({prompt}));
  check_figures(whole, 20);
  body.update({{"raw", false}, {"system", "You are a fox."}});
  CHECK(post(server, "/api/generate", body)["response"] ==
        alone({"--chat", "--system", "You are a fox.", prompt}));
}

TEST_CASE("Ollama's chat, with log-probabilities, streamed and whole") {
  const Served server;
  json body = {{"model", "storyteller:latest"},
               {"messages", json::array({{{"role", "system"}, {"content", "You are a fox."}},
                                         {{"role", "user"}, {"content", "Who are you?"}}})},
               {"options", {{"seed", 5}, {"num_predict", 12}, {"stop", json::array({"zzz"})}}},
               {"logprobs", true},
               {"top_logprobs", 2}};
  const std::vector<json> lines = post_lines(server, "/api/chat", body);
  body["stream"] = false;
  const json whole = post(server, "/api/chat", body);
  CHECK(whole["message"]["role"] == "assistant");
  CHECK(whole["message"]["content"] == joined(lines));
  json logprobs = json::array();
  for (const json& line : lines) {
    if (!line.contains("logprobs")) continue;
    for (const json& one : line["logprobs"]) logprobs.push_back(one);
  }
  CHECK(logprobs == whole["logprobs"]);
  CHECK(logprobs.size() == 12);
  CHECK(logprobs[0]["top_logprobs"].size() == 2);
  check_figures(whole, 12);
}

TEST_CASE("what Ollama's front ends ask about models") {
  const Served server;
  const json tags = get(server, "/api/tags")["models"];
  REQUIRE(tags.size() == 1);
  CHECK(tags[0]["name"] == "storyteller:latest");
  CHECK(tags[0]["size"].get<int64_t>() > 1'000'000);
  CHECK(get(server, "/api/ps")["models"][0]["context_length"] == 2048);
  const json shown = post(server, "/api/show", {{"model", "storyteller"}});
  CHECK(shown["model_info"]["general.architecture"] == "BitNetForCausalLM");
  CHECK(shown["details"]["format"] == "tmac2");
  CHECK(get(server, "/api/version").contains("version"));
  // A request without a prompt loads a model: it is there.
  CHECK(post(server, "/api/generate", {{"model", "storyteller"}})["done_reason"] == "load");
  CHECK(post(server, "/api/chat", {{"model", "storyteller"}})["done_reason"] == "load");
}

TEST_CASE("Ollama's errors are texts, and what is not supported is named") {
  const Served server;
  const auto refused = [&](const char* path, const json& body, int status,
                           const std::string& part) {
    const std::string error = post(server, path, body, status)["error"];
    INFO(error);
    CHECK(error.find(part) != std::string::npos);
  };
  refused("/api/generate", {{"model", "llama3"}, {"prompt", "x"}}, 404, "llama3");
  refused("/api/generate", {{"prompt", "x"}, {"format", "json"}}, 400, "format is not supported");
  refused("/api/generate", {{"prompt", "x"}, {"context", json::array({1})}}, 400, "context");
  refused("/api/generate", {{"prompt", "x"}, {"options", {{"mirostat", 2}}}}, 400, "mirostat");
  refused("/api/generate", {{"prompt", "x"}, {"options", {{"num_ctx", 4096}}}}, 400,
          "a context of 2048");
  refused("/api/generate", {{"prompt", "x"}, {"raw", true}, {"system", "s"}}, 400, "system needs");
  refused("/api/generate", {{"prompt", "x"}, {"keep_alive", true}}, 400, "keep_alive");
  refused(
      "/api/chat",
      {{"messages",
        json::array({{{"role", "user"}, {"content", "x"}, {"images", json::array({"aGk="})}}})}},
      400, "images is not supported");
  refused("/api/chat", "{", 400, "not valid JSON");
  CHECK(get(server, "/api/nothing", 404)["error"].is_string());
}

}  // namespace
}  // namespace edgellm::test
