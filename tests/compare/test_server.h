// A server for tests, by cpp-httplib: it speaks Ollama's native API and OpenAI's completions API as
// their documents describe them, and misbehaves as it is told to.
#pragma once

#include <httplib.h>

#include <atomic>
#include <functional>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace edgellm::test {

// How it answers /api/generate and /v1/completions.
struct Behaviour {
  int tokens = 8;    // of an answer, at most what was asked for
  int piece_ms = 2;  // between pieces
  int first_ms = 5;  // before the first
  int tokens_per_piece = 1;
  int split_bytes = 0;         // writes of so many bytes, whatever they cut; 0: whole lines
  bool buffered = false;       // the whole answer in one write
  bool cached_prompt = false;  // Ollama leaves the prompt's figures out
  bool end_early = false;      // "stop" after half of the tokens
  int cut_after = -1;          // close the connection after so many pieces
  int stall_after = -1;        // say nothing more after so many pieces
  bool endless = false;        // empty pieces for ever
  std::string flood;           // these bytes for ever, as fast as they are read
  bool no_end = false;         // close well-behaved, without the last piece
  bool no_usage = false;       // OpenAI: neither usage nor timings
  bool extra_events = false;   // OpenAI: comments, named events, empty pieces, CR LF
  std::string garbage;         // sent as a line after the first piece
  std::string stream_error;    // an error after the first piece, status 200
  int status = 200;            // other than 200: `error_body` is the answer
  std::string error_body;
  std::string content_type = "application/json";
};

// A value that the test sets and the server's threads read.
template <class T>
class Shared {
 public:
  explicit Shared(T value) : value_(std::move(value)) {}
  Shared& operator=(T value) {
    const std::lock_guard guard(mutex_);
    value_ = std::move(value);
    return *this;
  }
  T get() const {
    const std::lock_guard guard(mutex_);
    return value_;
  }

  // Locked until the end of the full expression.
  struct Access {
    std::unique_lock<std::mutex> lock;
    T* value;
    T* operator->() const { return value; }
  };
  Access operator->() { return {std::unique_lock(mutex_), &value_}; }

 private:
  mutable std::mutex mutex_;
  T value_;
};

class TestServer {
 public:
  TestServer();
  ~TestServer();
  TestServer(const TestServer&) = delete;
  TestServer& operator=(const TestServer&) = delete;

  std::string url() const { return "http://127.0.0.1:" + std::to_string(port_); }
  std::string host_and_port() const { return "127.0.0.1:" + std::to_string(port_); }
  int port() const { return port_; }

  Shared<Behaviour> behaviour{{}};
  Shared<std::vector<std::string>> openai_models{{"tiny"}};
  Shared<nlohmann::json> openai_meta{nullptr};  // of every entry of /v1/models
  Shared<std::string> owner{"somebody"};        // "llamacpp" and "vllm" are known
  Shared<std::string> key{""};                  // not empty: Authorization must have it
  Shared<bool> is_ollama{true};                 // false: /api/... is 404 with a page of HTML

  // Bodies of the requests that were answered, in order.
  std::vector<nlohmann::json> requests() const;

  httplib::Server& raw() { return server_; }

 private:
  void answer_ollama(const httplib::Request& request, httplib::Response& response);
  void answer_openai(const httplib::Request& request, httplib::Response& response);
  bool refuse(httplib::Response& response) const;
  void remember(const nlohmann::json& body);
  // Streams `lines`, one a piece; misbehaves.
  void stream(httplib::Response& response, const std::string& content_type,
              std::vector<std::string> lines, const std::string& empty_line);

  httplib::Server server_;
  int port_ = 0;
  std::thread thread_;
  std::atomic<bool> stopping_ = false;
  mutable std::mutex mutex_;
  std::vector<nlohmann::json> requests_;
};

}  // namespace edgellm::test
