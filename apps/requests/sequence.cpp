#include "apps/requests/sequence.h"

#include <algorithm>
#include <utility>

namespace edgellm {

bool is_stop_id(const ModelFile& model, int32_t id) {
  return std::ranges::binary_search(model.tokenizer().stop_ids, id);
}

SequenceRequest sequence_request(const AnswerRequest& wanted, std::vector<int32_t> prompt_ids,
                                 int choice, const ModelFile& model) {
  SequenceRequest request;
  request.prompt_ids = std::move(prompt_ids);
  request.max_tokens = wanted.max_tokens;
  request.stop_ids = model.tokenizer().stop_ids;
  request.ignore_stop_ids = wanted.ignore_eos;
  request.sampling = wanted.sampling;
  request.sampling.seed += static_cast<uint64_t>(choice);
  request.top_logprobs = wanted.top_logprobs.value_or(0);
  return request;
}

AnswerText::AnswerText(const Tokenizer& tokenizer, const AnswerRequest& wanted,
                       std::span<const int32_t> prompt_ids)
    : stream_(tokenizer, wanted.stop) {
  if (wanted.is_chat) {
    leading_space_.emplace();
  } else {
    stream_.start_behind(prompt_ids);
  }
}

}  // namespace edgellm
