// What strangers send: limits, keys, origins, clients that are slow or go away.
#include <signal.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <thread>

#include "tests/apps/program.h"
#include "tests/serve/served.h"
#include "tests/support/environment.h"
#include "tests/support/sanitizers.h"

namespace edgellm::test {
namespace {

using nlohmann::json;
using namespace std::chrono_literals;

// An answer that takes a while: 2,000 tokens, none of which ends it.
json long_body(bool is_streamed) {
  return {{"prompt", "Once upon a time"},
          {"max_tokens", 2000},
          {"ignore_eos", true},
          {"stream", is_streamed}};
}

std::string raw_post(const std::string& path, const std::string& body) {
  return "POST " + path + " HTTP/1.1\r\nHost: x\r\nContent-Length: " + std::to_string(body.size()) +
         "\r\n\r\n" + body;
}

std::string status_line(const std::string& answer) { return answer.substr(0, answer.find('\r')); }

TEST_CASE("a client that goes away ends its answer at once, streamed or not") {
  Served server;
  int64_t n_cancelled = 0;
  for (const bool is_streamed : {true, false}) {
    for (const bool is_reset : {true, false}) {
      INFO((is_streamed ? "streamed" : "whole") << (is_reset ? ", reset" : ", closed"));
      RawConnection client(server);
      REQUIRE(client.send(raw_post("/v1/completions", long_body(is_streamed).dump())));
      if (is_streamed) {
        CHECK(client.receive_until("data: ").find("200 OK") != std::string::npos);
      }
      REQUIRE(becomes_true([&] { return server.state().running == 1; }));
      if (is_reset) {
        client.reset();
      } else {
        client.close();
      }
      const auto began = std::chrono::steady_clock::now();
      REQUIRE(becomes_true([&] { return server.state().cancelled == n_cancelled + 1; }));
      CHECK(std::chrono::steady_clock::now() - began < 2s);
      ++n_cancelled;
      REQUIRE(server.becomes_idle());
      CHECK(server.state().kv_blocks_used == 0);
    }
  }
  // Others did not notice.
  CHECK(post(server, "/v1/completions", {{"prompt", "x"}})["choices"].size() == 1);
}

TEST_CASE("a full queue refuses with 429 and says when to try again") {
  Served server({.sequences = 1, .queue = 1});
  RawConnection first(server);
  RawConnection second(server);
  REQUIRE(first.send(raw_post("/v1/completions", long_body(true).dump())));
  REQUIRE(becomes_true([&] { return server.state().running == 1; }));
  REQUIRE(second.send(raw_post("/v1/completions", long_body(true).dump())));
  REQUIRE(becomes_true([&] { return server.state().waiting == 1; }));
  const httplib::Result refused =
      server.client().Post("/v1/completions", R"({"prompt":"x"})", "application/json");
  REQUIRE(refused);
  CHECK(refused->status == 429);
  CHECK(std::stoi(refused->get_header_value("Retry-After")) >= 1);
  const json error = json::parse(refused->body)["error"];
  CHECK(error["type"] == "rate_limit_error");
  CHECK(error["code"] == "queue_full");
  CHECK(server.state().refused == 1);
  // One that waits can go away as well, and makes room.
  second.close();
  REQUIRE(becomes_true([&] { return server.state().waiting == 0; }));
  first.close();
  REQUIRE(server.becomes_idle());
  CHECK(server.state().cancelled == 2);
  CHECK(post(server, "/v1/completions", {{"prompt", "x"}})["choices"].size() == 1);
}

TEST_CASE("a request that takes longer than it may ends with 504, a stream with an error") {
  Served server({.api = {.keys = {}, .origins = {}, .timeout = 150ms}});
  const json error = post(server, "/v1/completions", long_body(false), 504)["error"];
  CHECK(error["code"] == "timeout");
  const httplib::Result stream =
      server.client().Post("/v1/completions", long_body(true).dump(), "application/json");
  REQUIRE(stream);
  CHECK(stream->body.find("\"code\":\"timeout\"") != std::string::npos);
  CHECK(stream->body.find("[DONE]") == std::string::npos);
  REQUIRE(server.becomes_idle());
  CHECK(server.state().cancelled == 2);
}

TEST_CASE("bodies are limited, also those that do not say how long they are, or are packed") {
  serve::HttpLimits limits;
  limits.body_bytes = 100'000;
  const Served server({.limits = limits});
  const std::string large = R"({"prompt":")" + std::string(100'000, 'x') + "\"}";
  CHECK(post(server, "/v1/completions", large, 413)["error"]["code"] == "request_too_large");
  CHECK(post(server, "/tokenize", R"({"prompt":")" + std::string(90'000, 'x') + "\"}")["count"] >
        1000);
  RawConnection chunked(server);
  chunked.send("POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n");
  for (int i = 0; i < 40 && chunked.send("1000\r\n" + std::string(4096, 'x') + "\r\n"); ++i) {
  }
  CHECK(status_line(chunked.receive()) == "HTTP/1.1 413 Payload Too Large");
  RawConnection packed(server);
  packed.send(
      "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Encoding: gzip\r\n"
      "Content-Length: 20\r\n\r\n");
  CHECK(status_line(packed.receive()) == "HTTP/1.1 415 Unsupported Media Type");
  RawConnection twice(server);
  twice.send(
      "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n"
      "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n");
  CHECK(status_line(twice.receive()) == "HTTP/1.1 400 Bad Request");
  RawConnection huge(server);
  huge.send(
      "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999\r\n\r\n");
  CHECK(status_line(huge.receive()) == "HTTP/1.1 413 Payload Too Large");
  RawConnection negative(server);
  negative.send("POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n");
  CHECK(status_line(negative.receive()) == "HTTP/1.1 400 Bad Request");
}

