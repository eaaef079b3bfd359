// OpenAI's completions API, as llama-server, vLLM and others serve it, and what llama-server, vLLM
// and edgellm's own server report beyond it.
#include <cmath>

#include "apps/compare/clients/event_reader.h"
#include "apps/compare/clients/measured_json.h"
#include "apps/compare/clients/peer.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/lines.h"
#include "base/text.h"

namespace edgellm::peers {
namespace {

enum class Software { kLlamaServer, kVllm, kEdgellm, kOther };

// By what /v1/models says of its models.
Software software_of(const nlohmann::json& model) {
  const std::string owner = text_of(model, "owned_by").value_or("");
  if (owner == "llamacpp") return Software::kLlamaServer;
  if (owner == "vllm") return Software::kVllm;
  if (owner == "edgellm") return Software::kEdgellm;
  return Software::kOther;
}

// Milliseconds with a fraction, as llama-server gives them.
Measured<int64_t> nanoseconds(const nlohmann::json& object, const char* path,
                              const std::string& reason) {
  const std::optional<double> ms = number_of(object, path);
  if (!ms || !(*ms >= 0 && *ms <= 1e12)) return NotAvailable{reason};
  return static_cast<int64_t>(std::llround(*ms * 1e6));
}

// What the events of one answer have said so far.
class Answer {
 public:
  // Takes one event. False when no later one matters.
  bool push(const std::string& data, int64_t now) {
    if (data == "[DONE]") {
      done_ = true;
      return false;
    }
    const auto json = parse_json(data);
    if (!json || !json->is_object()) {
      complaint_ = "sent an event that is not JSON: " + printable(data, 80);
      return false;
    }
    if (const std::string error = error_message(*json); !error.empty()) {
      complaint_ = "stopped with the error: " + error;
      return false;
    }
    // Both may come with any event. Most servers send them with the last.
    for (const char* name : {"usage", "timings"}) {
      const nlohmann::json* part = find(*json, name);
      if (part != nullptr && part->is_object()) figures_[name] = *part;
    }
    const nlohmann::json* choices = find(*json, "choices");
    if (choices == nullptr || !choices->is_array() || choices->empty()) return true;
    const nlohmann::json& choice = choices->front();
    if (const auto text = text_of(choice, "text"); text && !text->empty()) {
      if (result_.text.size() + text->size() > kMaxAnswerBytes) {
        complaint_ = "sent more than 16 MiB of text";
        return false;
      }
      result_.text += *text;
      result_.piece_ns.push_back(now);
      result_.piece_bytes.push_back(text->size());
    }
    if (const auto reason = text_of(choice, "finish_reason")) {
      result_.finish_reason = *reason;
      result_.finished_ns = now;
    }
    return true;
  }

  void set_sent(int64_t now) { result_.sent_ns = now; }
  size_t pieces() const { return result_.piece_ns.size(); }
  bool done() const { return done_; }
  const std::string& complaint() const { return complaint_; }
  bool finished() const { return result_.finished_ns != 0; }

  Completion take() {
    const std::string silent = "the server does not say";
    ServerFigures& server = result_.server;
    result_.total_prompt_tokens = measured(count_of(figures_, "usage/prompt_tokens"), silent);
    server.cached_tokens = measured(count_of(figures_, "timings/cache_n"), silent);
    if (!server.cached_tokens) {
      server.cached_tokens =
          measured(count_of(figures_, "usage/prompt_tokens_details/cached_tokens"), silent);
    }
    server.prompt_tokens = measured(count_of(figures_, "timings/prompt_n"), silent);
    server.prompt_ns = nanoseconds(figures_, "timings/prompt_ms", silent);
    server.eval_tokens = measured(count_of(figures_, "timings/predicted_n"), silent);
    if (!server.eval_tokens) {
      server.eval_tokens = measured(count_of(figures_, "usage/completion_tokens"), silent);
    }
    server.eval_ns = nanoseconds(figures_, "timings/predicted_ms", silent);
    server.prompt_tps = measured(number_of(figures_, "timings/prompt_per_second"), silent);
    server.eval_tps = measured(number_of(figures_, "timings/predicted_per_second"), silent);
    server.load_ns = NotAvailable{"the model was loaded when the server started"};
    server.total_ns = NotAvailable{silent};
    return std::move(result_);
  }

 private:
  Completion result_;
  nlohmann::json figures_ = nlohmann::json::object();
  std::string complaint_;
  bool done_ = false;
};

class OpenAi : public Peer {
 public:
  OpenAi(const Address& address, HttpOptions options, const std::optional<std::string>& model)
      : client_(address, std::move(options)) {
    choose_model(model);
    software_ = software_of(entry_);
    const bool has_props = software_ == Software::kLlamaServer || software_ == Software::kEdgellm;
    if (has_props) props_ = optional_json("/props");
    if (software_ == Software::kVllm) props_ = optional_json("/version");
  }

