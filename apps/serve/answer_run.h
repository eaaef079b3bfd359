// A request on its way through the engine of its model.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "apps/serve/http_server.h"
#include "apps/serve/live_request.h"
#include "apps/serve/served_model.h"

namespace edgellm::serve {

// Ends the request with the object, if not before.
class AnswerRun {
 public:
  // `loaded` is `model`'s. Throws Error where the request cannot run, ApiError where it finds the
  // queue full.
  AnswerRun(ServedModel& model, std::shared_ptr<LoadedModel> loaded, AnswerRequest wanted,
            bool is_streamed, const Client& client, Clock::time_point until);
  // The embeddings of prompts.
  AnswerRun(std::shared_ptr<LoadedModel> loaded, std::vector<std::vector<int32_t>> prompts,
            Pooling pooling, const Client& client, Clock::time_point until);
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
  void submit(std::shared_ptr<LiveRequest> live);

  const std::shared_ptr<LoadedModel> loaded_;  // it stays loaded as long
  const Client& client_;
  const Clock::time_point until_;
  std::shared_ptr<LiveRequest> live_;
  size_t n_unfinished_ = 0;
  bool is_abandoned_ = false;
};

}  // namespace edgellm::serve
