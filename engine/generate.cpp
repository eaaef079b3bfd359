#include "engine/generate.h"

#include <algorithm>

#include "base/clock.h"
#include "base/error.h"

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
  if (request.prompt_ids.size() >= static_cast<size_t>(backend.context())) {
    throw Error(ExitCode::kPromptDoesNotFit,
                "the prompt has " + std::to_string(request.prompt_ids.size()) +
                    " tokens and the answer needs room for one more, but the context holds " +
                    std::to_string(backend.context()) +
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
  GenerateResult result;
  result.n_cached = request.n_cached;
  if (request.max_tokens == 0) return result;
  const int64_t start = now_ns();
  const auto interrupted = [&] { return request.interrupted && request.interrupted(); };
  const std::span<const int32_t> banned =
      request.ignore_stop_ids ? request.stop_ids : std::span<const int32_t>();
  int position = request.n_cached;
  int32_t next = -1;

  // Where the arg-max is not enough, each step brings its logits to the host.
  const bool on_host = !request.sampling.is_argmax() || request.on_logprobs;
  std::vector<float> logits;
  std::vector<int32_t> seen;
  if (on_host) {
    logits.resize(static_cast<size_t>(backend.model().config().vocab));
    seen.assign(request.prompt_ids.begin(), request.prompt_ids.end());
  }
  // The id for place `at`, by the logits of the row before it.
  const auto choose = [&](int at) {
    const int32_t id = choose_id(logits, seen, banned, request.sampling, static_cast<uint64_t>(at));
    if (id >= 0 && request.on_logprobs) {
      request.on_logprobs(log_probabilities(logits, id, request.top_logprobs));
    }
    seen.push_back(id);
    return id;
  };

  // Prefill. Only the last row of the last chunk is asked for its arg-max or logits.
  const int prompt = static_cast<int>(request.prompt_ids.size());
  const int chunk = request.prefill_chunk > 0 ? std::min(request.prefill_chunk, backend.max_rows())
                                              : backend.max_rows();
  std::vector<int32_t> positions(static_cast<size_t>(chunk));
  const std::vector<int32_t> sequences(static_cast<size_t>(chunk), 0);
  while (position < prompt) {
    if (interrupted()) {
      result.finish_reason = FinishReason::kInterrupted;
      result.prompt_eval_ns = now_ns() - start;
      result.n_cached = position;
      return result;
    }
    const int rows = std::min(chunk, prompt - position);
    for (int i = 0; i < rows; ++i) positions[static_cast<size_t>(i)] = position + i;
    const Batch batch{
        request.prompt_ids.subspan(static_cast<size_t>(position), static_cast<size_t>(rows)),
        std::span(sequences).first(static_cast<size_t>(rows)),
        std::span(positions).first(static_cast<size_t>(rows))};
    const int32_t row = rows - 1;
    Outputs outputs;
    if (position + rows == prompt) {
      outputs.rows = {&row, 1};
      if (on_host) {
        outputs.logits = logits;
      } else {
        outputs.argmax = {&next, 1};
        outputs.banned = banned;
      }
    }
    backend.forward(batch, outputs);
    position += rows;
  }
  result.prompt_eval_ns = now_ns() - start;
  if (on_host) next = choose(position);

  const EndRules rules{request.stop_ids, request.ignore_stop_ids, request.max_tokens,
                       backend.context()};
  int64_t last_token_at = 0;
  // Takes a chosen id and says whether to go on. `position` is the id's place: it and the tokens
  // before it fill position + 1.
  const auto accept = [&](int32_t id) {
    if (id < 0) throw every_id_is_banned();
    const int64_t token_at = now_ns();
    if (result.token_ids.empty()) {
      result.ttft_ns = token_at - start;
    } else {
      result.inter_token_ns.push_back(token_at - last_token_at);
    }
    last_token_at = token_at;
    result.token_ids.push_back(id);
    const bool wants_more = !request.on_token || request.on_token(id);
    std::optional<FinishReason> reason =
        reason_to_end(rules, id, result.token_ids.size(), position, wants_more);
    if (!reason && interrupted()) reason = FinishReason::kInterrupted;
    if (reason) result.finish_reason = *reason;
    return !reason;
  };
  if (on_host) {
    const int32_t row = 0;
    while (accept(next)) {
      Outputs outputs;
      outputs.rows = {&row, 1};
      outputs.logits = logits;
      backend.forward({{&next, 1}, std::span(sequences).first(1), {&position, 1}}, outputs);
      ++position;
      next = choose(position);
    }
  } else if (accept(next)) {
    // accept() says when to end; the bound keeps the backend from running ahead of it.
    int n_max = backend.context() - position - 1;
    if (request.max_tokens >= 0) n_max = std::min(n_max, request.max_tokens - 1);
    backend.decode(/*sequence=*/0, next, position, n_max, banned, [&](int32_t id) {
      ++position;
      return accept(id);
    });
  }
  result.eval_ns = last_token_at - start - result.ttft_ns;
  result.n_cached = position;
  return result;
}

}  // namespace edgellm
