// Ollama's native API (docs/api.md of ollama/ollama).
#include <algorithm>

#include "apps/compare/clients/event_reader.h"
#include "apps/compare/clients/measured_json.h"
#include "apps/compare/clients/peer.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/lines.h"
#include "base/text.h"

namespace edgellm::peers {
namespace {

// Longer than any pause between two answers, so that no run pays for loading.
constexpr const char* kKeepAlive = "10m";

// A name without a tag means ":latest".
std::string full_name(const std::string& name) {
  const size_t slash = name.rfind('/');
  const size_t from = slash == std::string::npos ? 0 : slash;
  return name.find(':', from) == std::string::npos ? name + ":latest" : name;
}

// The model of that name in the lists of /api/tags and /api/ps.
const nlohmann::json* find_model(const nlohmann::json& list, const std::string& name) {
  const nlohmann::json* models = find(list, "models");
  if (models == nullptr || !models->is_array()) return nullptr;
  for (const nlohmann::json& model : *models) {
    for (const char* field : {"name", "model"}) {
      const auto text = text_of(model, field);
      if (text && full_name(*text) == full_name(name)) return &model;
    }
  }
  return nullptr;
}

class Ollama : public Peer {
 public:
  Ollama(const Address& address, HttpOptions options, std::string model)
      : client_(address, std::move(options)), model_(std::move(model)) {
    const std::string path = "/api/version";
    const HttpResponse response = client_.get(path);
    const auto body = parse_json(response.body);
    const auto version = body ? text_of(*body, "version") : std::nullopt;
    if (!response.ok() || !version) {
      client_.fail(response, path,
                   response.location.empty() && response.status != 401 && response.status != 403
                       ? "that is no Ollama: is OLLAMA_HOST its address? An OpenAI-compatible "
                         "server is named with --url"
                       : "");
    }
    version_ = *version;
    show_ = show();
  }

  Completion complete(const CompletionRequest& request) override {
    const nlohmann::json body = {{"model", model_},
                                 {"prompt", request.prompt},
                                 {"raw", true},  // no template, as on our side
                                 {"stream", true},
                                 {"keep_alive", kKeepAlive},
                                 {"options",
                                  {{"temperature", 0},
                                   {"seed", 0},
                                   {"repeat_penalty", 1.0},
                                   {"num_predict", request.max_tokens},
                                   {"num_ctx", request.context}}}};
    const std::string path = "/api/generate";
    Completion result;
    nlohmann::json last;
    std::string complaint;
    LineSplitter lines(kMaxAnswerBytes);
    const auto on_line = [&](std::string_view line) {
      const int64_t now = now_ns();
      if (line.empty()) return true;
      const auto json = parse_json(line);
      if (!json || !json->is_object()) {
        complaint = "sent a line that is not JSON: " + printable(line, 80);
        return false;
      }
      if (const std::string error = error_message(*json); !error.empty()) {
        complaint = "stopped with the error: " + error;
        return false;
      }
      // "thinking" is text as well: of models that cannot be kept from it.
      std::string text = text_of(*json, "thinking").value_or("");
      text += text_of(*json, "response").value_or("");
      if (result.text.size() + text.size() > kMaxAnswerBytes) {
        complaint = "sent more than 16 MiB of text";
        return false;
      }
      if (!text.empty()) {
        result.text += text;
        result.piece_ns.push_back(now);
        result.piece_bytes.push_back(text.size());
      }
      const nlohmann::json* done = find(*json, "done");
      if (done != nullptr && done->is_boolean() && done->get<bool>()) {
        result.finished_ns = now;
        last = *json;
        return false;
      }
      return true;
    };
    result.sent_ns = now_ns();
    const HttpResponse response = client_.post_streaming(
        path, body, [&](std::string_view bytes) { return lines.push(bytes, on_line); },
        [&] { return std::to_string(result.piece_ns.size()) + " pieces of text"; });
    if (!response.ok()) client_.fail(response, path);
    if (lines.is_too_long()) complaint = "sent a line of more than 16 MiB";
    if (complaint.empty() && result.finished_ns == 0) {
      // The last line may lack its newline.
      if (!lines.rest().empty()) on_line(lines.rest());
      if (complaint.empty() && result.finished_ns == 0) {
        complaint = "ended its answer without \"done\" after " +
                    std::to_string(result.piece_ns.size()) + " pieces of text";
      }
    }
    if (!complaint.empty()) {
      throw Error(ExitCode::kPeerUnavailable, "Ollama at " + client_.address().text() + " " +
                                                  complaint + "; see its log (ollama serve)");
    }
    read_figures(last, result);
    return result;
  }

