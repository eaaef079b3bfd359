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

namespace edgellm {

// What every record begins with.
struct RecordHead {
  Digest digest;
  std::string custom_id;
  int64_t line = 0;  // of the input, from 1
};

struct BatchAnswer {
  bool is_chat = false;
  std::optional<std::string> text;  // empty where the model has no tokenizer
  std::vector<int32_t> prompt_ids;
  SequenceResult result;
  bool with_token_ids = false;
  std::optional<uint64_t> seed;  // of a sampled answer
};

struct BatchError {
  std::string code;  // "invalid_request", "duplicate_id", ...
  std::string message;
  bool is_ours = false;  // not the request's fault: status 500, not 400
};
BatchError batch_error(ExitCode code, const std::string& message);

// With their newline.
std::string answer_record(const RecordHead& head, const BatchAnswer& answer,
                          const ModelFile& model);
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
