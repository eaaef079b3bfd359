// A request that can be run again on another engine, when the one that ran it has failed.
//
// Whoever asked gets every id once. An engine gives a request the same ids wherever it runs, so a
// later attempt repeats those of the one before: they are compared, and not handed over again. Of a
// request that asks for its end alone no id is followed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/scheduler.h"

namespace edgellm {

class Replay : public std::enable_shared_from_this<Replay> {
 public:
  explicit Replay(SequenceRequest request) : request_(std::move(request)) {}

  const SequenceRequest& request() const { return request_; }

  // The request for a scheduler, from its first id on. Its callbacks keep this object alive; it has
  // no on_end. Of several attempts, only the last may still run.
  SequenceRequest attempt();

  // What `result` of the last attempt is to whoever asked. A callback that threw has ended the
  // attempt, and its request has failed.
  SequenceResult result_of(SequenceResult&& result) const;

 private:
  bool has_callbacks() const;
  bool take_token(int32_t id);
  void take_prompt_logprobs(int position, const TokenLogprobs& logprobs);
  void take_prompt_hidden(int position, std::span<const float> hidden);
  template <class Call>
  bool guarded(Call&& call);

  const SequenceRequest request_;
  // Of all attempts.
  std::vector<int32_t> ids_;       // handed over
  int last_prompt_logprobs_ = -1;  // positions, likewise
  int last_prompt_hidden_ = -1;
  std::optional<SequenceResult::Failure> failure_;
  // Of the last one.
  size_t n_repeated_ = 0;
};

}  // namespace edgellm
