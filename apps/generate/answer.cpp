#include "apps/generate/answer.h"

#include <utility>

#include "apps/common/terminal.h"

namespace edgellm {

Answer::Answer(const Tokenizer* tokenizer, std::vector<std::string> stop_strings,
               Streaming streaming)
    : streaming_(streaming) {
  if (tokenizer != nullptr) text_stream_.emplace(*tokenizer, std::move(stop_strings));
}

void Answer::start_behind(std::span<const int32_t> ids) {
  if (text_stream_) text_stream_->start_behind(ids);
}

void Answer::begin_with(const std::string& prompt) {
  prompt_ = prompt;
  if (streaming_ == Streaming::kText && !prompt_.empty()) write(prompt_);
}

bool Answer::push(int32_t id, bool is_stop, const nlohmann::ordered_json& details) {
  std::string piece;
  if (text_stream_) {
    if (!is_stop) piece = text_of(text_stream_->push(id));
  } else if (!is_stop) {
    piece = (text_.empty() ? "" : " ") + std::to_string(id);
  }
  nlohmann::ordered_json event = {{"id", id}};
  event["text"] = text_stream_ ? nlohmann::ordered_json(piece) : nullptr;
  event.update(details);
  append(piece, event);
  return !reader_gone_ && !(text_stream_ && text_stream_->stopped());
}

void Answer::finish() {
  if (!text_stream_) return;
  const std::string piece = text_of(text_stream_->finish());
  if (!piece.empty()) append(piece, {{"id", nullptr}, {"text", piece}});
}

void Answer::print_rest() {
  const std::string all = prompt_ + text_;
  if (all.empty()) return;
  std::string rest = streaming_ == Streaming::kText ? "" : all;
  if (all.back() != '\n') rest += '\n';
  write(rest);
}

void Answer::print_object(const nlohmann::ordered_json& json) { write(json_line(json)); }

std::string Answer::text_of(const std::string& piece) {
  return leading_space_ ? leading_space_->dropped_from(piece) : piece;
}

void Answer::append(const std::string& piece, const nlohmann::ordered_json& event) {
  text_ += piece;
  if (streaming_ == Streaming::kText) write(piece);
  if (streaming_ == Streaming::kEvents) write(json_line(event));
}

void Answer::write(const std::string& bytes) {
  if (!reader_gone_) reader_gone_ = !write_stdout(bytes);
}

}  // namespace edgellm