  Completion complete(const CompletionRequest& request) override {
    nlohmann::json body = {{"model", model_},
                           {"prompt", request.prompt},
                           {"max_tokens", request.max_tokens},
                           {"temperature", 0},
                           {"seed", 0},
                           {"stream", true},
                           {"stream_options", {{"include_usage", true}}}};
    if (knows_ignore_eos()) body["ignore_eos"] = true;
    const std::string path = "/v1/completions";
    Answer answer;
    LineSplitter lines(kMaxAnswerBytes);
    EventReader events;
    const auto on_line = [&](std::string_view line) {
      if (events.push(line)) return answer.push(events.data(), now_ns());
      return !events.is_too_long();
    };
    answer.set_sent(now_ns());
    const HttpResponse response = client_.post_streaming(
        path, body, [&](std::string_view bytes) { return lines.push(bytes, on_line); },
        [&] { return std::to_string(answer.pieces()) + " pieces of text"; });
    if (!response.ok()) client_.fail(response, path);
    std::string complaint = answer.complaint();
    if (lines.is_too_long()) complaint = "sent a line of more than 16 MiB";
    if (events.is_too_long()) complaint = "sent an event of more than 16 MiB";
    if (complaint.empty() && !answer.finished()) {
      complaint = answer.pieces() == 0 && !answer.done()
                      ? "did not answer " + path + " with a stream of events"
                      : "ended its answer without a finish_reason after " +
                            std::to_string(answer.pieces()) + " pieces of text";
    }
    if (!complaint.empty()) {
      throw Error(ExitCode::kPeerUnavailable,
                  "the server at " + client_.address().text() + " " + complaint + "; see its log");
    }
    return answer.take();
  }

  PeerInfo info() override {
    const std::string silent = "OpenAI's API does not tell";
    PeerInfo info;
    info.address = client_.address().text();
    info.api = "OpenAI's completions API";
    info.model = model_;
    info.ignores_stop_tokens = knows_ignore_eos();
    info.architecture = NotAvailable{silent};
    info.device = NotAvailable{silent};
    info.memory_bytes = NotAvailable{silent};
    info.gpu_memory_bytes = NotAvailable{silent};
    info.version = NotAvailable{silent};
    info.parameters = measured_bytes(entry_, "meta/n_params", silent);
    info.bytes = measured_bytes(entry_, "meta/size", silent);
    info.quantisation = measured(text_of(entry_, "meta/ftype"), silent);
    info.context = measured(count_of(entry_, "max_model_len"), silent);
    switch (software_) {
      case Software::kLlamaServer:
        info.software = "llama-server";
        info.version = measured(text_of(props_, "build_info"), silent);
        info.context = measured(count_of(props_, "default_generation_settings/n_ctx"), silent);
        break;
      case Software::kVllm:
        info.software = "vLLM";
        info.version = measured(text_of(props_, "version"), silent);
        break;
      case Software::kEdgellm:
        info.software = "edgellm serve";
        info.version = measured(text_of(props_, "build_info"), silent);
        info.device = measured(text_of(props_, "device"), silent);
        break;
      case Software::kOther:
        info.software = "OpenAI-compatible server";
        break;
    }
    return info;
  }

 private:
  // Others may refuse a field that is not OpenAI's.
  bool knows_ignore_eos() const { return software_ != Software::kOther; }

  void choose_model(const std::optional<std::string>& wanted) {
    const std::string path = "/v1/models";
    const HttpResponse response = client_.get(path);
    const auto body = parse_json(response.body);
    const nlohmann::json* list = body ? find(*body, "data") : nullptr;
    if (!response.ok() || list == nullptr || !list->is_array()) {
      client_.fail(response, path,
                   response.status == 404 ? "--url takes the address without /v1/..., as in "
                                            "http://127.0.0.1:8080"
                                          : "");
    }
    std::vector<std::string> names;
    for (const nlohmann::json& entry : *list) {
      const auto name = text_of(entry, "id");
      if (!name) continue;
      names.push_back(*name);
      if (!wanted || *wanted == *name) entry_ = entry;
    }
    const std::string server = "the server at " + client_.address().text();
    if (names.empty()) {
      throw Error(ExitCode::kPeerUnavailable,
                  server +
                      " has no model; start one with a model, for example: llama-server -m "
                      "MODEL.gguf");
    }
    if (!wanted && names.size() > 1) {
      throw Error(ExitCode::kUsage,
                  server + " has several models; choose one with --model: " + join(names, ", "));
    }
    if (!entry_.is_object()) {
      throw Error(ExitCode::kPeerUnavailable,
                  server + " has no model " + *wanted +
                      "; use --model with one that it has: " + join(names, ", "));
    }
    model_ = wanted.value_or(names.front());
  }

  // Empty where the server does not have it: it is for the report alone.
  nlohmann::json optional_json(const std::string& path) {
    const HttpResponse response = client_.get(path);
    if (!response.ok()) return nlohmann::json::object();
    return parse_json(response.body).value_or(nlohmann::json::object());
  }

  HttpClient client_;
  std::string model_;
  nlohmann::json entry_;  // of /v1/models
  nlohmann::json props_ = nlohmann::json::object();
  Software software_ = Software::kOther;
};

}  // namespace

std::unique_ptr<Peer> connect_openai(const Address& address, HttpOptions options,
                                     const std::optional<std::string>& model) {
  return std::make_unique<OpenAi>(address, std::move(options), model);
}

}  // namespace edgellm::peers
