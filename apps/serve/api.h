// What a server answers: OpenAI's API, Ollama's, and its own paths (docs/serve.md).
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "apps/serve/api_error.h"
#include "apps/serve/http_server.h"
#include "apps/serve/models.h"
#include "base/json.h"

namespace edgellm::serve {

struct ApiOptions {
  std::vector<std::string> keys = {};          // empty: nobody needs one
  std::vector<std::string> origins = {};       // whose web pages may call, or "*"
  std::chrono::milliseconds timeout{600'000};  // of one request
  bool may_pull = false;                       // requests may download models
  // Gets a line of JSON for each request that was answered. May be empty. Called by any thread.
  std::function<void(const std::string& line)> access_log = {};
  // Joules that the GPU has taken since some moment. May be empty. Called by any thread.
  std::function<std::optional<double>()> gpu_joules = {};
};

// That line, without its newline.
std::string access_line(const HttpRequest& request, int status, size_t bytes,
                        Clock::duration duration);

// "2026-01-31T12:34:56.789012345Z"
std::string timestamp(std::chrono::system_clock::time_point when);

class Api {
 public:
  // `models` must outlive the object.
  Api(Models& models, ApiOptions options);

  HttpHandlers handlers();

  // From now on requests for answers are refused, those that are live continue.
  void drain() { is_draining_ = true; }

  // Method and path of everything that is served. A path that ends with a slash has a name behind
  // it.
  std::vector<std::pair<std::string, std::string>> routes() const;

  void set_connections(std::function<int()> connections) { connections_ = std::move(connections); }

 private:
  using Handler = HttpResponse (Api::*)(const HttpRequest&);
  struct Route {
    std::string method;
    Handler handler;
    bool needs_key = true;
    bool is_work = false;  // refused while draining
  };

  // Those of a path, which may be the beginning of one: "/v1/models/".
  const std::vector<Route>* routes_of(const std::string& path) const;
  const Route* route_of(const HttpRequest& request) const;
  std::optional<HttpResponse> check_head(const HttpRequest& request);
  HttpResponse respond(const HttpRequest& request);
  void check_origin(const HttpRequest& request) const;
  void check_key(const HttpRequest& request) const;
  void add_cors_headers(const HttpRequest& request, HttpResponse& response) const;
  bool is_allowed_origin(const std::string& origin) const;
  HttpResponse preflight(const HttpRequest& request) const;

  // The model that a body names. Throws ApiError where it is not served.
  ServedModel& model_of(const Fields& body) const;
  ServedModel& model_called(const std::string& name) const;
  const ServedModel& model_asked_for(const HttpRequest& request) const;
  Clock::time_point deadline() const { return Clock::now() + options_.timeout; }

  // openai_api.cpp
  HttpResponse completions(const HttpRequest& request);
  HttpResponse chat_completions(const HttpRequest& request);
  HttpResponse openai_answer(const HttpRequest& request, bool is_chat);
  HttpResponse models(const HttpRequest& request);
  HttpResponse one_model(const HttpRequest& request);

  // pull_api.cpp
  HttpResponse ollama_pull(const HttpRequest& request);

  // embeddings_api.cpp
  HttpResponse embeddings(const HttpRequest& request);
  HttpResponse ollama_embed(const HttpRequest& request);
  HttpResponse ollama_embeddings(const HttpRequest& request);

  // ollama_api.cpp
  HttpResponse ollama_generate(const HttpRequest& request);
  HttpResponse ollama_chat(const HttpRequest& request);
  HttpResponse ollama_tags(const HttpRequest& request);
  HttpResponse ollama_show(const HttpRequest& request);
  HttpResponse ollama_ps(const HttpRequest& request);
  HttpResponse ollama_version(const HttpRequest& request);

  // operations_api.cpp
  HttpResponse page(const HttpRequest& request);
  HttpResponse health(const HttpRequest& request);
  HttpResponse metrics(const HttpRequest& request);
  HttpResponse props(const HttpRequest& request);
  HttpResponse server_info(const HttpRequest& request);
  HttpResponse model_info(const HttpRequest& request);
  HttpResponse tokenize(const HttpRequest& request);
  HttpResponse detokenize(const HttpRequest& request);
  HttpResponse tokenizer_info(const HttpRequest& request);

  Models& models_;
  const ApiOptions options_;
  std::map<std::string, std::vector<Route>> routes_;
  std::function<int()> connections_ = [] { return 0; };
  const int64_t started_at_;  // seconds since 1970
  const std::optional<double> joules_at_start_;
  std::atomic<bool> is_draining_ = false;
};

// The body as an object. Throws Error (kUsage).
Json parse_body(const HttpRequest& request);
Fields fields_of(const Json& body);

HttpResponse json_response(const nlohmann::ordered_json& json, int status = 200);

// Letters and digits that no other request has.
std::string fresh_id();

int64_t unix_seconds();

}  // namespace edgellm::serve
