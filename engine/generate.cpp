#include "engine/generate.h"

#include <algorithm>

#include "base/clock.h"
#include "base/error.h"
#include "engine/prefill.h"

namespace edgellm {
namespace {

void check_prompt(const Backend& backend, const GenerateRequest& request) {
  const int vocab = backend.model().config().vocab;
  if (request.prompt_ids.empty()) {
    throw Error(ExitCode::kUsage, "the prompt is empty: give at least one token");
  }
  for (int32_t id : request.prompt_ids) {
    if (id < 0 || id >= vocab) {
      throw Error(ExitCode::kUsage,
                  "token id " + std::to_string(id) + " is outside the model's vocabulary of " +
                      std::to_string(vocab) + " (ids from 0 to " + std::to_string(vocab - 1) + ")");
    }
  }
  require(
      request.n_cached >= 0 && static_cast<size_t>(request.n_cached) < request.prompt_ids.size(),
      "generate: the cache holds less than the prompt");
  if (request.prompt_ids.size() >= static_cast<size_t>(backend.info().context)) {
    throw Error(ExitCode::kPromptDoesNotFit,
                "the prompt has " + std::to_string(request.prompt_ids.size()) +
                    " tokens and the answer needs room for one more, but the context holds " +
                    std::to_string(backend.info().context) +
                    "; shorten the prompt or give a larger context (-c, at most " +
                    std::to_string(backend.model().config().max_context) + " for this model)");
  }
}

void check_choice(const GenerateRequest& request, int vocab) {
  const std::string problem = sampling_problem(request.sampling);
  if (!problem.empty()) throw Error(ExitCode::kUsage, problem);
  for (const LogitBias& entry : request.sampling.logit_bias) {
    if (entry.id < 0 || entry.id >= vocab) {
      throw Error(ExitCode::kUsage, "logit_bias names token id " + std::to_string(entry.id) +
                                        ", which is outside the model's vocabulary of " +
                                        std::to_string(vocab) + " (ids from 0 to " +
                                        std::to_string(vocab - 1) + ")");
    }
  }
  const int most = std::min(vocab, kMaxTopLogprobs);
  if (request.top_logprobs < 0 || request.top_logprobs > most) {
    throw Error(ExitCode::kUsage, "--logprobs is " + std::to_string(request.top_logprobs) +
                                      "; use a number from 0 to " + std::to_string(most));
  }
}

// One run of generate(), of at least one token.
class Generation {
 public:
  Generation(Backend& backend, const GenerateRequest& request)
      : backend_(backend), request_(request), start_(now_ns()), position_(request.n_cached) {
    backend.set_choice(
        kSequence,
        {.sampling = request.sampling, .banned = request.banned(), .prompt = request.prompt_ids});
    if (request.on_logprobs) top_.resize(static_cast<size_t>(request.top_logprobs));
  }

  GenerateResult run() {
    if (prefill()) {
      decode();
      result_.eval_ns = last_token_at_ - start_ - result_.ttft_ns;
    }
    result_.n_cached = position_;
    return std::move(result_);
  }

 private:
  static constexpr int32_t kSequence = 0;

  bool interrupted() const { return request_.interrupted && request_.interrupted(); }

  // What a step gives: the next id, and its log-probabilities where they are wanted.
  Outputs next_outputs() {
    Outputs outputs;
    outputs.ids = {&next_, 1};
    if (request_.on_logprobs) {
      outputs.logprobs = {&sums_, 1};
      outputs.top = top_;
    }
    return outputs;
  }

  // Feeds the prompt and chooses the first id. False where the run was interrupted before.
  bool prefill() {
    Prefill prefill(backend_, kSequence, position_,
                    request_.prompt_ids.subspan(static_cast<size_t>(position_)));
    while (!prefill.is_done() && !interrupted()) prefill.run_pass_for_last_id(next_outputs());
    position_ += static_cast<int>(prefill.n_fed());
    result_.prompt_eval_ns = now_ns() - start_;
    if (prefill.is_done()) return true;
    result_.finish_reason = FinishReason::kInterrupted;
    return false;
  }

