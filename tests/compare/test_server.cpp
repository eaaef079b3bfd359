#include "tests/compare/test_server.h"

#include <algorithm>
#include <chrono>
#include <stdexcept>

namespace edgellm::test {
namespace {

using nlohmann::json;

constexpr const char* kHtml = "<html><body>502 Bad Gateway</body></html>";

void nap(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

// Words of the answer: not all ASCII, so that a piece can end within a character.
std::string word(int i) { return i % 3 == 0 ? " fox" : i % 3 == 1 ? " é" : " 狐"; }

json answer_json(httplib::Response& response, const json& body, int status = 200) {
  response.status = status;
  response.set_content(body.dump(), "application/json");
  return body;
}

}  // namespace

TestServer::TestServer() {
  server_.Get("/api/version", [this](const httplib::Request&, httplib::Response& response) {
    if (is_ollama.get()) {
      answer_json(response, {{"version", "0.12.3"}});
    } else {
      response.status = 404;
      response.set_content(kHtml, "text/html");
    }
  });
  server_.Get("/api/tags", [](const httplib::Request&, httplib::Response& response) {
    answer_json(response, {{"models", {{{"name", "tiny:latest"}, {"size", 123456789}}}}});
  });
  server_.Get("/api/ps", [this](const httplib::Request&, httplib::Response& response) {
    json models = json::array();
    if (!requests().empty()) {
      models.push_back({{"name", "tiny:latest"},
                        {"size", 200000000},
                        {"size_vram", 150000000},
                        {"context_length", 2048}});
    }
    answer_json(response, {{"models", models}});
  });
  server_.Post("/api/show", [](const httplib::Request& request, httplib::Response& response) {
    const json body = json::parse(request.body);
    const std::string model = body.at("model");
    if (model != "tiny" && model != "tiny:latest") {
      answer_json(response, {{"error", "model '" + model + "' not found"}}, 404);
      return;
    }
    answer_json(response,
                {{"details", {{"family", "llama"}, {"quantization_level", "Q4_K_M"}}},
                 {"model_info",
                  {{"general.architecture", "llama"}, {"general.parameter_count", 17000000}}}});
  });
  server_.Post("/api/generate",
               [this](const httplib::Request& request, httplib::Response& response) {
                 answer_ollama(request, response);
               });
  server_.Get("/v1/models", [this](const httplib::Request& request, httplib::Response& response) {
    const std::string needed = key.get();
    if (!needed.empty() && request.get_header_value("Authorization") != "Bearer " + needed) {
      answer_json(response, {{"error", {{"message", "Invalid API Key"}}}}, 401);
      return;
    }
    json list = json::array();
    const json meta = openai_meta.get();
    for (const std::string& model : openai_models.get()) {
      list.push_back({{"id", model}, {"owned_by", owner.get()}});
      if (!meta.is_null()) list.back()["meta"] = meta;
    }
    answer_json(response, {{"object", "list"}, {"data", list}});
  });
  server_.Get("/props", [](const httplib::Request&, httplib::Response& response) {
    answer_json(response,
                {{"build_info", "b9999-abc"}, {"default_generation_settings", {{"n_ctx", 1024}}}});
  });
  server_.Post("/v1/completions",
               [this](const httplib::Request& request, httplib::Response& response) {
                 answer_openai(request, response);
               });
  port_ = server_.bind_to_any_port("127.0.0.1");
  if (port_ <= 0) throw std::runtime_error("no free port");
  thread_ = std::thread([this] { server_.listen_after_bind(); });
  while (!server_.is_running()) nap(1);
}

TestServer::~TestServer() {
  stopping_ = true;
  server_.stop();
  thread_.join();
}

std::vector<json> TestServer::requests() const {
  const std::lock_guard guard(mutex_);
  return requests_;
}

void TestServer::remember(const json& body) {
  const std::lock_guard guard(mutex_);
  requests_.push_back(body);
}

bool TestServer::refuse(httplib::Response& response) const {
  const Behaviour how = behaviour.get();
  if (how.status == 200) return false;
  response.status = how.status;
  if (how.status == 302) response.set_header("Location", "http://elsewhere/login");
  response.set_content(how.error_body, how.content_type);
  return true;
}

void TestServer::answer_ollama(const httplib::Request& request, httplib::Response& response) {
  const json body = json::parse(request.body);
  remember(body);
  if (refuse(response)) return;
  const Behaviour how = behaviour.get();
  const int asked = body.at("options").at("num_predict");
  const int n = std::min(how.tokens, asked) / (how.end_early ? 2 : 1);
  std::vector<std::string> lines;
  for (int i = 0; i < n; i += how.tokens_per_piece) {
    std::string text;
    for (int j = i; j < std::min(n, i + how.tokens_per_piece); ++j) text += word(j);
    lines.push_back(json{{"response", text}, {"done", false}}.dump() + "\n");
  }
  json last = {{"response", ""},
               {"done", true},
               {"done_reason", how.end_early ? "stop" : "length"},
               {"total_duration", 40'000'000},
               {"load_duration", 1'000'000},
               {"eval_count", n},
               {"eval_duration", 2'000'000 * n}};
  if (!how.cached_prompt) {
    last["prompt_eval_count"] = 50;
    last["prompt_eval_duration"] = 5'000'000;
  }
  lines.push_back(last.dump() + "\n");
  stream(response, "application/x-ndjson", std::move(lines),
         json{{"response", ""}, {"done", false}}.dump() + "\n");
}

void TestServer::answer_openai(const httplib::Request& request, httplib::Response& response) {
  const json body = json::parse(request.body);
  remember(body);
  if (refuse(response)) return;
  const Behaviour how = behaviour.get();
  const std::string end = how.extra_events ? "\r\n" : "\n";
  const auto event = [&](const json& data) { return "data: " + data.dump() + end + end; };
  const int asked = body.at("max_tokens");
  const int n = std::min(how.tokens, asked) / (how.end_early ? 2 : 1);
  std::vector<std::string> lines;
  for (int i = 0; i < n; i += how.tokens_per_piece) {
    std::string text;
    for (int j = i; j < std::min(n, i + how.tokens_per_piece); ++j) text += word(j);
    std::string line;
    if (how.extra_events) {
      line = ": still here" + end + end + "event: message" + end + "id: 7" + end +
             event({{"choices", {{{"text", ""}, {"finish_reason", nullptr}}}}});
    }
    lines.push_back(line + event({{"choices", {{{"text", text}, {"finish_reason", nullptr}}}}}));
  }
  json last = {{"choices", {{{"text", ""}, {"finish_reason", how.end_early ? "stop" : "length"}}}}};
  std::string rest = event(last);
  if (!how.no_usage) {
    json figures = {{"choices", json::array()},
                    {"usage", {{"prompt_tokens", 51}, {"completion_tokens", n}}}};
    if (owner.get() == "llamacpp") {
      figures["timings"] = {{"prompt_n", how.cached_prompt ? 1 : 50},
                            {"cache_n", how.cached_prompt ? 50 : 1},
                            {"prompt_ms", 5.25},
                            {"prompt_per_second", 9523.8},
                            {"predicted_n", n},
                            {"predicted_per_second", 321.5},
                            {"predicted_ms", 2.5 * n}};
    }
    rest += event(figures);
  }
  lines.push_back(rest + "data: [DONE]" + end + end);
  stream(response, "text/event-stream", std::move(lines),
         event({{"choices", {{{"text", ""}, {"finish_reason", nullptr}}}}}));
}

void TestServer::stream(httplib::Response& response, const std::string& content_type,
                        std::vector<std::string> lines, const std::string& empty_line) {
  const bool ollama = content_type == "application/x-ndjson";
  const Behaviour how = behaviour.get();
  if (how.no_end) lines.pop_back();
  const std::string sse = ollama ? "" : "data: ";
  const std::string end = ollama ? "\n" : "\n\n";
  if (!how.garbage.empty()) lines.insert(lines.begin() + 1, sse + how.garbage + end);
  if (!how.stream_error.empty()) {
    lines.insert(lines.begin() + 1, sse + json{{"error", how.stream_error}}.dump() + end);
  }
  if (how.buffered) {
    std::string all;
    for (const std::string& line : lines) all += line;
    lines = {all};
  }
  response.set_chunked_content_provider(
      content_type, [this, how, lines, empty_line](size_t, httplib::DataSink& sink) {
        nap(how.first_ms);
        const auto write = [&](const std::string& text) {
          const size_t step = how.split_bytes > 0 ? static_cast<size_t>(how.split_bytes)
                                                  : std::max<size_t>(1, text.size());
          for (size_t at = 0; at < text.size(); at += step) {
            const size_t n = std::min(step, text.size() - at);
            if (!sink.write(text.data() + at, n)) return false;
          }
          return true;
        };
        while (!how.flood.empty()) {
          if (stopping_ || !write(how.flood)) return false;
        }
        for (size_t i = 0; i < lines.size(); ++i) {
          if (static_cast<int>(i) == how.cut_after) return false;
          while (static_cast<int>(i) == how.stall_after || how.endless) {
            nap(5);
            if (stopping_) return false;
            if (how.endless && !write(empty_line)) return false;
          }
          if (!write(lines[i])) return false;
          if (i + 2 < lines.size()) nap(how.piece_ms);
        }
        sink.done();
        return true;
      });
}

}  // namespace edgellm::test
