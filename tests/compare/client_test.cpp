// Both clients against a server that behaves and one that does not.
#include <catch2/catch.hpp>
#include <chrono>

#include "apps/compare/clients/peer.h"
#include "base/error.h"
#include "tests/compare/test_server.h"

namespace edgellm::peers {
namespace {

using test::TestServer;

HttpOptions quick(int timeout_ms = 5000) {
  HttpOptions options;
  options.timeout = std::chrono::milliseconds(timeout_ms);
  options.start_hint = "start it with: sesame";
  return options;
}

const CompletionRequest kRequest = {.prompt = "abc", .max_tokens = 8, .context = 256};
const std::string kText = " fox é 狐 fox é 狐 fox é";

// A client of either API, connected.
struct Client {
  const char* name;
  std::function<std::unique_ptr<Peer>(const TestServer&, HttpOptions)> connect;
};

const std::vector<Client>& both() {
  static const std::vector<Client> clients = {
      {"Ollama",
       [](const TestServer& server, HttpOptions options) {
         return connect_ollama(parse_ollama_host(server.host_and_port()), std::move(options),
                               "tiny");
       }},
      {"OpenAI", [](const TestServer& server, HttpOptions options) {
         return connect_openai(parse_url(server.url()), std::move(options), std::nullopt);
       }}};
  return clients;
}

// One line that holds every part, exit code 9.
void check_unavailable(const std::function<void()>& action, const std::vector<std::string>& parts,
                       ExitCode code = ExitCode::kPeerUnavailable) {
  try {
    action();
    FAIL("nothing was thrown");
  } catch (const Error& error) {
    INFO(error.what());
    CHECK(error.code() == code);
    for (const std::string& part : parts) CHECK_THAT(error.what(), Catch::Contains(part));
    CHECK(std::string(error.what()).size() < 500);
  }
}

void check_complete_fails(const std::function<void(TestServer&)>& set,
                          const std::vector<std::string>& parts) {
  for (const Client& client : both()) {
    INFO(client.name);
    TestServer server;
    set(server);
    const auto peer = client.connect(server, quick());
    check_unavailable([&] { peer->complete(kRequest); }, parts);
  }
}

TEST_CASE("a streamed answer, whatever it is cut into") {
  for (const Client& client : both()) {
    for (const int split : {0, 1, 3, 7}) {
      for (const int per_piece : {1, 3}) {
        for (const bool extra : {false, true}) {
          INFO(client.name << ", written by " << split << ", tokens a piece " << per_piece);
          TestServer server;
          server.behaviour->split_bytes = split;
          server.behaviour->tokens_per_piece = per_piece;
          server.behaviour->extra_events = extra;
          server.behaviour->piece_ms = 1;
          const Completion result = client.connect(server, quick())->complete(kRequest);
          CHECK(result.text == kText);
          CHECK(result.finish_reason == "length");
          CHECK(*result.server.eval_tokens == 8);
          CHECK(result.piece_ns.size() == (per_piece == 1 ? 8 : 3));
          CHECK(result.piece_bytes.size() == result.piece_ns.size());
          CHECK(result.piece_ns.front() - result.sent_ns >= 5'000'000);
          CHECK(std::is_sorted(result.piece_ns.begin(), result.piece_ns.end()));
          CHECK(result.finished_ns >= result.piece_ns.back());
        }
      }
    }
  }
}

TEST_CASE("what Ollama is asked, and what it says") {
  TestServer server;
  const auto peer =
      connect_ollama(parse_ollama_host(server.host_and_port()), quick(), "tiny:latest");
  CHECK(peer->info().memory_bytes.reason() == "the model is not loaded (/api/ps)");
  const Completion result = peer->complete(kRequest);
  CHECK(*result.server.prompt_tokens == 50);
  CHECK(*result.server.prompt_ns == 5'000'000);
  CHECK(*result.server.eval_ns == 16'000'000);
  CHECK(*result.server.load_ns == 1'000'000);
  CHECK(*result.server.prompt_tps == Approx(10000));
  CHECK(*result.server.eval_tps == Approx(500));
  const nlohmann::json body = server.requests().at(0);
  CHECK(body.at("raw") == true);
  CHECK(body.at("prompt") == "abc");
  CHECK(body.at("keep_alive").is_string());
  CHECK(body.at("options").at("temperature") == 0);
  CHECK(body.at("options").at("num_predict") == 8);
  CHECK(body.at("options").at("num_ctx") == 256);

  const PeerInfo info = peer->info();
  CHECK(info.software == "Ollama");
  CHECK(*info.version == "0.12.3");
  CHECK(*info.architecture == "llama");
  CHECK(*info.parameters == 17'000'000);
  CHECK(*info.quantisation == "Q4_K_M");
  CHECK(*info.bytes == 123'456'789);
  CHECK(*info.memory_bytes == 200'000'000);
  CHECK(*info.gpu_memory_bytes == 150'000'000);
  CHECK(*info.device == "GPU and CPU (75% of the memory on the GPU)");
  CHECK(*info.context == 2048);
}

TEST_CASE("Ollama's figures that a cached prompt leaves out have a reason") {
  TestServer server;
  server.behaviour->cached_prompt = true;
  const Completion result = both()[0].connect(server, quick())->complete(kRequest);
  CHECK_THAT(result.server.prompt_tokens.reason(), Catch::Contains("cache"));
  CHECK_THAT(result.server.prompt_ns.reason(), Catch::Contains("cache"));
  CHECK(*result.server.eval_tokens == 8);
}

TEST_CASE("what an OpenAI-compatible server is asked, and what it says") {
  TestServer server;
  const auto peer = both()[1].connect(server, quick());
  const Completion result = peer->complete(kRequest);
  CHECK(*result.total_prompt_tokens == 51);
  CHECK_FALSE(result.server.prompt_ns);
  const nlohmann::json body = server.requests().at(0);
  CHECK(body.at("model") == "tiny");
  CHECK(body.at("max_tokens") == 8);
  CHECK(body.at("temperature") == 0);
  CHECK(body.at("stream") == true);
  CHECK_FALSE(body.contains("ignore_eos"));  // not OpenAI's: a stranger might refuse it
  CHECK(peer->info().software == "OpenAI-compatible server");
  CHECK_FALSE(peer->info().version);
}

TEST_CASE("llama-server tells more") {
  TestServer server;
  server.owner = "llamacpp";
  server.openai_meta = {{"n_params", 17'300'000}, {"size", 7'000'000}, {"ftype", "TQ2_0"}};
  const auto peer = both()[1].connect(server, quick());
  const Completion result = peer->complete(kRequest);
  CHECK(*result.server.prompt_tokens == 50);
  CHECK(*result.server.cached_tokens == 1);
  CHECK(*result.server.prompt_ns == 5'250'000);
  CHECK(*result.server.eval_ns == 20'000'000);
  CHECK(*result.server.prompt_tps == 9523.8);
  CHECK(*result.server.eval_tps == 321.5);
  CHECK(*result.total_prompt_tokens == 51);
  CHECK(server.requests().at(0).at("ignore_eos") == true);
  const PeerInfo info = peer->info();
  CHECK(info.software == "llama-server");
  CHECK(*info.version == "b9999-abc");
  CHECK(*info.parameters == 17'300'000);
  CHECK(*info.quantisation == "TQ2_0");
  CHECK(*info.context == 1024);
}

TEST_CASE("an answer that ends early, or of which no counts are given") {
  for (const Client& client : both()) {
    TestServer server;
    server.behaviour->end_early = true;
    const Completion result = client.connect(server, quick())->complete(kRequest);
    CHECK(result.finish_reason == "stop");
    CHECK(*result.server.eval_tokens == 4);
  }
  TestServer server;
  server.behaviour->no_usage = true;
  const Completion result = both()[1].connect(server, quick())->complete(kRequest);
  CHECK_FALSE(result.server.eval_tokens);
  CHECK(result.piece_ns.size() == 8);
}

TEST_CASE("nobody is there") {
  HttpOptions options = quick();
  const auto nobody = [&] { connect_openai(parse_url("http://127.0.0.1:1"), options, {}); };
  check_unavailable(nobody, {"no server answers at http://127.0.0.1:1", "sesame"});
  check_unavailable([&] { connect_ollama(parse_ollama_host(":1"), options, "tiny"); },
                    {"no server answers at http://127.0.0.1:1", "sesame"});
}

TEST_CASE("the model is not there") {
  TestServer server;
  const Address address = parse_url(server.url());
  check_unavailable([&] { connect_ollama(address, quick(), "llama9"); },
                    {"has no model llama9", "it has tiny:latest", "ollama pull llama9"});
  check_unavailable([&] { connect_openai(address, quick(), "llama9"); },
                    {"has no model llama9", "--model", "tiny"});
  server.openai_models = {"a", "b"};
  check_unavailable([&] { connect_openai(address, quick(), std::nullopt); },
                    {"several models", "--model", "a, b"}, ExitCode::kUsage);
  CHECK(connect_openai(address, quick(), "b")->info().model == "b");
  server.openai_models = {};
  check_unavailable([&] { connect_openai(address, quick(), std::nullopt); }, {"has no model"});
}

TEST_CASE("something else answers") {
  TestServer server;
  server.is_ollama = false;
  check_unavailable([&] { both()[0].connect(server, quick()); },
                    {"/api/version", "404", "text/html", "no Ollama", "OLLAMA_HOST"});
  const Address address = parse_url(server.url() + "/somewhere");
  check_unavailable([&] { connect_openai(address, quick(), std::nullopt); }, {"/v1/models", "404"});
}

TEST_CASE("an API key") {
  TestServer server;
  server.key = "secret";
  check_unavailable([&] { both()[1].connect(server, quick()); },
                    {"401", "Invalid API Key", "EDGELLM_API_KEY"});
  HttpOptions options = quick();
  options.bearer_token = "secret";
  CHECK(both()[1].connect(server, options)->complete(kRequest).text == kText);
}

TEST_CASE("errors instead of an answer") {
  check_complete_fails(
      [](TestServer& server) {
        server.behaviour->status = 500;
        server.behaviour->error_body = R"({"error":"out of memory"})";
      },
      {"500", "out of memory"});
  check_complete_fails(
      [](TestServer& server) {
        server.behaviour->status = 400;
        server.behaviour->error_body = R"({"error":{"message":"too long","type":"x"}})";
      },
      {"400", "too long"});
  check_complete_fails(
      [](TestServer& server) {
        server.behaviour->status = 502;
        server.behaviour->error_body = "<html>Bad Gateway</html>";
        server.behaviour->content_type = "text/html";
      },
      {"502", "text/html", "proxy"});
  check_complete_fails([](TestServer& server) { server.behaviour->status = 302; },
                       {"302", "redirects to http://elsewhere/login"});
}

TEST_CASE("an answer that breaks off") {
  check_complete_fails([](TestServer& server) { server.behaviour->cut_after = 3; },
                       {"cut its answer", "3 pieces of text", "sesame"});
  check_complete_fails([](TestServer& server) { server.behaviour->cut_after = 0; },
                       {"cut its answer", "0 pieces of text"});
  check_complete_fails([](TestServer& server) { server.behaviour->no_end = true; },
                       {"ended its answer without", "8 pieces of text"});
  check_complete_fails([](TestServer& server) { server.behaviour->stream_error = "CUDA error"; },
                       {"stopped with the error: CUDA error"});
  check_complete_fails(
      [](TestServer& server) { server.behaviour->garbage = "{\"response\": nope"; },
      {"not JSON", "nope"});
}

TEST_CASE("a server that floods") {
  const std::string text(8 << 20, 'x');
  const auto floods = [](const Client& client, const std::string& bytes, const std::string& part) {
    INFO(client.name << ": " << part);
    TestServer server;
    server.behaviour->flood = bytes;
    const auto peer = client.connect(server, quick(60'000));
    check_unavailable([&] { peer->complete(kRequest); }, {part});
  };
  floods(both()[0], text, "sent a line of more than 16 MiB");
  floods(both()[0], "{\"response\":\"" + text + "\"}\n", "sent more than 16 MiB of text");
  floods(both()[1], text, "sent a line of more than 16 MiB");
  floods(both()[1], "data: " + text + "\n", "sent an event of more than 16 MiB");
  floods(both()[1], "data: {\"choices\":[{\"text\":\"" + text + "\"}]}\n\n",
         "sent more than 16 MiB of text");
}

TEST_CASE("a server that is too slow") {
  for (const Client& client : both()) {
    for (const bool endless : {false, true}) {  // silence, and drops that never fill a cup
      INFO(client.name);
      TestServer server;
      server.behaviour->stall_after = endless ? -1 : 2;
      server.behaviour->endless = endless;
      const auto peer = client.connect(server, quick(300));
      const auto start = std::chrono::steady_clock::now();
      check_unavailable(
          [&] { peer->complete(kRequest); },
          {"did not finish", "within 0.3 s", "--timeout", endless ? "0 pieces" : "2 pieces"});
      CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(3));
    }
  }
}

struct Stop {};

TEST_CASE("Ctrl-C ends a request that waits") {
  for (const Client& client : both()) {
    TestServer server;
    server.behaviour->stall_after = 1;
    HttpOptions options = quick(60'000);
    std::atomic<bool> interrupted = false;
    options.interrupted = [&] { return interrupted.load(); };
    options.raise_interrupt = [] { throw Stop{}; };
    const auto peer = client.connect(server, options);
    std::thread user([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      interrupted = true;
    });
    const auto start = std::chrono::steady_clock::now();
    CHECK_THROWS_AS(peer->complete(kRequest), Stop);
    CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(3));
    user.join();
  }
}

}  // namespace
}  // namespace edgellm::peers
