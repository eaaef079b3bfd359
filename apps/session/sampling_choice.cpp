#include "apps/session/sampling_choice.h"

#include <random>

#include "apps/common/parse_number.h"
#include "base/error.h"
#include "base/json.h"

namespace edgellm {
namespace {

bool samples_by_default(const Fields& fields) {
  return !fields.json().empty() && (!fields.has("do_sample") || fields.boolean("do_sample"));
}

// The sampling defaults of the model's file, as generation_config.json has them. What is absent is
// as in transformers: kDefaultTopK, the temperature 1, the others off.
// model/import/hf_tokenizer.cpp keeps numbers and booleans as it finds them.
SamplingOptions model_defaults(const TokenizerInfo& model, const std::string& path,
                               bool values_are_given) {
  const JsonSource source = {path, "sampling"};
  const Json json = parse_json_object(model.sampling_json, source);
  const Fields fields(json, source);
  if (!values_are_given && !samples_by_default(fields)) {
    throw Error(ExitCode::kUsage,
                path +
                    (json.empty() ? " holds no sampling defaults"
                                  : " says that its default is greedy (do_sample is false)") +
                    ", so --sample has nothing to take; give values yourself, for example --temp "
                    "0.7 --top-p 0.9");
  }
  SamplingOptions options;
  const auto number = [&](const char* key, double otherwise) {
    return fields.has(key) ? fields.number(key) : otherwise;
  };
  options.temperature = number("temperature", 1);
  options.top_k =
      fields.has("top_k") ? static_cast<int>(fields.integer("top_k", 0, INT32_MAX)) : kDefaultTopK;
  options.top_p = number("top_p", options.top_p);
  options.min_p = number("min_p", options.min_p);
  options.repeat_penalty = number("repetition_penalty", options.repeat_penalty);
  const std::string problem = sampling_problem(options);
  if (!problem.empty()) fields.fail("its sampling defaults cannot be used: " + problem);
  return options;
}

// `options` with what the choice gives in place of its own.
SamplingOptions replaced(SamplingOptions options, const SamplingChoice& choice) {
  options.temperature = choice.temperature.value_or(options.temperature);
  options.top_k = choice.top_k.value_or(options.top_k);
  options.top_p = choice.top_p.value_or(options.top_p);
  options.min_p = choice.min_p.value_or(options.min_p);
  options.repeat_penalty = choice.repeat_penalty.value_or(options.repeat_penalty);
  options.frequency_penalty = choice.frequency_penalty.value_or(options.frequency_penalty);
  options.presence_penalty = choice.presence_penalty.value_or(options.presence_penalty);
  options.seed = choice.random_seed ? fresh_seed() : choice.seed.value_or(options.seed);
  return options;
}

}  // namespace

void SamplingChoice::set_seed(const std::string& name, const std::string& text) {
  random_seed = text == "random" || text == "-1";
  seed.reset();
  if (random_seed) return;
  seed = try_parse_number<uint64_t>(text);
  if (!seed) {
    throw Error(ExitCode::kUsage, name + ": '" + text + "' is neither random nor a whole number " +
                                      "from 0 to " + std::to_string(UINT64_MAX));
  }
}

void check_sampling(const SamplingChoice& choice) {
  const std::string problem = sampling_problem(replaced(SamplingOptions{}, choice));
  if (!problem.empty()) throw Error(ExitCode::kUsage, problem);
  if (choice.model_defaults || choice.temperature) return;
  const char* idle = choice.top_k                        ? "--top-k"
                     : choice.top_p                      ? "--top-p"
                     : choice.min_p                      ? "--min-p"
                     : choice.seed || choice.random_seed ? "--seed"
                                                         : nullptr;
  if (idle != nullptr) {
    throw Error(ExitCode::kUsage, std::string(idle) +
                                      " changes nothing in a greedy run; add --temp T (0.7 for "
                                      "example), or --sample for the model's own defaults");
  }
}

SamplingOptions sampling_options(const SamplingChoice& choice, const TokenizerInfo& model,
                                 const std::string& model_path) {
  if (!choice.model_defaults) return replaced(SamplingOptions{}, choice);
  return replaced(model_defaults(model, model_path, choice.names_values()), choice);
}

bool has_sampling_defaults(const TokenizerInfo& model, const std::string& model_path) {
  const JsonSource source = {model_path, "sampling"};
  const Json json = parse_json_object(model.sampling_json, source);
  return samples_by_default(Fields(json, source));
}

uint64_t fresh_seed() { return std::random_device{}(); }

void set_sampling_option(SamplingOptions& options, const std::string& name,
                         const std::string& value) {
  SamplingOptions changed = options;
  if (name == "temp") {
    changed.temperature = parse_number<double>(name, value);
  } else if (name == "top-k") {
    changed.top_k = parse_number<int>(name, value);
  } else if (name == "top-p") {
    changed.top_p = parse_number<double>(name, value);
  } else if (name == "min-p") {
    changed.min_p = parse_number<double>(name, value);
  } else if (name == "repeat-penalty") {
    changed.repeat_penalty = parse_number<double>(name, value);
  } else if (name == "frequency-penalty") {
    changed.frequency_penalty = parse_number<double>(name, value);
  } else if (name == "presence-penalty") {
    changed.presence_penalty = parse_number<double>(name, value);
  } else if (name == "seed") {
    changed.seed = parse_number<uint64_t>(name, value);
  } else {
    throw Error(ExitCode::kUsage, "there is no setting " + name +
                                      "; the settings are temp, top-k, top-p, min-p, "
                                      "repeat-penalty, frequency-penalty, presence-penalty, seed, "
                                      "max-tokens and system");
  }
  const std::string problem = sampling_problem(changed);
  if (!problem.empty()) throw Error(ExitCode::kUsage, problem);
  options = changed;
}

nlohmann::ordered_json to_json(const SamplingOptions& options) {
  return {{"temperature", options.temperature},
          {"top_k", options.top_k},
          {"top_p", options.top_p},
          {"min_p", options.min_p},
          {"repeat_penalty", options.repeat_penalty},
          {"frequency_penalty", options.frequency_penalty},
          {"presence_penalty", options.presence_penalty},
          {"seed", options.seed}};
}

}  // namespace edgellm
