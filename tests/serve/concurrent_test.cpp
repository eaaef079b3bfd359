// Many clients at a time: every answer is the one that is given alone.
#include <atomic>
#include <catch2/catch.hpp>
#include <thread>

#include "tests/serve/served.h"
#include "tests/support/random.h"
#include "tests/support/sanitizers.h"

namespace edgellm::test {
namespace {

using nlohmann::json;

// Requests of every kind, some of which begin alike.
std::vector<json> mixed_bodies(int n) {
  Random random(17);
  const std::vector<std::string> beginnings = {"Once upon a time", "The king", "One day the fox",
                                               "A lion and a mouse"};
  std::string story;
  for (int i = 0; i < 30; ++i) story += "The wolf went on and on through the dark forest. ";
  std::vector<json> bodies;
  for (int i = 0; i < n; ++i) {
    std::string prompt = beginnings[static_cast<size_t>(random.below(4))];
    if (random.below(3) == 0) prompt = story + prompt;
    json body = {{"prompt", prompt}, {"max_tokens", 1 + random.below(24)}};
    if (random.below(2) == 0) {
      body["temperature"] = 0;
    } else {
      body.update({{"temperature", 0.8}, {"top_p", 0.95}, {"seed", random.below(100)}});
    }
    if (random.below(5) == 0) body["logprobs"] = 2;
    if (random.below(5) == 0) body["frequency_penalty"] = 0.5;
    bodies.push_back(std::move(body));
  }
  return bodies;
}

std::string text_of_stream(const std::string& body) {
  std::string text;
  for (size_t at = body.find("data: {"); at != std::string::npos; at = body.find("data: {", at)) {
    at += 6;
    const json event = json::parse(body.substr(at, body.find('\n', at) - at));
    for (const json& choice : event["choices"]) text += choice["text"].get<std::string>();
  }
  return text;
}

TEST_CASE("200 clients at a time, streaming or not, some of whom go away: every answer is right") {
  constexpr int kClients = kSanitized ? 24 : 200;
  const std::vector<json> bodies = mixed_bodies(kSanitized ? 8 : 40);
  std::vector<std::string> expected;
  {
    const Served alone({.sequences = 1});
    for (const json& body : bodies) {
      expected.push_back(post(alone, "/v1/completions", body)["choices"][0]["text"]);
    }
  }
  Served server({.sequences = 16, .queue = 1000});
  std::atomic<int> n_right = 0;
  std::atomic<int> n_wrong = 0;
  std::atomic<int> n_gone = 0;
  std::vector<std::thread> clients;
  for (int c = 0; c < kClients; ++c) {
    clients.emplace_back([&, c] {
      Random random(static_cast<uint64_t>(c));
      for (int round = 0; round < 2; ++round) {
        const auto which = static_cast<size_t>(random.below(static_cast<int>(bodies.size())));
        json body = bodies[which];
        const int kind = random.below(4);
        body["stream"] = kind >= 2;
        httplib::Client client("127.0.0.1", server.port());
        client.set_read_timeout(120);
        client.set_connection_timeout(60);
        if (kind == 3) {  // goes away after the first bytes
          httplib::Request request;
          request.method = "POST";
          request.path = "/v1/completions";
          body["max_tokens"] = 500;
          request.body = body.dump();
          request.content_receiver = [](const char*, size_t, uint64_t, uint64_t) { return false; };
          httplib::Response response;
          httplib::Error error = httplib::Error::Success;
          client.send(request, response, error);
          ++n_gone;
          continue;
        }
        const httplib::Result result =
            client.Post("/v1/completions", body.dump(), "application/json");
        const bool is_right =
            result && result->status == 200 &&
            (kind == 2 ? text_of_stream(result->body)
                       : json::parse(result->body)["choices"][0]["text"].get<std::string>()) ==
                expected[which];
        ++(is_right ? n_right : n_wrong);
      }
    });
  }
  for (std::thread& client : clients) client.join();
  CHECK(n_wrong == 0);
  CHECK(n_right + n_gone == 2 * kClients);
  CHECK(n_right > kClients);
  CHECK(n_gone > kClients / 10);
  REQUIRE(server.becomes_idle());
  const serve::EngineState state = server.state();
  CHECK(state.kv_blocks_used == 0);
  CHECK(state.waiting == 0);
  CHECK(state.counters.failures == 0);
  CHECK(state.counters.shared_prompt_ids > 0);
}

}  // namespace
}  // namespace edgellm::test