  PeerInfo info() override {
    PeerInfo info;
    info.software = "Ollama";
    info.version = version_;
    info.address = client_.address().text();
    info.api = "Ollama's native API (raw)";
    info.model = model_;
    const std::string silent = "Ollama does not say";
    info.architecture = measured(text_of(show_, "model_info/general.architecture"), silent);
    if (!info.architecture) info.architecture = measured(text_of(show_, "details/family"), silent);
    info.parameters = measured_bytes(show_, "model_info/general.parameter_count", silent);
    info.quantisation = measured(text_of(show_, "details/quantization_level"), silent);
    const nlohmann::json tags = list("/api/tags");
    const nlohmann::json* tag = find_model(tags, model_);
    info.bytes = NotAvailable{"Ollama does not list the model in /api/tags"};
    if (tag != nullptr) info.bytes = measured_bytes(*tag, "size", silent);
    const nlohmann::json running = list("/api/ps");
    const nlohmann::json* loaded = find_model(running, model_);
    if (loaded == nullptr) {
      const NotAvailable missing{"the model is not loaded (/api/ps)"};
      info.context = missing;
      info.device = missing;
      info.memory_bytes = missing;
      info.gpu_memory_bytes = missing;
      return info;
    }
    info.context = measured(count_of(*loaded, "context_length"), silent);
    info.memory_bytes = measured_bytes(*loaded, "size", silent);
    info.gpu_memory_bytes = measured_bytes(*loaded, "size_vram", silent);
    info.device = info.gpu_memory_bytes.map([&](uint64_t gpu) -> std::string {
      if (gpu == 0) return "CPU";
      const uint64_t all = info.memory_bytes ? *info.memory_bytes : gpu;
      if (gpu >= all) return "GPU";
      return "GPU and CPU (" + std::to_string(gpu * 100 / all) + "% of the memory on the GPU)";
    });
    return info;
  }

 private:
  nlohmann::json show() {
    const std::string path = "/api/show";
    const HttpResponse response = client_.post(path, {{"model", model_}});
    const auto body = parse_json(response.body);
    if (response.status == 404 && body && !error_message(*body).empty()) {
      throw Error(ExitCode::kPeerUnavailable, "Ollama at " + client_.address().text() +
                                                  " has no model " + model_ + known_models() +
                                                  "; type: ollama pull " + model_);
    }
    if (!response.ok() || !body || !body->is_object()) client_.fail(response, path);
    return *body;
  }

  std::string known_models() {
    const nlohmann::json tags = list("/api/tags");
    const nlohmann::json* models = find(tags, "models");
    std::vector<std::string> names;
    if (models != nullptr && models->is_array()) {
      for (const nlohmann::json& model : *models) {
        if (const auto name = text_of(model, "name")) names.push_back(*name);
      }
    }
    if (names.empty()) return "";
    return " (it has " + join(names, ", ") + ")";
  }

  nlohmann::json list(const std::string& path) {
    const HttpResponse response = client_.get(path);
    const auto body = parse_json(response.body);
    if (!response.ok() || !body) client_.fail(response, path);
    return *body;
  }

  static void read_figures(const nlohmann::json& last, Completion& result) {
    const auto field = [&](const char* name) {
      return measured(count_of(last, name), std::string("Ollama's answer has no ") + name);
    };
    ServerFigures& server = result.server;
    // It leaves fields out that are 0: of a prompt that was in its cache there is no count.
    const NotAvailable cached{"Ollama gives no figure: the prompt was in its cache"};
    server.prompt_tokens = measured(count_of(last, "prompt_eval_count"), cached.reason);
    server.prompt_ns = measured(count_of(last, "prompt_eval_duration"), cached.reason);
    server.cached_tokens = NotAvailable{"Ollama does not say"};
    server.eval_tokens = field("eval_count");
    server.eval_ns = field("eval_duration");
    server.load_ns = field("load_duration");
    server.total_ns = field("total_duration");
    // As `ollama run --verbose` computes its two rates.
    const auto rate = [](const Measured<int64_t>& tokens,
                         const Measured<int64_t>& ns) -> Measured<double> {
      if (!tokens) return tokens.missing();
      if (!ns) return ns.missing();
      if (*ns == 0) return NotAvailable{"Ollama says that it took no time"};
      return static_cast<double>(*tokens) * 1e9 / static_cast<double>(*ns);
    };
    server.prompt_tps = rate(server.prompt_tokens, server.prompt_ns);
    server.eval_tps = rate(server.eval_tokens, server.eval_ns);
    result.total_prompt_tokens = server.prompt_tokens;
    result.finish_reason = text_of(last, "done_reason").value_or("not said");
  }

  HttpClient client_;
  std::string model_;
  std::string version_;
  nlohmann::json show_;
};

}  // namespace

std::unique_ptr<Peer> connect_ollama(const Address& address, HttpOptions options,
                                     const std::string& model) {
  return std::make_unique<Ollama>(address, std::move(options), model);
}

}  // namespace edgellm::peers
