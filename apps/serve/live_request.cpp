#include "apps/serve/live_request.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace edgellm::serve {
namespace {

template <class T>
void append(std::vector<T>& to, std::vector<T>&& from) {
  to.insert(to.end(), std::make_move_iterator(from.begin()), std::make_move_iterator(from.end()));
}

}  // namespace

LiveRequest::LiveRequest(AnswerRequest wanted, std::vector<std::vector<int32_t>> prompts,
                         bool is_streamed)
    : LiveRequest(std::move(wanted), std::move(prompts), std::nullopt, is_streamed) {}

LiveRequest::LiveRequest(std::vector<std::vector<int32_t>> prompts, Pooling pooling)
    : LiveRequest(AnswerRequest(), std::move(prompts), pooling, /*is_streamed=*/false) {}

LiveRequest::LiveRequest(AnswerRequest wanted, std::vector<std::vector<int32_t>> prompts,
                         std::optional<Pooling> pooling, bool is_streamed)
    : wanted_(std::move(wanted)),
      prompts_(std::move(prompts)),
      pooling_(pooling),
      is_streamed_(is_streamed) {}

std::vector<Piece> LiveRequest::take() {
  const std::lock_guard guard(mutex_);
  is_signalled_ = false;
  event_->clear();
  return std::exchange(pieces_, {});
}

bool LiveRequest::push(Piece piece) {
  const std::lock_guard guard(mutex_);
  if (piece.end) ++n_ended_;
  const bool has_failed = piece.end && piece.end->failure;
  const bool is_due = is_streamed_ || has_failed || n_ended_ == n_choices();
  const auto open = std::ranges::find(pieces_, piece.choice, &Piece::choice);
  if (open == pieces_.end()) {
    pieces_.push_back(std::move(piece));
  } else {
    open->text += piece.text;
    append(open->ids, std::move(piece.ids));
    append(open->logprobs, std::move(piece.logprobs));
    append(open->prompt_logprobs, std::move(piece.prompt_logprobs));
    append(open->embedding, std::move(piece.embedding));
    if (piece.end) open->end = std::move(piece.end);
  }
  return is_due && !std::exchange(is_signalled_, true);
}

}  // namespace edgellm::serve
