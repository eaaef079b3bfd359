// The options that several commands share. This folder joins what the session takes (plain structs
// that know nothing of a command line) with how a command line is declared (apps/cli, which knows
// nothing of engines).
#pragma once

#include <string>
#include <vector>

#include "apps/cli/options.h"
#include "apps/requests/many_sequences.h"
#include "apps/session/answer_options.h"
#include "apps/session/chat_prompt.h"
#include "apps/session/prompt.h"
#include "apps/session/sampling_choice.h"
#include "apps/session/session.h"

namespace edgellm {

// The options a command declares refer to the structs given here, which must live until it has run.

// MODEL and --no-cache.
void add_model_argument(Command& command, ModelChoice& model);
Option add_optional_model_argument(Command& command, ModelChoice& model);
void add_no_cache_flag(Command& command, bool& no_cache);
// How many devices a command runs on.
enum class DeviceForms { kOne, kSeveral };
void add_engine_options(Command& command, SessionOptions& options,
                        DeviceForms devices = DeviceForms::kOne);
void add_full_head_flag(Command& command, SessionOptions& options);
// --kv-memory, --sequences; after the engine's options, whose --prefill-chunk means something else
// then.
void add_cache_options(Command& command, ManySequences& options);
// Those, and --max-batch-tokens.
void add_sequences_options(Command& command, ManySequences& options);

// -n, whose default is what `options` hold, and --stop.
void add_answer_options(Command& command, AnswerOptions& options);

// What a command does where the user says nothing: help names it.
enum class SamplingDefault { kGreedy, kModels, kOpenAi };  // kOpenAi: temperature 1
void add_sampling_options(Command& command, SamplingChoice& choice,
                          SamplingDefault otherwise = SamplingDefault::kGreedy);

// --system and --parse-special.
std::vector<Option> add_chat_options(Command& command, ChatOptions& options);

// Which of the forms of a prompt a command takes.
enum class PromptForms {
  kAll,          // PROMPT, -p, -f, --ids-file
  kText,         // TEXT, -f
  kOptions,      // -p, -f, --ids-file
  kTextOptions,  // -p, -f
  kFiles,        // -f, --ids-file
};

// The options exclude each other.
void add_prompt_options(Command& command, PromptSource& source, PromptForms forms);

// What is wrong with the name of a KV type; empty for one of engine/kv_type.h.
std::string kv_type_problem(const std::string& name);

// What the value of --kv-type may be, for Option::value(), and what it means.
std::string kv_type_value();
inline constexpr const char* kKvTypeHelp =
    "Type of the KV cache: codes of 16 or 8 bits, or float32 [i16]";

// What is wrong with the name of a shape that `synth` is to make; empty for a good one.
std::string shape_problem(const std::string& shape);

// What the value of a shape may be, for Option::value().
std::string shape_value();

}  // namespace edgellm
