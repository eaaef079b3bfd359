// Requests to one server, each with a time limit and an end at Ctrl-C, through cpp-httplib.
#pragma once

#include <chrono>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "apps/compare/clients/address.h"

namespace edgellm::peers {

struct HttpOptions {
  std::chrono::milliseconds timeout{600'000};  // of one whole request, the answer's end included
  std::string bearer_token;                    // empty: none is sent
  // What to type where nobody answers: "start it with: ollama serve".
  std::string start_hint;
  // Polled from another thread while a request is on its way; true ends it.
  std::function<bool()> interrupted = [] { return false; };
  // Called when a request has ended because of that; throws.
  std::function<void()> raise_interrupt = [] {};
};

struct HttpResponse {
  int status = 0;
  std::string content_type;
  std::string location;  // of a redirect
  std::string body;      // without what a streaming callback was given

  bool ok() const { return status == 200; }
};

// Every request has a connection of its own: none can meet one that the server has just closed.
// Redirects are not followed and proxies (http_proxy) not used, so that what is measured is the
// server that was named. Throws Error (kPeerUnavailable) where there is no whole answer.
class HttpClient {
 public:
  HttpClient(Address address, HttpOptions options);

  HttpResponse get(const std::string& path) const;
  HttpResponse post(const std::string& path, const nlohmann::json& body) const;

  // The bytes of an answer of status 200 as they come; false from `on_data` ends the request, which
  // is no error. Any other answer is returned as by post(). `received` says, for messages, how far
  // the answer has come.
  HttpResponse post_streaming(const std::string& path, const nlohmann::json& body,
                              const std::function<bool(std::string_view)>& on_data,
                              const std::function<std::string()>& received) const;

  const Address& address() const { return address_; }
  const HttpOptions& options() const { return options_; }

  // Throws the Error for an answer that is not what `path` should give. It quotes the server's own
  // message where that is JSON, else the status. `hint` is what to type next.
  [[noreturn]] void fail(const HttpResponse& response, const std::string& path,
                         const std::string& hint = "") const;

 private:
  struct Call;
  HttpResponse send(const Call& call) const;

  Address address_;
  HttpOptions options_;
};

// The message of an error body: {"error": "text"} (Ollama), {"error": {"message": "text"}}
// (OpenAI),
// {"message": ...} or {"detail": ...} (vLLM). Empty where there is none.
std::string error_message(const nlohmann::json& body);

}  // namespace edgellm::peers
