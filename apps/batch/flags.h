// What the command line of `edgellm batch` says.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "apps/batch/manifest.h"
#include "apps/requests/many_sequences.h"
#include "apps/session/answer_options.h"
#include "apps/session/chat_prompt.h"
#include "apps/session/sampling_choice.h"
#include "apps/session/session.h"

namespace edgellm {

struct BatchFlags {
  ModelChoice model;
  std::string input;
  std::string output;
  bool is_text = false;
  bool ordered = false;
  bool strict = false;
  int grace_s = 10;
  bool restart = false;
  bool keep_answers = false;
  std::optional<Shard> shard;
  std::string shard_source;  // of --shard auto: the variables that it comes from
  std::string summary;
  std::vector<std::string> merge;
  ManySequences sequences;
  bool chat = false;
  ChatOptions chat_options;
  AnswerOptions answer;
  bool ignore_eos = false;
  SessionOptions engine;
  SamplingChoice sampling;
};

}  // namespace edgellm
