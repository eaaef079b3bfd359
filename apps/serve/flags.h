// What the command line of `edgellm serve` says.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "apps/requests/many_sequences.h"
#include "apps/session/answer_options.h"
#include "apps/session/chat_prompt.h"
#include "apps/session/sampling_choice.h"
#include "apps/session/session.h"

namespace edgellm {

struct ServeFlags {
  std::vector<std::string> models;
  bool no_cache = false;
  int max_loaded = 0;
  std::string keep_alive = "-1";
  std::string pooling = "mean";
  bool allow_pull = false;
  std::string host = "127.0.0.1";
  int port = 8080;
  std::vector<std::string> api_keys;
  std::vector<std::string> origins;
  int queue = 256;
  int timeout_s = 600;
  std::string access_log;
  ManySequences sequences;
  ChatOptions chat;
  AnswerOptions answer;
  SessionOptions engine;
  SamplingChoice sampling;
};

}  // namespace edgellm
