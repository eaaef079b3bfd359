#include "apps/session/sampling_flags.h"

#include <charconv>
#include <type_traits>

#include "base/error.h"
#include "base/json.h"

namespace edgellm {
namespace {

// The sampling defaults of the model's file, as generation_config.json has them: what is absent is
// off, the temperature 1. model/import/hf_tokenizer.cpp keeps numbers and booleans as it finds
// them.
SamplingOptions model_defaults(const TokenizerInfo& model, const std::string& path) {
  const JsonSource source = {path, "sampling"};
  const Json json = parse_json_object(model.sampling_json, source);
  const Fields fields(json, source);
  const auto fail_greedy = [&](const char* why) {
    throw Error(ExitCode::kUsage, path + " " + why +
                                      ", so --sample has nothing to take; give values yourself, "
                                      "for example --temp 0.7 --top-p 0.9");
  };
  if (json.empty()) fail_greedy("holds no sampling defaults");
  if (fields.has("do_sample") && !fields.boolean("do_sample")) {
    fail_greedy("says that its default is greedy (do_sample is false)");
  }
  SamplingOptions options;
  const auto number = [&](const char* key, double otherwise) {
    return fields.has(key) ? fields.number(key) : otherwise;
  };
  options.temperature = number("temperature", 1);
  if (fields.has("top_k")) {
    options.top_k = static_cast<int>(fields.integer("top_k", 0, INT32_MAX));
  }
  options.top_p = number("top_p", options.top_p);
  options.min_p = number("min_p", options.min_p);
  options.repeat_penalty = number("repetition_penalty", options.repeat_penalty);
  const std::string problem = sampling_problem(options);
  if (!problem.empty()) fields.fail("its sampling defaults cannot be used: " + problem);
  return options;
}

// `options` with what the flags give in place of its own.
SamplingOptions replaced(SamplingOptions options, const SamplingFlags& flags) {
  options.temperature = flags.temperature.value_or(options.temperature);
  options.top_k = flags.top_k.value_or(options.top_k);
  options.top_p = flags.top_p.value_or(options.top_p);
  options.min_p = flags.min_p.value_or(options.min_p);
  options.repeat_penalty = flags.repeat_penalty.value_or(options.repeat_penalty);
  options.seed = flags.seed.value_or(options.seed);
  return options;
}

constexpr const char* kGroup = "Sampling";

// Strict, where CLI11 takes an empty text for 0 and cuts a number that is too large.
template <class T>
T parse_value(const std::string& name, const std::string& text) {
  T value = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  if (error == std::errc() && rest == end) return value;
  throw Error(ExitCode::kUsage,
              name + ": '" + text + "' is not " +
                  (std::is_floating_point_v<T> ? "a number"
                   : std::is_signed_v<T>       ? "an integer"
                                               : "an integer from 0 to 18446744073709551615") +
                  "; see edgellm run --help");
}

template <class T>
void add_value(CLI::App& app, const std::string& name, std::optional<T>& flag, const char* what,
               const char* value_name) {
  const auto set = [name, &flag](const std::string& text) { flag = parse_value<T>(name, text); };
  app.add_option_function<std::string>(name, set, what)->option_text(value_name)->group(kGroup);
}

}  // namespace

void add_sampling_options(CLI::App& app, SamplingFlags& flags) {
  app.add_flag("--sample", flags.model_defaults,
               "Sample with the model's own defaults, which its file holds; the options below "
               "replace single ones")
      ->group(kGroup);
  add_value(app, "--temp", flags.temperature, "Temperature; 0: greedy [0]", "T");
  add_value(app, "--top-k", flags.top_k, "Choose among the K most probable tokens; 0: off [0]",
            "K");
  add_value(app, "--top-p", flags.top_p,
            "Choose among the fewest tokens that have probability P together; 1: off [1]", "P");
  add_value(app, "--min-p", flags.min_p,
            "Choose among tokens with at least M times the largest probability; 0: off [0]", "M");
  add_value(app, "--repeat-penalty", flags.repeat_penalty,
            "Make tokens that occurred before less probable; 1: off [1]", "R");
  add_value(app, "--seed", flags.seed, "The same seed gives the same text on every device [0]",
            "S");
}

void check_sampling_flags(const SamplingFlags& flags) {
  const std::string problem = sampling_problem(replaced(SamplingOptions{}, flags));
  if (!problem.empty()) throw Error(ExitCode::kUsage, problem);
  if (flags.model_defaults || flags.temperature) return;
  const char* idle = flags.top_k   ? "--top-k"
                     : flags.top_p ? "--top-p"
                     : flags.min_p ? "--min-p"
                     : flags.seed  ? "--seed"
                                   : nullptr;
  if (idle != nullptr) {
    throw Error(ExitCode::kUsage, std::string(idle) +
                                      " changes nothing in a greedy run; add --temp T (0.7 for "
                                      "example), or --sample for the model's own defaults");
  }
}

SamplingOptions sampling_options(const SamplingFlags& flags, const TokenizerInfo& model,
                                 const std::string& model_path) {
  return replaced(flags.model_defaults ? model_defaults(model, model_path) : SamplingOptions{},
                  flags);
}

void set_sampling_option(SamplingOptions& options, const std::string& name,
                         const std::string& value) {
  SamplingOptions changed = options;
  if (name == "temp") {
    changed.temperature = parse_value<double>(name, value);
  } else if (name == "top-k") {
    changed.top_k = parse_value<int>(name, value);
  } else if (name == "top-p") {
    changed.top_p = parse_value<double>(name, value);
  } else if (name == "min-p") {
    changed.min_p = parse_value<double>(name, value);
  } else if (name == "repeat-penalty") {
    changed.repeat_penalty = parse_value<double>(name, value);
  } else if (name == "seed") {
    changed.seed = parse_value<uint64_t>(name, value);
  } else {
    throw Error(ExitCode::kUsage, "there is no setting " + name +
                                      "; the settings are temp, top-k, top-p, min-p, "
                                      "repeat-penalty, seed, max-tokens and system");
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
          {"seed", options.seed}};
}

}  // namespace edgellm
