// The body of a request for text, as OpenAI's completions and chat completions have it, with more
// fields of our own (docs/batch.md lists them). `batch` reads it from lines, `serve` from HTTP.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "engine/sampling.h"
#include "tokenizer/chat_template.h"

namespace edgellm {

// What a request that does not say it itself takes from the command line.
struct RequestDefaults {
  int max_tokens = -1;
  std::vector<std::string> stop;
  SamplingOptions sampling;
  bool ignore_eos = false;
  std::optional<std::string> system;  // of conversations that begin with none
};

// What a completion continues: a text that is not empty, or ids. Whether the vocabulary has them is
// not checked.
struct RequestPrompt {
  std::string text;
  std::vector<int32_t> ids;
};

struct AnswerRequest {
  bool is_chat = false;
  std::vector<ChatMessage> messages;   // of a chat
  std::vector<RequestPrompt> prompts;  // of a completion: one at least
  int n = 1;                           // answers, to each of the prompts
  std::optional<int> top_logprobs;  // log-probabilities are wanted, of so many besides the chosen
  int max_tokens = -1;              // 0 only with `echo`
  std::vector<std::string> stop;
  SamplingOptions sampling;
  bool has_own_seed = false;  // in `sampling`; else it is that of the defaults
  bool ignore_eos = false;
  bool return_token_ids = false;
  // Of a server's requests only.
  bool echo = false;  // a completion's text begins with its prompt
  bool stream = false;
  bool stream_usage = false;             // a last event with the usage
  bool stream_continuous_usage = false;  // as vLLM: every event has it
};

// How a body is read.
struct BodyForm {
  bool is_chat = false;
  std::vector<std::string> own_names = {};  // members of the object that somebody else reads
  // OpenAI's: who writes top_p without a temperature counts on OpenAI's temperature of 1.
  bool is_openai = true;
  // A server's: several prompts, `stream`, `stream_options`, `echo`. And as OpenAI's server does,
  // it takes an option that changes nothing in a greedy request, because clients send all they
  // know.
  bool is_served = false;
};

AnswerRequest request_of(const RequestDefaults& defaults);

// Throws Error (kUsage) with one line that names the field.
AnswerRequest read_request_body(const Fields& body, const BodyForm& form,
                                const RequestDefaults& defaults);

// What a server's request has under `key`: a text, a list of token ids, or a list of either, at
// most 1024. Throws Error (kUsage).
std::vector<RequestPrompt> read_prompts(const Fields& body, const std::string& key);

// Every member of the object is null or one of `names`; Error (kUsage) names another.
void require_known_names(const Fields& fields, const std::vector<std::string>& names);

}  // namespace edgellm
