// A model that a server offers: what can be said of it without its weights, and the weights on its
// devices with the engines that run them.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/requests/many_sequences.h"
#include "apps/requests/prompts.h"
#include "apps/requests/request.h"
#include "apps/serve/embedding.h"
#include "apps/serve/engines.h"
#include "apps/session/sampling_choice.h"
#include "apps/session/session.h"

namespace edgellm::serve {

struct ModelOptions {
  ManySequences sequences;
  int queue = 0;
  SamplingChoice sampling;
  int max_tokens = -1;
  bool limits_completions = false;  // max_tokens was given: it holds for completions as well
  std::vector<std::string> stop;
  std::optional<std::string> system;
  bool parse_special = false;
  Pooling pooling = Pooling::kMean;
};

// "hf:ORG/NAME" for "hf.co/ORG/NAME" and "huggingface.co/ORG/NAME", as Ollama's users write it; any
// other name as it is.
std::string hub_reference(const std::string& name);

class ServedModel {
 public:
  // Reads the header, the metadata and the tokenizer. Throws Error as open_model() does, and for
  // options that the model cannot have.
  ServedModel(const ModelChoice& choice, const SessionOptions& session, const ModelOptions& options,
              const Messages& messages);

  const std::string& name() const { return name_; }
  // What a request may call the model: its name, or what it was pulled as ("hf:ORG/NAME",
  // "hf.co/ORG/NAME"), each also with ":latest" as Ollama has it.
  bool is_called(const std::string& name) const;

  const std::shared_ptr<const ModelFile>& shared_file() const { return file_; }
  const ModelFile& file() const { return *file_; }
  const Tokenizer* tokenizer() const { return tokenizer_ ? &*tokenizer_ : nullptr; }
  int context() const { return context_; }  // positions that a request can have
  RequestPrompts& prompts() { return prompts_; }
  bool has_chat_template() const { return !file().tokenizer().chat_template.empty(); }

  // What the fields that a request lacks mean: OpenAI's defaults, or Ollama's, or those of the
  // command line.
  const RequestDefaults& completion_defaults() const { return completion_defaults_; }
  const RequestDefaults& chat_defaults() const { return chat_defaults_; }
  const RequestDefaults& ollama_defaults() const { return ollama_defaults_; }
  Pooling pooling() const { return pooling_; }
  // A sampled request without a seed gets one of its own, not that of the command line.
  bool draws_seeds() const { return draws_seeds_; }

 private:
  std::shared_ptr<const ModelFile> file_;
  std::optional<Tokenizer> tokenizer_;
  std::string name_;
  int context_;
  RequestPrompts prompts_;
  RequestDefaults completion_defaults_;
  RequestDefaults chat_defaults_;
  RequestDefaults ollama_defaults_;
  Pooling pooling_;
  bool draws_seeds_;
};

class LoadedModel {
 public:
  // Checks the file's contents and loads the weights. `model` must outlive the object. Throws Error
  // as Session::start() does.
  LoadedModel(const ServedModel& model, Session&& session, const ModelOptions& options);

  const Backend& backend() const { return session_.backend(); }
  const BackendInfo& info() const { return backend().info(); }
  Engines& engine() { return *engine_; }

 private:
  Session session_;
  std::unique_ptr<Engines> engine_;
};

}  // namespace edgellm::serve
