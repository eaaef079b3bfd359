#include "apps/serve/live_request.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <utility>

#include "base/error.h"

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
      is_streamed_(is_streamed),
      event_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (event_.get() < 0) {
    throw Error(ExitCode::kRuntime, std::string("no descriptor for a request: ") +
                                        std::strerror(errno) + "; raise the limit (ulimit -n)");
  }
}

std::vector<Piece> LiveRequest::take() {
  const std::lock_guard guard(mutex_);
  if (std::exchange(is_signalled_, false)) {
    uint64_t count = 0;
    (void)!read(event_.get(), &count, sizeof count);
  }
  return std::exchange(pieces_, {});
}

void LiveRequest::push(Piece piece) {
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
  if (!is_due || std::exchange(is_signalled_, true)) return;
  const uint64_t one = 1;
  (void)!write(event_.get(), &one, sizeof one);
}

}  // namespace edgellm::serve
