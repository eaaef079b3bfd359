#include "apps/flags/flags.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>

#include "apps/common/near_matches.h"
#include "apps/common/parse_number.h"
#include "base/text.h"
#include "engine/kv_type.h"
#include "model/convert.h"

namespace edgellm {
namespace {

constexpr const char* kSampling = "Sampling";

std::vector<std::string> kv_type_names() {
  std::vector<std::string> names;
  for (const KvType type : kKvTypes) names.emplace_back(to_string(type));
  return names;
}

template <class T>
Option add_number(Command& command, const std::string& name, std::optional<T>& number,
                  const std::string& what, const char* value_name) {
  return command
      .parsed_option(
          name, [name, &number](const std::string& text) { number = parse_number<T>(name, text); },
          what)
      .value(value_name)
      .group(kSampling);
}

}  // namespace

void add_model_argument(Command& command, ModelChoice& model) {
  add_optional_model_argument(command, model).required();
}

Option add_optional_model_argument(Command& command, ModelChoice& model) {
  const Option option =
      command
          .option("MODEL", model.name,
                  "A .tmac2 file, or the name of one in a model folder (edgellm help environment); "
                  "or a GGUF file or a Hugging Face folder, which is converted once")
          .aliases("-m,--model");
  add_no_cache_flag(command, model.no_cache);
  return option;
}

void add_no_cache_flag(Command& command, bool& no_cache) {
  command.flag("--no-cache", no_cache,
               "Refuse a GGUF file or a folder instead of converting it into the cache folder");
}

void add_engine_options(Command& command, SessionOptions& options, DeviceForms devices) {
  constexpr const char* kEngine = "Engine";
  command.option("-c,--ctx", options.context, "Positions of the context [the model's maximum]")
      .range(1, INT32_MAX)
      .aliases("--ctx-size,--n-ctx")
      .value("N")
      .group(kEngine);
  if (devices == DeviceForms::kOne) {
    command
        .option("--device", options.device, "Where to run; cuda:N is the GPU of that number [auto]")
        .check(device_name_problem)
        .value("auto|cpu|cuda|cuda:N")
        .group(kEngine);
  } else {
    command
        .option("--device", options.device,
                "Where to run; cuda:all is every GPU, and commas join devices that share the "
                "requests, as in cuda:0,1 or cuda:all,cpu [auto]")
        .check(device_list_problem)
        .value("auto|cpu|cuda|cuda:N|cuda:all")
        .group(kEngine);
  }
  command.option("--threads", options.threads, "CPU threads [one per usable core]")
      .range(1, kMaxThreads)
      .aliases("-t")
      .value("N")
      .group(kEngine);
  command
      .flag("--no-numa", options.no_numa,
            "CPU with several NUMA nodes: read the weights from the mapped file, without a copy of "
            "each thread's part on its node; changes speed and memory, never the result")
      .group(kEngine);
  command.option("--kv-type", options.kv_type, kKvTypeHelp)
      .check(kv_type_problem)
      .value(kv_type_value())
      .group(kEngine);
  command
      .option("--prefill-chunk", options.prefill_chunk,
              "Prompt tokens of one pass; changes speed and memory, never the result [256; "
              "2048 on a GPU]")
      .range(1, kMaxPrefillChunk)
      .value("N")
      .group(kEngine);
  command
      .flag("--no-graph", options.no_graph,
            "GPU: launch every kernel of a step by itself; changes speed, never the result")
      .group(kEngine);
  command.flag("--no-verify", options.no_verify, "Do not check the file's hashes while loading")
      .group(kEngine);
}

void add_full_head_flag(Command& command, SessionOptions& options) {
  command.flag("--full-head", options.full_head,
               "Compute every logit of every token, without a smaller copy of the head; changes "
               "speed and memory, never the result");
}

void add_cache_options(Command& command, ManySequences& options) {
  command.find("--prefill-chunk")
      .description(
          "Prompt tokens of one pass, of all requests together; changes speed and memory, "
          "never the result [CPU 256, GPU 4096]");
  command
      .size_option(
          "--kv-memory", options.kv_memory,
          "Most memory for the KV cache of a device, for example 8G or 512MiB [what is left]")
      .value("SIZE")
      .group("Engine");
  command
      .option("--sequences", options.sequences,
              "Requests answered at a time on a device, as far as the KV cache has room; changes "
              "speed and memory, never the result [CPU 16, GPU 256]")
      .range(1, kMaxSequences)
      .value("N")
      .group("Engine");
}

void add_sequences_options(Command& command, ManySequences& options) {
  add_cache_options(command, options);
  command
      .option("--max-batch-tokens", options.max_batch_tokens,
              "Most tokens of a pass that also decodes: fewer make answers flow more evenly while "
              "prompts are read, and take longer [as --prefill-chunk]")
      .range(1, kMaxPrefillChunk)
      .value("N")
      .group("Engine");
}

void add_answer_options(Command& command, AnswerOptions& options) {
  command
      .parsed_option(
          "-n,--max-tokens",
          [&options](const std::string& text) {
            options.max_tokens = parse_number<int>("--max-tokens", text);
            options.limit_is_given = true;
          },
          "Most tokens to generate; -1: until the model stops or the context is full [" +
              std::to_string(options.max_tokens) + "]")
      .aliases("--n-predict,--predict,--num-predict,--max-new-tokens")
      .value("N");
  command
      .repeated_option("--stop", options.stop, "End before this text; may be given several times")
      .aliases("-r,--reverse-prompt")
      .value("TEXT");
}

void add_sampling_options(Command& command, SamplingChoice& choice, SamplingDefault otherwise) {
  const bool sampled = otherwise == SamplingDefault::kModels;
  const auto add = [&](const std::string& name, auto& number, const std::string& what,
                       const char* off, const char* value) {
    const std::string text = what + " [" + (sampled ? "the model's" : off) + "]";
    return add_number(command, name, number, text, value);
  };
  command
      .flag("--sample", choice.model_defaults,
            std::string("Sample with the model's own defaults, which its file holds; each option "
                        "below replaces one of them") +
                (sampled ? " [the default]" : ""))
      .group(kSampling);
  add("--temp", choice.temperature,
      sampled ? "Temperature; 0: greedy, with the model's repetition penalty"
              : "Temperature; 0: greedy",
      otherwise == SamplingDefault::kOpenAi ? "1" : "0", "T")
      .aliases("--temperature");
  add("--top-k", choice.top_k, "Choose among the K most probable tokens; 0: off", "0", "K");
  add("--top-p", choice.top_p,
      "Choose among the fewest tokens that have probability P together; 1: off", "1", "P");
  add("--min-p", choice.min_p,
      "Choose among tokens with at least M times the largest probability; 0: off", "0", "M");
  add("--repeat-penalty", choice.repeat_penalty,
      "Make tokens that occurred before less probable; 1: off", "1", "R")
      .aliases("--repetition-penalty");
  add_number(command, "--frequency-penalty", choice.frequency_penalty,
             "Lower a token's logit by F for each time that the answer has it; 0: off [0]", "F");
  add_number(command, "--presence-penalty", choice.presence_penalty,
             "Lower the logits of tokens that the answer has by P; 0: off [0]", "P");
  command
      .parsed_option(
          "--seed", [&choice](const std::string& text) { choice.set_seed("--seed", text); },
          "The same seed gives the same text on every device; random draws one [run: random; "
          "chat, serve: random for each answer; batch, bench: 0]")
      .value("S|random")
      .aliases("-s")
      .group(kSampling);
}

std::vector<Option> add_chat_options(Command& command, ChatOptions& options) {
  return {command
              .option("--system", options.system,
                      "The system message, if the model's template takes one")
              .aliases("-sys,--system-prompt")
              .value("TEXT"),
          command.flag("--parse-special", options.parse_special,
                       "Special-token strings in messages become control tokens; without it they "
                       "are text")};
}

void add_prompt_options(Command& command, PromptSource& source, PromptForms forms) {
  using enum PromptForms;
  std::vector<Option> options;
  const auto add = [&](const char* names, std::optional<std::string>& text, const char* what) {
    return options.emplace_back(command.option(names, text, what));
  };
  if (forms == kAll) {
    options.push_back(command.text("PROMPT", source.positional,
                                   "The prompt, all words of it; - reads it from standard input"));
  }
  if (forms == kText) {
    options.push_back(command.text("TEXT", source.positional,
                                   "The text, all words of it; - reads it from standard input"));
  }
  if (forms == kFiles) command.on_extra_words("a file with text is named by -f FILE");
  if (forms == kOptions || forms == kTextOptions) {
    command.on_extra_words("a text is given by -p TEXT or -f FILE");
  }
  if (forms == kAll || forms == kOptions || forms == kTextOptions) {
    add("-p,--prompt", source.text, "The prompt, as an option").value("TEXT");
  }
  add("-f,--file", source.file, "Read the text from a file; - is standard input").value("FILE");
  if (forms != kText && forms != kTextOptions) {
    add("--ids-file", source.ids_file, "Token ids instead of text: a JSON array, used as it is")
        .value("FILE.json");
  }
  for (size_t i = 0; i < options.size(); ++i) {
    for (size_t j = 0; j < options.size(); ++j) {
      if (i != j) options[i].excludes(options[j]);
    }
  }
}

std::string kv_type_problem(const std::string& name) {
  if (name == "f16") {
    return "'f16' is no longer a KV type: i16 took its place, with as many bytes a value "
           "and nearer to float32; use --kv-type i16, which is the default";
  }
  return one_of(kv_type_names())(name);
}

std::string kv_type_value() { return join(kv_type_names(), "|"); }

std::string shape_problem(const std::string& shape) {
  const std::vector<std::string> names = synth_shape_names();
  std::error_code ignored;
  if (std::find(names.begin(), names.end(), shape) != names.end() ||
      std::filesystem::exists(shape, ignored)) {
    return "";
  }
  return "'" + shape + "' is neither a known shape nor a config.json; known are " +
         join(names, ", ") + did_you_mean(shape, names);
}

std::string shape_value() { return join(synth_shape_names(), "|") + "|FILE.json"; }

}  // namespace edgellm
