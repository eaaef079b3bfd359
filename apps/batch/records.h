// The lines of a batch's output: OpenAI's batch form with the line number and, in the body, what
// edgellm knows besides (docs/batch.md).
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "apps/batch/ids.h"
#include "engine/scheduler.h"
#include "model/model_file.h"
#include "tokenizer/tokenizer.h"

namespace edgellm {

// What every record begins with.
struct RecordHead {
  Digest digest;
  std::string custom_id;
  int64_t line = 0;  // of the input, from 1
};

struct BatchLogprobs {
  int32_t id = -1;
  TokenLogprobs logprobs;
};

struct BatchChoice {
  std::optional<std::string> text;  // empty where the model has no tokenizer
  SequenceResult result;
  std::optional<uint64_t> seed;         // of a sampled answer
  std::vector<BatchLogprobs> logprobs;  // of the text's tokens: a stop token has none
};

struct BatchAnswer {
  bool is_chat = false;
  std::vector<int32_t> prompt_ids;
  bool with_token_ids = false;
  bool with_logprobs = false;
  std::vector<BatchChoice> choices;  // one at least
};

struct BatchError {
  std::string code;  // "invalid_request", "duplicate_id", ...
  std::string message;
  bool is_ours = false;  // not the request's fault: status 500, not 400
};
BatchError batch_error(ExitCode code, const std::string& message);

// With their newline. `tokenizer` may be null.
std::string answer_record(const RecordHead& head, const BatchAnswer& answer, const ModelFile& model,
                          const Tokenizer* tokenizer);
std::string error_record(const RecordHead& head, const BatchError& error);

// What an output's line says. Empty for one that is no record.
struct RecordInfo {
  RecordHead head;
  bool succeeded = false;
};
std::optional<RecordInfo> read_record(std::string_view text);

// The record with another line number: where the input has changed around its request.
std::string moved_record(std::string_view text, int64_t line);

}  // namespace edgellm
