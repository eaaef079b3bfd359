// The lines of a batch's output: OpenAI's batch form with the line number and, in the body, what
// edgellm knows besides (docs/batch.md).
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "apps/batch/ids.h"
#include "apps/requests/openai_answer.h"
#include "model/model_file.h"
#include "tokenizer/tokenizer.h"

namespace edgellm {

// What every record begins with.
struct RecordHead {
  Digest digest;
  std::string custom_id;
  int64_t line = 0;  // of the input, from 1
};

// With their newline. `tokenizer` may be null.
std::string answer_record(const RecordHead& head, const RequestAnswer& answer,
                          const ModelFile& model, const Tokenizer* tokenizer);
std::string error_record(const RecordHead& head, const RequestError& error);

// What an output's line says. Empty for one that is no record.
struct RecordInfo {
  RecordHead head;
  bool succeeded = false;
};
std::optional<RecordInfo> read_record(std::string_view text);

// The record with another line number: where the input has changed around its request.
std::string moved_record(std::string_view text, int64_t line);

}  // namespace edgellm
