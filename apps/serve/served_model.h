// A model that is loaded and answers requests.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/requests/many_sequences.h"
#include "apps/requests/prompts.h"
#include "apps/requests/request.h"
#include "apps/serve/engine_thread.h"
#include "apps/serve/http_server.h"
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
};

class ServedModel {
 public:
  // Loads the weights. Throws Error as Session does.
  ServedModel(const ModelChoice& choice, const SessionOptions& session, const ModelOptions& options,
              const Messages& messages = messages_to_stderr());

  const std::string& name() const { return name_; }
  // What a request may call the model: its name, also with ":latest" as Ollama has it.
  bool is_called(const std::string& name) const;

  const ModelFile& file() const { return session_.model(); }
  const Tokenizer* tokenizer() const { return tokenizer_; }
  const BackendInfo& info() const { return session_.backend().info(); }
  RequestPrompts& prompts() { return prompts_; }
  bool has_chat_template() const { return !file().tokenizer().chat_template.empty(); }
  EngineThread& engine() { return *engine_; }
  const Session& session() const { return session_; }

  // What the fields that a request lacks mean: OpenAI's defaults, or Ollama's, or those of the
  // command line.
  const RequestDefaults& completion_defaults() const { return completion_defaults_; }
  const RequestDefaults& chat_defaults() const { return chat_defaults_; }
  const RequestDefaults& ollama_defaults() const { return ollama_defaults_; }
  // A sampled request without a seed gets one of its own, not that of the command line.
  bool draws_seeds() const { return draws_seeds_; }

 private:
  Session session_;
  const Tokenizer* tokenizer_;
  std::string name_;
  RequestPrompts prompts_;
  RequestDefaults completion_defaults_;
  RequestDefaults chat_defaults_;
  RequestDefaults ollama_defaults_;
  bool draws_seeds_;
  std::unique_ptr<EngineThread> engine_;
};

// A request on its way through the engine. Ends with the object, if not before.
class AnswerRun {
 public:
  // Throws ApiError where the request cannot run, or finds the queue full.
  AnswerRun(ServedModel& model, AnswerRequest wanted, bool is_streamed, const Client& client,
            Clock::time_point until);
  ~AnswerRun();
  AnswerRun(const AnswerRun&) = delete;
  AnswerRun& operator=(const AnswerRun&) = delete;

  const LiveRequest& request() const { return *live_; }

  // The next pieces; none when all answers have ended or the client has gone. Throws ApiError where
  // an answer failed, or time is up.
  std::vector<Piece> next();

  // The client has gone, or takes nothing more.
  bool is_abandoned() const { return is_abandoned_; }
  void abandon() { is_abandoned_ = true; }

 private:
  ServedModel& model_;
  const Client& client_;
  const Clock::time_point until_;
  std::shared_ptr<LiveRequest> live_;
  size_t n_unfinished_ = 0;
  bool is_abandoned_ = false;
};

}  // namespace edgellm::serve