TEST_CASE("what is no HTTP is answered with 400 or nothing, and the server lives") {
  serve::HttpLimits limits;
  limits.head_time = 500ms;
  const Served server({.limits = limits});
  const std::string zeros(3000, '\0');
  for (const std::string& bytes :
       {std::string("\x16\x03\x01\x02"), std::string("GET\r\n\r\n"), std::string("\r\n\r\n"), zeros,
        "GET /" + std::string(20'000, 'a') + " HTTP/1.1\r\n\r\n",
        "GET / HTTP/1.1\r\nA: " + std::string(20'000, 'b') + "\r\n\r\n",
        std::string("BREW /v1/models HTTP/1.1\r\n\r\n"),
        std::string("GET /%zz%00 HTTP/1.1\r\nHost: x\r\n\r\n")}) {
    RawConnection client(server);
    client.send(bytes);
    const std::string answer = client.receive_until("\r\n\r\n");
    INFO(bytes.substr(0, 30) << " -> " << answer.substr(0, 60));
    CHECK((answer.empty() || answer.starts_with("HTTP/1.1 4")));
  }
  // A head without an end: the server does not wait for one.
  RawConnection endless(server);
  endless.send("GET /health HTTP/1.1\r\n");
  for (int i = 0; i < 1000; ++i) {
    endless.send("X-" + std::to_string(i) + ": " + std::string(50, 'c') + "\r\n");
  }
  CHECK(status_line(endless.receive()) == "HTTP/1.1 400 Bad Request");
  CHECK(get(server, "/health")["status"] == "ok");
}

TEST_CASE("a server can be stopped before it has begun, and at once afterwards") {
  for (int i = 0; i < 50; ++i) {
    serve::HttpServer server;
    server.bind("127.0.0.1", 0);
    std::thread thread([&] { server.run({}); });
    if (i % 2 == 0) std::this_thread::sleep_for(std::chrono::microseconds(50 * i));
    server.stop();
    thread.join();
  }
}

TEST_CASE("a slow client is not waited for") {
  serve::HttpLimits limits;
  limits.head_time = 200ms;
  limits.body_time = 200ms;
  limits.idle_time = 400ms;
  limits.write_time = 300ms;
  limits.connections = 4;
  Served server({.limits = limits});
  RawConnection head(server);
  head.send("GET /health HT");
  RawConnection body(server);
  body.send("POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{");
  RawConnection idle(server);
  CHECK(head.is_closed_within(3000));
  CHECK(status_line(body.receive()) == "HTTP/1.1 408 Request Timeout");
  CHECK(idle.is_closed_within(3000));

  // One that asks for much and reads nothing: the answer ends, and its memory is free. An engine
  // under a sanitizer takes too long to fill the buffers between the two.
  RawConnection deaf(server);
  if (!kSanitized) {
    json body_of_many = long_body(true);
    body_of_many["n"] = 64;
    body_of_many["logprobs"] = 20;
    deaf.send(raw_post("/v1/completions", body_of_many.dump()));
    REQUIRE(becomes_true([&] { return server.state().cancelled > 0; }));
    REQUIRE(server.becomes_idle());
  }

  // All connections are taken by idle ones: they make room.
  std::vector<std::unique_ptr<RawConnection>> many;
  for (int i = 0; i < 6; ++i) many.push_back(std::make_unique<RawConnection>(server));
  CHECK(get(server, "/health")["status"] == "ok");
}

TEST_CASE("a connection serves many requests, and ends where a request was not read whole") {
  const Served server;
  RawConnection client(server);
  for (int i = 0; i < 20; ++i) {
    client.send("GET /health HTTP/1.1\r\nHost: x\r\n\r\n");
    CHECK(client.receive_until("}").find("200 OK") != std::string::npos);
  }
  // The body of the first would be a request of its own.
  client.send(
      "POST /nowhere HTTP/1.1\r\nHost: x\r\nContent-Length: 34\r\n\r\n"
      "GET /health HTTP/1.1\r\nHost: x\r\n\r\n  ");
  const std::string rest = client.receive();
  CHECK(rest.find("404 Not Found") != std::string::npos);
  CHECK(rest.find("Connection: close") != std::string::npos);
  CHECK(rest.find("200 OK") == std::string::npos);
}

TEST_CASE("with keys, requests need one of them") {
  const Served server({.api = {.keys = {"first-key", "second"}, .origins = {}}});
  const auto with = [](const std::string& value) {
    return httplib::Headers{{"Authorization", value}};
  };
  CHECK(get(server, "/v1/models", 401)["error"]["code"] == "invalid_api_key");
  for (const char* bad : {"Bearer first-ke", "Bearer first-keyx", "Bearer first-kez", "Bearer ",
                          "first-key", "Basic first-key", "Bearer firstfirst"}) {
    INFO(bad);
    CHECK(get(server, "/v1/models", 401, with(bad))["error"]["code"] == "invalid_api_key");
  }
  get(server, "/v1/models", 200, with("Bearer first-key"));
  get(server, "/v1/models", 200, with("Bearer second"));
  CHECK(post(server, "/v1/completions", {{"prompt", "x"}}, 401)["error"]["type"] ==
        "authentication_error");
  CHECK(post(server, "/api/generate", {{"prompt", "x"}}, 401)["error"].is_string());
  get(server, "/metrics", 401);
  CHECK(get(server, "/health")["status"] == "ok");
  // Refused before the body has come.
  RawConnection client(server);
  client.send("POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n");
  CHECK(status_line(client.receive()) == "HTTP/1.1 401 Unauthorized");
}

TEST_CASE("web pages of other sites may not call, but those that --cors names") {
  const Served server({.api = {.keys = {}, .origins = {"https://good.example"}}});
  const auto status_for = [&](const std::string& origin) {
    const httplib::Result result = server.client().Post(
        "/tokenize", httplib::Headers{{"Origin", origin}}, R"({"prompt":"x"})", "application/json");
    REQUIRE(result);
    return result->status;
  };
  CHECK(status_for("https://evil.example") == 403);
  CHECK(status_for("null") == 403);
  CHECK(status_for("http://127.0.0.1.evil.example") == 403);
  CHECK(status_for("http://localhost.evil.example:8080") == 403);
  CHECK(status_for("https://good.example") == 200);
  CHECK(status_for("http://127.0.0.1:" + std::to_string(server.port())) == 200);
  CHECK(status_for("http://localhost:3000") == 200);

  httplib::Client client = server.client();
  const httplib::Result preflight = client.Options(
      "/v1/chat/completions",
      {{"Origin", "https://good.example"}, {"Access-Control-Request-Headers", "content-type"}});
  REQUIRE(preflight);
  CHECK(preflight->status == 204);
  CHECK(preflight->get_header_value("Access-Control-Allow-Origin") == "https://good.example");
  CHECK(preflight->get_header_value("Access-Control-Allow-Headers") == "content-type");
  const httplib::Result foreign =
      client.Options("/v1/chat/completions", {{"Origin", "https://evil.example"}});
  REQUIRE(foreign);
  CHECK_FALSE(foreign->has_header("Access-Control-Allow-Origin"));
  const httplib::Result listed = client.Get("/v1/models", {{"Origin", "https://good.example"}});
  REQUIRE(listed);
  CHECK(listed->get_header_value("Access-Control-Allow-Origin") == "https://good.example");
}

// ---- The program ----------------------------------------------------------------------------

// A server of its own process; its port is on the first line of stdout.
struct ServerProgram {
  Program program;
  int port;

  explicit ServerProgram(const std::vector<std::string>& more = {})
      : program(args(more), {.in_path = "/dev/null"}) {
    // "http://127.0.0.1:PORT\n": ports that the system chooses have five digits.
    const std::string line = program.read_output(std::string("http://127.0.0.1:12345\n").size());
    port = std::stoi(line.substr(line.rfind(':') + 1));
  }
  static std::vector<std::string> args(const std::vector<std::string>& more) {
    std::vector<std::string> all = {"serve", demo_model(), "--port", "0", "--device", "cpu"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
};

TEST_CASE("SIGTERM: what is being answered is finished, nothing new is taken, exit code 0") {
  ServerProgram server;
  httplib::Client client("127.0.0.1", server.port);
  client.set_read_timeout(60);
  httplib::Client other("127.0.0.1", server.port);
  std::string text;
  bool is_signalled = false;
  httplib::Request request;
  request.method = "POST";
  request.path = "/v1/completions";
  request.body = json{
      {"prompt", "Once upon a time"},
      {"max_tokens", 1500},
      {"ignore_eos", true},
      {"stream", true},
      {"temperature",
       0}}.dump();
  request.content_receiver = [&](const char* data, size_t n, uint64_t, uint64_t) {
    text.append(data, n);
    if (!is_signalled) {
      is_signalled = true;
      server.program.send_signal(SIGTERM);
      CHECK(becomes_true([&] {
        const httplib::Result health = other.Get("/health");
        return health && health->status == 503;
      }));
      const httplib::Result refused =
          other.Post("/v1/completions", R"({"prompt":"x"})", "application/json");
      CHECK((refused && refused->status == 503));
      CHECK((refused && refused->has_header("Retry-After")));
    }
    return true;
  };
  httplib::Response response;
  httplib::Error error = httplib::Error::Success;
  REQUIRE(client.send(request, response, error));
  CHECK(text.ends_with("data: [DONE]\n\n"));
  CHECK(text.find("\"finish_reason\":\"length\"") != std::string::npos);
  const Result result = server.program.wait();
  CHECK(result.exit_code == 0);
  CHECK(result.err.find("finishing 1 answer,") != std::string::npos);
}

TEST_CASE("a second signal ends the server at once") {
  ServerProgram server;
  httplib::Client client("127.0.0.1", server.port);
  int n_signals = 0;
  httplib::Request request;
  request.method = "POST";
  request.path = "/v1/completions";
  request.body = long_body(true).dump();
  request.content_receiver = [&](const char*, size_t, uint64_t, uint64_t) {
    if (n_signals < 2) {
      server.program.send_signal(SIGTERM);
      ++n_signals;
      std::this_thread::sleep_for(100ms);
    }
    return true;
  };
  httplib::Response response;
  httplib::Error error = httplib::Error::Success;
  CHECK_FALSE(client.send(request, response, error));
  CHECK(server.program.wait().exit_code == 128 + SIGTERM);
}

TEST_CASE("keys are never printed; a port in use and a host without a key are") {
  const TempDir temp;
  const WithVariable key("EDGELLM_API_KEY", "very-secret");
  ServerProgram server({"--host", "127.0.0.1", "--access-log", temp / "access.jsonl"});
  httplib::Client client("127.0.0.1", server.port);
  const httplib::Result refused = client.Get("/v1/models");
  CHECK((refused && refused->status == 401));
  const httplib::Result let_in =
      client.Get("/v1/models", {{"Authorization", "Bearer very-secret"}});
  CHECK((let_in && let_in->status == 200));
  check_refused(run({"serve", demo_model(), "--port", std::to_string(server.port)}), 2,
                "the port is in use");
  server.program.send_signal(SIGINT);
  const Result result = server.program.wait();
  CHECK(result.exit_code == 0);
  CHECK(result.err.find("with an API key") != std::string::npos);
  CHECK(result.err.find("very-secret") == std::string::npos);
  const std::string log = read_file(temp / "access.jsonl");
  CHECK(std::ranges::count(log, '\n') == 2);
  CHECK(log.find("\"status\":401") != std::string::npos);
  CHECK(log.find("very-secret") == std::string::npos);
  CHECK(run({"help", "environment"}).out.find("very-secret") == std::string::npos);
  check_refused(run({"serve", demo_model(), "--api-key", ""}), 2, "--api-key");
  check_refused(run({"serve", demo_model(), "--host", "no such host"}), 2, "cannot listen");
  check_refused(run({"serve", demo_model(), "--access-log", temp.path().string()}), 2,
                "cannot write");
}

}  // namespace
}  // namespace edgellm::test
