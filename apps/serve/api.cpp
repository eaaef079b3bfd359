#include "apps/serve/api.h"

#include <algorithm>
#include <array>
#include <ctime>
#include <random>
#include <utility>

#include "apps/common/address.h"
#include "apps/common/signals.h"
#include "apps/common/terminal.h"
#include "base/log.h"
#include "base/text.h"

namespace edgellm::serve {
namespace {

ErrorForm form_of(const std::string& path) {
  return path.starts_with("/api/") ? ErrorForm::kOllama : ErrorForm::kOpenAi;
}

// In a time that depends on the length of what was given alone.
bool same_secret(const std::string& given, const std::string& key) {
  unsigned difference = given.size() == key.size() ? 0 : 1;
  for (size_t i = 0; i < given.size(); ++i) {
    const char other = key.empty() ? '\0' : key[i % key.size()];
    difference |= static_cast<unsigned char>(given[i] ^ other);
  }
  return difference == 0;
}

// "http://HOST:PORT" names the same host as the request's own Host, and that is no name: a foreign
// page can make its own name point to this machine, but not a number.
bool is_same_host(const std::string& origin, const std::string& host) {
  try {
    const AddressForm form = {.what = "Origin", .expected = "", .default_port = 80};
    const Address from = parse_address(origin, form);
    const bool is_number = from.host.find_first_not_of("0123456789.") == std::string::npos ||
                           from.host.find(':') != std::string::npos;
    return from.is_loopback() || (is_number && origin.ends_with("//" + host));
  } catch (const Error&) {  // "null", or no address at all
    return false;
  }
}

ApiError shutting_down() {
  ApiError error(503, "shutting_down", "the server is shutting down and takes no new requests");
  error.retry_after_seconds = 1;
  return error;
}

}  // namespace

Json parse_body(const HttpRequest& request) {
  return parse_json_object(request.body, {.path = "the request", .blame = ExitCode::kUsage});
}

Fields fields_of(const Json& body) {
  return Fields(body, {.path = "the request", .blame = ExitCode::kUsage});
}

HttpResponse json_response(const nlohmann::ordered_json& json, int status) {
  return {.status = status, .body = json_line(json)};
}

std::string fresh_id() {
  thread_local std::mt19937_64 bits{std::random_device{}() +
                                    (uint64_t{std::random_device{}()} << 32)};
  return hex64(bits()) + hex64(bits());
}

int64_t unix_seconds() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

std::string timestamp(std::chrono::system_clock::time_point when) {
  const auto ns =
      std::chrono::duration_cast<std::chrono::nanoseconds>(when.time_since_epoch()).count();
  const auto seconds = static_cast<std::time_t>(ns / 1'000'000'000);
  std::tm parts = {};
  gmtime_r(&seconds, &parts);
  std::array<char, 32> text = {};
  std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%S", &parts);
  std::string fraction = std::to_string(ns % 1'000'000'000);
  fraction.insert(0, 9 - fraction.size(), '0');
  return std::string(text.data()) + "." + fraction + "Z";
}

std::string access_line(const HttpRequest& request, int status, size_t bytes,
                        Clock::duration duration) {
  const std::string line =
      json_line({{"time", timestamp(std::chrono::system_clock::now())},
                 {"client", request.client_address},
                 {"method", request.method},
                 {"path", request.path},
                 {"status", status},
                 {"bytes", bytes},
                 {"ms", std::chrono::duration<double, std::milli>(duration).count()},
                 {"user_agent", request.header("User-Agent")}});
  return line.substr(0, line.size() - 1);
}

Api::Api(Models& models, ApiOptions options)
    : models_(models),
      options_(std::move(options)),
      started_at_(unix_seconds()),
      joules_at_start_(options_.gpu_joules ? options_.gpu_joules() : std::nullopt) {
  const auto get = [this](const char* path, Handler handler, bool needs_key = true) {
    routes_[path].push_back({.method = "GET", .handler = handler, .needs_key = needs_key});
  };
  const auto post = [this](const char* path, Handler handler, bool is_work = false) {
    routes_[path].push_back({.method = "POST", .handler = handler, .is_work = is_work});
  };
  post("/v1/completions", &Api::completions, true);
  post("/v1/chat/completions", &Api::chat_completions, true);
  post("/v1/embeddings", &Api::embeddings, true);
  get("/v1/models", &Api::models);
  get("/v1/models/", &Api::one_model);
  post("/api/generate", &Api::ollama_generate, true);
  post("/api/chat", &Api::ollama_chat, true);
  post("/api/embed", &Api::ollama_embed, true);
  post("/api/embeddings", &Api::ollama_embeddings, true);
  post("/api/pull", &Api::ollama_pull, true);
  post("/api/show", &Api::ollama_show);
  get("/api/tags", &Api::ollama_tags);
  get("/api/ps", &Api::ollama_ps);
  get("/api/version", &Api::ollama_version);
  get("/", &Api::page, false);
  get("/health", &Api::health, false);
  get("/metrics", &Api::metrics);
  get("/props", &Api::props);
  get("/server_info", &Api::server_info);
  get("/model_info", &Api::model_info);
  post("/tokenize", &Api::tokenize);
  post("/detokenize", &Api::detokenize);
  get("/tokenizer_info", &Api::tokenizer_info);
}

HttpHandlers Api::handlers() {
  return {
      .on_head = [this](const HttpRequest& request) { return check_head(request); },
      .on_request =
          [this](const HttpRequest& request) {
            HttpResponse response = respond(request);
            add_cors_headers(request, response);
            return response;
          },
      .on_error =
          [](int status) { return error_response(plain_error(status), ErrorForm::kOpenAi); },
      .on_end =
          [this](const HttpRequest& request, int status, size_t bytes, Clock::duration duration) {
            if (!options_.access_log) return;
            options_.access_log(access_line(request, status, bytes, duration));
          }};
}

// ---- Before the body ------------------------------------------------------------------------

const std::vector<Api::Route>* Api::routes_of(const std::string& path) const {
  if (const auto exact = routes_.find(path); exact != routes_.end()) return &exact->second;
  // The only paths with a name in them.
  const std::string models = "/v1/models/";
  if (path.starts_with(models) && path.size() > models.size()) return &routes_.at(models);
  return nullptr;
}

std::vector<std::pair<std::string, std::string>> Api::routes() const {
  std::vector<std::pair<std::string, std::string>> all;
  for (const auto& [path, routes] : routes_) {
    for (const Route& route : routes) all.emplace_back(route.method, path);
  }
  return all;
}

const Api::Route* Api::route_of(const HttpRequest& request) const {
  const std::vector<Route>* routes = routes_of(request.path);
  if (routes == nullptr) throw plain_error(404);
  const std::string& method = request.method == "HEAD" ? "GET" : request.method;
  const auto found = std::ranges::find(*routes, method, &Route::method);
  if (found == routes->end()) throw plain_error(405);
  return &*found;
}

std::optional<HttpResponse> Api::check_head(const HttpRequest& request) {
  HttpResponse refusal;
  try {
    if (request.method == "OPTIONS") return preflight(request);
    const Route* route = route_of(request);
    if (route->needs_key) check_key(request);
    check_origin(request);
    if (!route->is_work || !is_draining_) return std::nullopt;
    throw shutting_down();
  } catch (const ApiError& error) {
    refusal = error_response(error, form_of(request.path));
  }
  add_cors_headers(request, refusal);
  return refusal;
}

void Api::check_key(const HttpRequest& request) const {
  if (options_.keys.empty()) return;
  const std::string bearer = "Bearer ";
  const std::string header = request.header("Authorization");
  const std::string given = header.starts_with(bearer) ? header.substr(bearer.size()) : "";
  bool is_known = false;
  for (const std::string& key : options_.keys) is_known |= same_secret(given, key);
  if (is_known) return;
  throw ApiError(401, "invalid_api_key",
                 given.empty() ? "no API key; send it as: Authorization: Bearer KEY"
                               : "the API key is not one of this server");
}

bool Api::is_allowed_origin(const std::string& origin) const {
  return std::ranges::any_of(options_.origins, [&](const std::string& allowed) {
    return allowed == "*" || allowed == origin;
  });
}

// A page of another site can make a browser send requests here. With a key it cannot know it; else
// its requests are refused.
void Api::check_origin(const HttpRequest& request) const {
  const std::string origin = request.header("Origin");
  if (origin.empty() || !options_.keys.empty() || request.method == "GET" ||
      request.method == "HEAD") {
    return;
  }
  if (is_allowed_origin(origin) || is_same_host(origin, request.header("Host"))) return;
  throw ApiError(403, "origin_not_allowed",
                 "web pages of " + printable(origin, 80) +
                     " may not call this server; start it with --cors " + printable(origin, 80));
}

void Api::add_cors_headers(const HttpRequest& request, HttpResponse& response) const {
  const std::string origin = request.header("Origin");
  if (origin.empty() || !is_allowed_origin(origin)) return;
  response.headers.emplace_back("Access-Control-Allow-Origin", origin);
  response.headers.emplace_back("Vary", "Origin");
}

HttpResponse Api::preflight(const HttpRequest& request) const {
  if (routes_of(request.path) == nullptr) throw plain_error(404);
  HttpResponse response = {.status = 204};
  add_cors_headers(request, response);
  response.headers.emplace_back("Allow", "GET, POST, OPTIONS");
  if (!is_allowed_origin(request.header("Origin"))) return response;
  response.headers.emplace_back("Access-Control-Allow-Methods", "GET, POST, OPTIONS");
  std::string names = request.header("Access-Control-Request-Headers");
  std::erase_if(names, [](unsigned char c) { return c < ' ' || c > '~'; });
  if (!names.empty()) response.headers.emplace_back("Access-Control-Allow-Headers", names);
  response.headers.emplace_back("Access-Control-Max-Age", "600");
  return response;
}

// ---- Answers --------------------------------------------------------------------------------

HttpResponse Api::respond(const HttpRequest& request) {
  const ErrorForm form = form_of(request.path);
  try {
    return (this->*route_of(request)->handler)(request);
  } catch (const ApiError& error) {
    return error_response(error, form);
  } catch (const Error& error) {
    return error_response(api_error(error.code(), error.what()), form);
  } catch (const Interrupted&) {  // while its model was loaded
    return error_response(shutting_down(), form);
  }
}

ServedModel& Api::model_of(const Fields& body) const {
  return body.has("model") ? model_called(body.text("model")) : models_.first();
}

ServedModel& Api::model_called(const std::string& name) const {
  if (ServedModel* model = models_.find(name)) return *model;
  std::vector<std::string> names;
  for (const ServedModel* model : models_.all()) names.push_back(model->name());
  throw ApiError(
      404, "model_not_found",
      "there is no model '" + printable(name, 80) + "'; this server has " + join(names, ", "));
}

}  // namespace edgellm::serve
