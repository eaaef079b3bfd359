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
  bool no_end = false;         // close well-behaved, without the last piece
  bool no_usage = false;       // OpenAI: neither usage nor timings
  bool extra_events = false;   // OpenAI: comments, named events, empty pieces, CR LF
  std::string garbage;         // sent as a line after the first piece
  std::string stream_error;    // an error after the first piece, status 200
  int status = 200;            // other than 200: `error_body` is the answer
  std::string error_body;
  std::string content_type = "application/json";
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

  // Set before requests come.
  Behaviour behaviour;
  std::vector<std::string> openai_models = {"tiny"};
  nlohmann::json openai_meta = nullptr;  // of every entry of /v1/models
  std::string owner = "somebody";        // "llamacpp" and "vllm" are known
  std::string key;                       // not empty: Authorization must have it
  bool is_ollama = true;                 // false: /api/... is 404 with a page of HTML

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
