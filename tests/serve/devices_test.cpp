// A server on several devices, one of which may fail in the middle of its answers.
#include <signal.h>

#include <catch2/catch.hpp>
#include <sstream>
#include <thread>

#include "tests/apps/program.h"
#include "tests/serve/served.h"
#include "tests/support/environment.h"
#include "tests/support/random.h"
#include "tests/support/sanitizers.h"

namespace edgellm::test {
namespace {

using nlohmann::json;

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

json body_of(int i) {
  json body = {{"prompt", i % 3 == 0 ? "The fox" : "Once upon a time, number " + std::to_string(i)},
               {"max_tokens", 5 + i % 20},
               {"temperature", 0}};
  if (i % 2 == 0) body.update({{"temperature", 0.9}, {"seed", i}});
  if (i % 5 == 0) body["n"] = 3;
  if (i % 7 == 0) body["logprobs"] = 1;
  return body;
}

// What the server sends. Many threads may call it: it asserts nothing.
std::string answer_to(const Served& server, json body, bool is_streamed) {
  body["stream"] = is_streamed;
  const httplib::Result result =
      server.client().Post("/v1/completions", body.dump(), "application/json");
  if (!result) return "no answer";
  return result->status == 200 ? result->body : "status " + std::to_string(result->status);
}

// The texts of the answers. With streams, pieces that are doubled or lost show.
std::vector<std::string> texts_in(const std::string& answer, const json& body, bool is_streamed) {
  INFO(answer);
  std::vector<std::string> texts(body.value("n", 1));
  if (!is_streamed) {
    REQUIRE(answer.starts_with("{"));
    const json parsed = json::parse(answer);
    for (const json& choice : parsed["choices"]) {
      texts[choice["index"].get<size_t>()] = choice["text"];
    }
    return texts;
  }
  REQUIRE(answer.ends_with("data: [DONE]\n\n"));
  std::istringstream lines(answer);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("data: {")) continue;
    const json event = json::parse(line.substr(6));
    for (const json& choice : event["choices"]) {
      texts[choice["index"].get<size_t>()] += choice["text"].get<std::string>();
    }
  }
  return texts;
}

TEST_CASE("a server on two devices answers as on one, also while one of them fails") {
  constexpr int kBodies = kSanitized ? 10 : 24;
  std::vector<std::vector<std::string>> expected;
  {
    const Served one({.sequences = 4});
    for (int i = 0; i < kBodies; ++i) {
      expected.push_back(texts_in(answer_to(one, body_of(i), false), body_of(i), false));
    }
  }
  for (const std::string fault : {"", "1:3", "2:3"}) {
    INFO("fault " << fault);
    Served server({.sequences = 4, .device = "cpu,cpu", .fault = fault});
    std::vector<std::thread> clients;
    std::vector<std::string> answers(kBodies);
    for (int i = 0; i < kBodies; ++i) {
      clients.emplace_back(
          [&, i] { answers[static_cast<size_t>(i)] = answer_to(server, body_of(i), i % 2 == 1); });
    }
    for (std::thread& client : clients) client.join();
    for (int i = 0; i < kBodies; ++i) {
      const size_t at = static_cast<size_t>(i);
      CHECK(texts_in(answers[at], body_of(i), i % 2 == 1) == expected[at]);
    }
    CHECK(server.becomes_idle());
    const httplib::Result metrics = server.client().Get("/metrics");
    REQUIRE(metrics);
    const std::string failed = fault.empty() ? "0" : "1";
    CHECK(contains(metrics->body,
                   "edgellm:devices_failed_total{model_name=\"storyteller\"} " + failed + "\n"));
    for (const std::string device : {"1", "2"}) {
      INFO(metrics->body);
      const std::string up = "edgellm:device_up{model_name=\"storyteller\",device=\"" + device;
      REQUIRE(contains(metrics->body, up));
      const size_t at = metrics->body.find("} ", metrics->body.find(up));
      CHECK(metrics->body.substr(at + 2, 1) == (fault.substr(0, 1) == device ? "0" : "1"));
    }
    const json health = get(server, "/health");
    CHECK(health["status"] == "ok");
    CHECK(health.contains("message") == !fault.empty());
    CHECK(get(server, "/props")["total_slots"] == 8);
    const serve::EngineState state = server.state();
    REQUIRE(state.devices.size() == 2);
    CHECK(state.kv_blocks_used == 0);
  }
}

TEST_CASE("embeddings do not depend on a device that fails in the middle of them") {
  // Longer than a pass: the device that fails has handed over a part of the hidden states.
  std::string story;
  for (int i = 0; i < 60; ++i) story += "The wolf and the lamb went on and on. ";
  json input = json::array();
  for (int i = 0; i < 5; ++i) input.push_back(story + "Part " + std::to_string(i));
  const json body = {{"input", input}};
  const Served one({.sequences = 2});
  const json expected = post(one, "/v1/embeddings", body)["data"];
  Served server({.sequences = 2, .device = "cpu,cpu", .fault = "1:2"});
  CHECK(post(server, "/v1/embeddings", body)["data"] == expected);
  CHECK(becomes_true([&] { return server.state().failed_devices == 1; }));
}

TEST_CASE("a server whose only device fails ends its answers with an error") {
  Served server({.sequences = 2, .fault = "1:4"});
  const json answer = post(server, "/v1/completions",
                           {{"prompt", "Once"}, {"max_tokens", 50}, {"ignore_eos", true}}, 500);
  CHECK(contains(answer["error"]["message"], "the device failed"));
  get(server, "/health", 503);
  CHECK(!server.models().failure().empty());
}

TEST_CASE("the program says at its end that a device has failed") {
  const WithVariable drill("EDGELLM_FAIL_DEVICE", "2:3");
  Program program({"serve", demo_model(), "--port", "0", "--device", "cpu,cpu", "--sequences", "2"},
                  {});
  std::string address;
  while (!address.ends_with("\n")) address += program.read_output(1);
  address.pop_back();
  httplib::Client client(address);
  client.set_read_timeout(60);
  // Four answers at once: each device has some of them.
  const httplib::Result answer = client.Post(
      "/v1/completions", R"({"prompt":"Once","max_tokens":30,"n":4})", "application/json");
  REQUIRE(answer);
  CHECK(answer->status == 200);
  program.send_signal(SIGTERM);
  const Result result = program.wait();
  CHECK(result.exit_code == 5);
  CHECK(contains(result.err, "(device 2 of 2) failed and is taken out"));
}

}  // namespace
}  // namespace edgellm::test