  void decode() {
    if (!accept(next_)) return;
    if (request_.on_logprobs) {
      decode_with_logprobs();
      return;
    }
    // accept() says when to end; the bound keeps the backend from running ahead of it.
    int n_max = backend_.info().context - position_ - 1;
    if (request_.max_tokens >= 0) n_max = std::min(n_max, request_.max_tokens - 1);
    backend_.decode(kSequence, next_, position_, n_max, [this](int32_t id) {
      ++position_;
      return accept(id);
    });
  }

  void decode_with_logprobs() {
    const int32_t row = 0;
    Outputs outputs = next_outputs();
    outputs.rows = {&row, 1};
    do {
      backend_.forward({{&next_, 1}, {&kSequence, 1}, {&position_, 1}}, outputs);
      ++position_;
    } while (accept(next_));
  }

  // Takes the id that was chosen for `position_`; returns whether the run continues.
  bool accept(int32_t id) {
    if (id < 0) throw every_id_is_banned();
    if (request_.on_logprobs) request_.on_logprobs(token_logprobs(sums_, top_));
    const int64_t token_at = now_ns();
    if (result_.token_ids.empty()) {
      result_.ttft_ns = token_at - start_;
    } else {
      result_.inter_token_ns.push_back(token_at - last_token_at_);
    }
    last_token_at_ = token_at;
    result_.token_ids.push_back(id);
    const bool wants_more = !request_.on_token || request_.on_token(id);
    const EndRules rules{request_.stop_ids, request_.ignore_stop_ids, request_.max_tokens,
                         backend_.info().context};
    std::optional<FinishReason> reason =
        reason_to_end(rules, id, result_.token_ids.size(), position_, wants_more);
    if (!reason && interrupted()) reason = FinishReason::kInterrupted;
    if (reason) result_.finish_reason = *reason;
    return !reason;
  }

  Backend& backend_;
  const GenerateRequest& request_;
  const int64_t start_;
  int position_;       // of next_; the cache holds the positions before it
  int32_t next_ = -1;  // the id that was chosen last
  LogprobSums sums_{};
  std::vector<LogprobLogit> top_;
  int64_t last_token_at_ = 0;
  GenerateResult result_;
};

}  // namespace

const char* to_string(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kStopString:
      return "stop_string";
    case FinishReason::kContext:
      return "context";
    case FinishReason::kInterrupted:
      break;
  }
  return "interrupted";
}

void check_request(const Backend& backend, const GenerateRequest& request) {
  check_prompt(backend, request);
  check_choice(request, backend.model().config().vocab);
}

std::optional<FinishReason> reason_to_end(const EndRules& rules, int32_t id, size_t n_tokens,
                                          int position, bool wants_more) {
  if (!rules.ignore_stop_ids &&
      std::find(rules.stop_ids.begin(), rules.stop_ids.end(), id) != rules.stop_ids.end()) {
    return FinishReason::kStop;
  }
  if (!wants_more) return FinishReason::kStopString;
  if (rules.max_tokens >= 0 && n_tokens >= static_cast<size_t>(rules.max_tokens)) {
    return FinishReason::kLength;
  }
  if (position + 1 >= rules.context) return FinishReason::kContext;
  return std::nullopt;
}

Error every_id_is_banned() {
  return {ExitCode::kUsage,
          "every token of the vocabulary is a stop id and --ignore-eos bans them all"};
}

GenerateResult generate(Backend& backend, const GenerateRequest& request) {
  check_request(backend, request);
  if (request.max_tokens == 0) {
    GenerateResult nothing;
    nothing.n_cached = request.n_cached;
    return nothing;
  }
  return Generation(backend, request).run();
}

}  // namespace edgellm
