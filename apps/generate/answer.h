// The answer of `edgellm run` on its way to stdout.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "apps/session/leading_space.h"
#include "tokenizer/text_stream.h"

namespace edgellm {

// What is written to stdout before the run has ended.
enum class Streaming {
  kNothing,
  kText,    // the text as it becomes final
  kEvents,  // a line of JSON for each token
};

// Collects the answer and shows it as it comes: text where the model has a tokenizer, else ids with
// spaces between them.
class Answer {
 public:
  Answer(const Tokenizer* tokenizer, std::vector<std::string> stop_strings, Streaming streaming);

  // The answer continues the text of `ids`: it keeps the space that it begins with.
  void start_behind(std::span<const int32_t> ids);

  // The answer is a turn of a chat: the white space that it begins with is no part of it.
  void drop_leading_space() { leading_space_.emplace(); }

  // Text to stand before the answer, where a text is printed.
  void begin_with(const std::string& prompt);

  // One token; a stop token has no text. `details` are more fields of its event. False when the
  // answer has ended: at a stop string, or because nobody reads it any more.
  bool push(int32_t id, bool is_stop, const nlohmann::ordered_json& details);

  // Text that was held back to the end becomes an event without an id.
  void finish();

  // What is still to be written to stdout of a text, with the newline that ends it.
  void print_rest();

  void print_object(const nlohmann::ordered_json& json);

  const std::string& text() const { return text_; }

 private:
  std::string text_of(const std::string& piece);
  void append(const std::string& piece, const nlohmann::ordered_json& event);
  void write(const std::string& bytes);

  std::optional<TextStream> text_stream_;
  std::optional<LeadingSpace> leading_space_;
  std::string prompt_;
  std::string text_;
  Streaming streaming_;
  bool reader_gone_ = false;
};

}  // namespace edgellm
