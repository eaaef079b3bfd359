#include "apps/compare/sample.h"

#include <algorithm>

#include "apps/common/signals.h"
#include "apps/common/timings.h"
#include "apps/session/prompt.h"
#include "base/clock.h"
#include "base/error.h"
#include "engine/generate.h"
#include "tokenizer/text_stream.h"

namespace edgellm::compare {
namespace {

// Pieces that come faster than this one after the other were not generated one after the other.
constexpr int64_t kBurstGapNs = 20'000;
constexpr size_t kBurstPieces = 8;

bool is_burst(std::vector<int64_t> latencies) {
  if (latencies.size() + 1 < kBurstPieces) return false;
  const auto middle = latencies.begin() + static_cast<std::ptrdiff_t>(latencies.size() / 2);
  std::nth_element(latencies.begin(), middle, latencies.end());
  return *middle < kBurstGapNs;
}

// When things arrived, on either side.
struct Arrivals {
  int64_t sent_ns = 0;
  std::vector<int64_t> piece_ns;
  std::vector<size_t> piece_bytes;
  int64_t last_token_ns = 0;
  int64_t finished_ns = 0;
};

// Everything of `sample` that follows from the clock and the two counts of tokens in it.
void derive(const Arrivals& at, Sample& sample) {
  sample.pieces = static_cast<int64_t>(at.piece_ns.size());
  sample.total_ns = at.finished_ns - at.sent_ns;
  if (at.piece_ns.empty()) {
    const NotAvailable empty{"the answer was empty"};
    sample.ttft_ns = empty;
    sample.prefill_tps = empty;
    sample.decode_tps = empty;
    sample.text_bytes_per_s = empty;
    return;
  }
  for (size_t i = 1; i < at.piece_ns.size(); ++i) {
    sample.inter_token_ns.push_back(at.piece_ns[i] - at.piece_ns[i - 1]);
  }
  const int64_t ttft = at.piece_ns.front() - at.sent_ns;
  if (is_burst(sample.inter_token_ns)) {
    const NotAvailable burst{
        "the answer came in one burst: the server, or a proxy before it, does not stream"};
    sample.inter_token_ns.clear();
    sample.ttft_ns = burst;
    sample.prefill_tps = burst;
    sample.decode_tps = burst;
    sample.text_bytes_per_s = burst;
    return;
  }
  sample.ttft_ns = ttft;
  sample.prefill_tps = sample.prompt_tokens.map(
      [&](int64_t n) { return static_cast<double>(n) * 1e9 / static_cast<double>(ttft); });
  const auto decode_ns = static_cast<double>(at.last_token_ns - at.piece_ns.front());
  const NotAvailable too_short{"the answer is too short"};
  sample.decode_tps = too_short;
  sample.text_bytes_per_s = too_short;
  if (sample.pieces < 2 || decode_ns <= 0) return;
  if (!sample.tokens) {
    sample.decode_tps = sample.tokens.missing();
  } else if (*sample.tokens >= 2) {
    sample.decode_tps = static_cast<double>(*sample.tokens - 1) * 1e9 / decode_ns;
  }
  size_t bytes = 0;
  for (size_t i = 1; i < at.piece_bytes.size(); ++i) bytes += at.piece_bytes[i];
  sample.text_bytes_per_s = static_cast<double>(bytes) * 1e9 / decode_ns;
}

}  // namespace

Sample measure_ours(const OurSide& side, const peers::CompletionRequest& request) {
  const ModelFile& model = side.backend->model();
  Arrivals at;
  Sample sample;
  TextStream stream(*side.tokenizer, {});
  at.sent_ns = now_ns();
  const std::vector<int32_t> ids =
      encode_prompt(*side.tokenizer, model.tokenizer(), request.prompt);
  const int64_t needed = static_cast<int64_t>(ids.size()) + request.max_tokens;
  if (needed > side.backend->info().context) {
    throw Error(ExitCode::kPromptDoesNotFit,
                "the prompt is " + std::to_string(ids.size()) + " tokens and the answer " +
                    std::to_string(request.max_tokens) + ", but the context is " +
                    std::to_string(side.backend->info().context) + "; " +
                    (needed <= model.config().max_context
                         ? "use -c " + std::to_string(needed)
                         : "use a smaller -n or a shorter prompt; the model allows at most " +
                               std::to_string(model.config().max_context)));
  }
  GenerateRequest generation;
  generation.prompt_ids = ids;
  generation.max_tokens = request.max_tokens;
  generation.stop_ids = model.tokenizer().stop_ids;
  generation.ignore_stop_ids = true;
  generation.on_token = [&](int32_t id) {
    const std::string piece = stream.push(id);
    at.piece_ns.push_back(now_ns());
    at.piece_bytes.push_back(piece.size());
    sample.text += piece;
    return true;
  };
  generation.interrupted = [] { return received_signal() != 0; };
  const GenerateResult result = generate(*side.backend, generation);
  at.finished_ns = now_ns();
  throw_if_interrupted();
  sample.text += stream.finish();
  at.last_token_ns = at.piece_ns.empty() ? at.finished_ns : at.piece_ns.back();
  sample.finish_reason = to_string(result.finish_reason);
  sample.prompt_tokens = static_cast<int64_t>(ids.size());
  sample.tokens = static_cast<int64_t>(result.token_ids.size());
  derive(at, sample);

  sample.own.prompt_tokens = sample.prompt_tokens;
  sample.own.prompt_ns = result.prompt_eval_ns;
  sample.own.cached_tokens = int64_t{0};
  sample.own.eval_tokens = sample.tokens;
  sample.own.eval_ns = result.eval_ns;
  // As run --verbose states them.
  const int64_t n_prompt = *sample.prompt_tokens;
  sample.own.prompt_tps = per_second(n_prompt, result.prompt_eval_ns);
  sample.own.eval_tps = NotAvailable{"the answer is too short"};
  if (result.eval_ns > 0) sample.own.eval_tps = per_second(*sample.tokens - 1, result.eval_ns);
  sample.own.load_ns = NotAvailable{"the model was loaded before"};
  sample.own.total_ns = sample.total_ns;
  return sample;
}

Sample measure_theirs(peers::Peer& peer, const peers::CompletionRequest& request) {
  return sample_of(peer.complete(request));
}

Sample sample_of(const peers::Completion& completion) {
  Arrivals at;
  at.sent_ns = completion.sent_ns;
  at.piece_ns = completion.piece_ns;
  at.piece_bytes = completion.piece_bytes;
  at.finished_ns = completion.finished_ns;
  // A stop token has no text: it is there when the server says that it is done.
  const bool at_stop_token = completion.finish_reason != "length";
  at.last_token_ns =
      at_stop_token || at.piece_ns.empty() ? completion.finished_ns : at.piece_ns.back();
  Sample sample;
  sample.text = completion.text;
  sample.finish_reason = completion.finish_reason;
  sample.prompt_tokens = completion.total_prompt_tokens;
  sample.tokens = completion.server.eval_tokens;
  sample.own = completion.server;
  derive(at, sample);
  return sample;
}

}  // namespace edgellm::compare
