// A line of a batch's input, as docs/batch.md describes it: OpenAI's batch form, or the short one.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "engine/sampling.h"
#include "tokenizer/chat_template.h"

namespace edgellm {

// What a request that does not say it itself takes from the command line.
struct BatchDefaults {
  int max_tokens = -1;
  std::vector<std::string> stop;
  SamplingOptions sampling;
  bool ignore_eos = false;
  bool chat = false;                  // a prompt without a url is a message
  std::optional<std::string> system;  // of conversations that begin with none
};

struct BatchRequest {
  bool is_chat = false;
  std::vector<ChatMessage> messages;  // of a chat
  std::string prompt;                 // else: not empty, or
  std::vector<int32_t> prompt_ids;    // these; whether the vocabulary has them is not checked
  int n = 1;                          // answers
  std::optional<int> top_logprobs;    // log-probabilities are wanted, of so many besides the chosen
  int max_tokens = -1;
  std::vector<std::string> stop;
  SamplingOptions sampling;
  bool has_own_seed = false;  // in `sampling`; else it is that of the defaults
  bool ignore_eos = false;
  bool return_token_ids = false;
};

// A line whose JSON is good, and the id in it, so that a request with a fault goes by its id.
struct BatchLine {
  Json json;
  std::optional<std::string> id;
};

// `where` is how messages call the line: "line 12". These throw Error (kUsage) with one line
// that names the field, and nothing else.
BatchLine parse_batch_line(std::string_view text, const std::string& where);
BatchRequest read_batch_request(const BatchLine& line, const BatchDefaults& defaults,
                                const std::string& where);

// A line of --text.
BatchRequest text_request(const std::string& text, const BatchDefaults& defaults,
                          const std::string& where);

}  // namespace edgellm
