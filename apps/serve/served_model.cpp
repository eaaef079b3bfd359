#include "apps/serve/served_model.h"

#include <utility>

#include "apps/requests/openai_answer.h"

namespace edgellm::serve {
namespace {

// OpenAI's default of a completion that says nothing.
constexpr int kCompletionTokens = 16;

// Those of OpenAI's API.
SamplingChoice openai_choice() {
  SamplingChoice choice;
  choice.temperature = 1;
  return choice;
}

// Those of Ollama's documents, but its penalty of repetitions in the last 64 tokens: ours would be
// one of all tokens.
SamplingChoice ollama_choice() {
  SamplingChoice choice;
  choice.temperature = 0.8;
  choice.top_k = 40;
  choice.top_p = 0.9;
  return choice;
}

// `choice` with what it leaves open as `otherwise` says.
SamplingOptions options_or(const SamplingChoice& choice, const SamplingChoice& otherwise,
                           const ModelFile& model) {
  SamplingChoice merged = choice;
  if (!merged.model_defaults && !merged.temperature) {
    merged.temperature = otherwise.temperature;
    if (!merged.top_k) merged.top_k = otherwise.top_k;
    if (!merged.top_p) merged.top_p = otherwise.top_p;
  }
  return sampling_options(merged, model.tokenizer(), model.path());
}

}  // namespace

std::string hub_reference(const std::string& name) {
  for (const std::string host : {"hf.co/", "huggingface.co/"}) {
    if (name.starts_with(host)) return "hf:" + name.substr(host.size());
  }
  return name;
}

ServedModel::ServedModel(const ModelChoice& choice, const SessionOptions& session,
                         const ModelOptions& options, const Messages& messages)
    : file_(std::make_shared<const ModelFile>(open_model(choice, messages))),
      tokenizer_(load_tokenizer(*file_)),
      name_(model_name(*file_)),
      context_(engine_options(session, file_->config(), /*on_gpu=*/false).context),
      prompts_(*file_, tokenizer(), options.parse_special),
      pooling_(options.pooling),
      draws_seeds_(!options.sampling.seed) {
  chat_defaults_.max_tokens = options.max_tokens;
  chat_defaults_.stop = options.stop;
  chat_defaults_.system = options.system;
  chat_defaults_.sampling = options_or(options.sampling, openai_choice(), file());
  completion_defaults_ = ollama_defaults_ = chat_defaults_;
  if (!options.limits_completions) completion_defaults_.max_tokens = kCompletionTokens;
  ollama_defaults_.sampling = options_or(options.sampling, ollama_choice(), file());
}

bool ServedModel::is_called(const std::string& name) const {
  const std::string latest = ":latest";
  const bool is_latest = name.ends_with(latest);
  const std::string plain = name.substr(0, name.size() - (is_latest ? latest.size() : 0));
  if (plain == name_) return true;
  // Of a pulled model: "hf:ORG/NAME@COMMIT", perhaps with a file.
  const std::string reference = hub_reference(plain);
  return reference.starts_with("hf:") && reference.find('@') == std::string::npos &&
         file().provenance().source.starts_with(reference + "@");
}

LoadedModel::LoadedModel(const ServedModel& model, Session&& session, const ModelOptions& options)
    : session_(std::move(session)) {
  engine_ = std::make_unique<Engines>(
      start_many_sequences(session_, options.sequences), model.tokenizer(),
      EnginesOptions{.scheduler = {.max_batch_tokens = options.sequences.max_batch_tokens},
                     .queue = options.queue});
}

}  // namespace edgellm::serve
