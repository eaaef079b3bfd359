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
  if (request.top_logprobs < 0 || request.top_logprobs > vocab) {
    throw Error(ExitCode::kUsage, "--logprobs is " + std::to_string(request.top_logprobs) +
                                      "; use a number from 0 to the vocabulary's " +
                                      std::to_string(vocab));
  }
}

// One run of generate(), of at least one token.
class Generation {
 public:
  Generation(Backend& backend, const GenerateRequest& request)
      : backend_(backend),
        request_(request),
        needs_logits_(!request.sampling.is_argmax() || request.on_logprobs),
        start_(now_ns()),
        position_(request.n_cached) {
    if (request.ignore_stop_ids) banned_ = request.stop_ids;
    if (needs_logits_) {
      logits_.resize(static_cast<size_t>(backend.model().config().vocab));
      seen_.assign(request.prompt_ids.begin(), request.prompt_ids.end());
    }
  }

  GenerateResult run() {
    if (prefill()) {
      if (needs_logits_) {
        decode_by_logits();
      } else {
        decode_greedily();
      }
      result_.eval_ns = last_token_at_ - start_ - result_.ttft_ns;
    }
    result_.n_cached = position_;
    return std::move(result_);
  }

 private:
  static constexpr int32_t kSequence = 0;

  bool interrupted() const { return request_.interrupted && request_.interrupted(); }

  // Feeds the prompt and chooses the first id. False where the run was interrupted before.
  bool prefill() {
    Outputs outputs;
    if (needs_logits_) {
      outputs.logits = logits_;
    } else {
      outputs.argmax = {&next_, 1};
      outputs.banned = banned_;
    }
    Prefill prefill(backend_, kSequence, position_,
                    request_.prompt_ids.subspan(static_cast<size_t>(position_)));
    while (!prefill.is_done() && !interrupted()) prefill.run_pass_for_last_id(outputs);
    position_ += static_cast<int>(prefill.n_fed());
    result_.prompt_eval_ns = now_ns() - start_;
    if (!prefill.is_done()) {
      result_.finish_reason = FinishReason::kInterrupted;
      return false;
    }
    if (needs_logits_) next_ = choose();
    return true;
  }

  // Where the arg-max is not enough, each step brings its logits to the host.
  void decode_by_logits() {
    const int32_t row = 0;
    Outputs outputs;
    outputs.rows = {&row, 1};
    outputs.logits = logits_;
    while (accept(next_)) {
      backend_.forward({{&next_, 1}, {&kSequence, 1}, {&position_, 1}}, outputs);
      ++position_;
      next_ = choose();
    }
  }

  void decode_greedily() {
    if (!accept(next_)) return;
    // accept() says when to end; the bound keeps the backend from running ahead of it.
    int n_max = backend_.info().context - position_ - 1;
    if (request_.max_tokens >= 0) n_max = std::min(n_max, request_.max_tokens - 1);
    backend_.decode(kSequence, next_, position_, n_max, banned_, [this](int32_t id) {
      ++position_;
      return accept(id);
    });
  }

  // The id for `position_`, by the logits of the row before it.
  int32_t choose() {
    const int32_t id =
        choose_id(logits_, seen_, banned_, request_.sampling, static_cast<uint64_t>(position_));
    if (id >= 0 && request_.on_logprobs) {
      request_.on_logprobs(log_probabilities(logits_, id, request_.top_logprobs));
    }
    seen_.push_back(id);
    return id;
  }

  // Takes the id that was chosen for `position_`; returns whether the run continues.
  bool accept(int32_t id) {
    if (id < 0) throw every_id_is_banned();
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
  const bool needs_logits_;
  const int64_t start_;
  std::span<const int32_t> banned_;
  std::vector<float> logits_;  // [vocab], where they are needed
  std::vector<int32_t> seen_;  // prompt and answer, where logits are needed
  int position_;               // of next_; the cache holds the positions before it
  int32_t next_ = -1;          // the id that was chosen last
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
