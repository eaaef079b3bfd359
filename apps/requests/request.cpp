#include "apps/requests/request.h"

#include <algorithm>
#include <limits>
#include <map>

#include "apps/common/near_matches.h"
#include "apps/session/answer_options.h"
#include "apps/session/prompt.h"
#include "base/error.h"
#include "base/text.h"

namespace edgellm {
namespace {

// Fields of OpenAI's API, and of vLLM's and SGLang's, that would change the answer, with the values
// that do not. SGLang's router writes its own fields into every request.
const std::map<std::string, std::vector<Json>>& neutral_values() {
  static const std::map<std::string, std::vector<Json>> values = {
      {"best_of", {1}},
      {"stream", {false}},
      {"echo", {false}},
      {"suffix", {""}},
      {"length_penalty", {1}},
      {"use_beam_search", {false}},
      {"response_format", {Json{{"type", "text"}}}},
      {"modalities", {Json::array({"text"})}},
      {"tools", {Json::array()}},
      {"tool_choice", {"none", "auto"}},
      {"functions", {Json::array()}},
      {"function_call", {"none", "auto"}},
      {"no_stop_trim", {false}},
      {"skip_special_tokens", {true}},
      {"continue_final_message", {false}},
      {"return_hidden_states", {false}},
  };
  return values;
}

const std::vector<std::string>& used_fields() {
  static const std::vector<std::string> names = {"max_tokens",
                                                 "max_completion_tokens",
                                                 "temperature",
                                                 "top_p",
                                                 "top_k",
                                                 "min_p",
                                                 "repeat_penalty",
                                                 "repetition_penalty",
                                                 "frequency_penalty",
                                                 "presence_penalty",
                                                 "logit_bias",
                                                 "n",
                                                 "logprobs",
                                                 "top_logprobs",
                                                 "seed",
                                                 "stop",
                                                 "ignore_eos",
                                                 "return_token_ids"};
  return names;
}

// Fields that say who asks, or how an answer travels. They never change the answer.
bool is_ignored(const std::string& name) {
  static const std::vector<std::string> names = {"model",
                                                 "user",
                                                 "metadata",
                                                 "store",
                                                 "service_tier",
                                                 "prediction",
                                                 "parallel_tool_calls",
                                                 "stream_options",
                                                 "prompt_cache_key",
                                                 "safety_identifier",
                                                 "separate_reasoning",
                                                 "stream_reasoning"};
  return std::find(names.begin(), names.end(), name) != names.end();
}

// Every field that is there must be one of `own`, or known as above.
void check_body_names(const Fields& fields, const std::vector<std::string>& own) {
  for (const auto& [name, value] : fields.json().items()) {
    if (value.is_null() || std::find(own.begin(), own.end(), name) != own.end()) continue;
    const auto& used = used_fields();
    if (is_ignored(name) || std::find(used.begin(), used.end(), name) != used.end()) continue;
    if (const auto neutral = neutral_values().find(name); neutral != neutral_values().end()) {
      const std::vector<Json>& values = neutral->second;
      if (std::find(values.begin(), values.end(), value) != values.end()) continue;
      fields.fail(fields.name(name) + " is " + value_text(value) +
                  ", which is not supported; leave it out");
    }
    std::vector<std::string> known = own;
    known.insert(known.end(), used_fields().begin(), used_fields().end());
    fields.fail(fields.name(printable(name)) + " is unknown" + did_you_mean(name, known));
  }
}

// A text, or a list of parts that are texts, as vLLM joins them.
std::string message_content(const Fields& message) {
  const Json& content = message.get("content");
  if (content.is_string()) return content.get<std::string>();
  const std::string name = message.name("content");
  if (!content.is_array()) message.fail(name + " is neither a text nor a list of parts");
  std::string text;
  for (size_t i = 0; i < content.size(); ++i) {
    const Fields part = message.entry("content", i);
    if (const std::string type = part.text("type"); type != "text") {
      part.fail(part.name("type") + " is " + value_text(type) + ", but only text is read");
    }
    require_known_names(part, {"type", "text"});
    if (i > 0) text += '\n';
    text += part.text("text");
  }
  return text;
}

std::vector<ChatMessage> read_messages(const Fields& body, const RequestDefaults& defaults) {
  std::vector<ChatMessage> messages;
  const size_t n_messages = body.array("messages").size();
  for (size_t i = 0; i < n_messages; ++i) {
    const Fields message = body.entry("messages", i);
    std::string role = message.text("role");
    if (role == "developer") role = "system";  // the newer name of the role
    if (role != "system" && role != "user" && role != "assistant") {
      message.fail(message.name("role") + " is " + value_text(role) +
                   ", expected system, developer, user or assistant");
    }
    require_known_names(message, {"role", "content"});
    messages.push_back({role, message_content(message)});
  }
  if (messages.empty()) body.fail(body.name("messages") + " is empty");
  if (defaults.system && messages.front().role != "system") {
    messages.insert(messages.begin(), {"system", *defaults.system});
  }
  return messages;
}

// Prompts of one field.
class PromptReader {
 public:
  // `advice`: what to do where a list holds something other than ids.
  PromptReader(const Fields& body, const std::string& key, const char* advice)
      : body_(body), name_(body.name(key)), advice_(advice) {}

  RequestPrompt one(const Json& prompt) const {
    if (prompt.is_array()) return ids(prompt);
    if (!prompt.is_string()) body_.fail(name_ + " is neither a text nor a list of token ids");
    if (prompt.get_ref<const std::string&>().empty())
      body_.fail(name_ + " is empty; give some text");
    return {.text = prompt.get<std::string>(), .ids = {}};
  }

  // One, or a list of them.
  std::vector<RequestPrompt> all(const Json& prompt) const {
    constexpr size_t kMostPrompts = 1024;
    const bool is_list = prompt.is_array() && !prompt.empty() && !prompt.front().is_number();
    if (!is_list) return {one(prompt)};
    if (prompt.size() > kMostPrompts) {
      body_.fail(name_ + " has " + std::to_string(prompt.size()) + " entries, expected at most " +
                 std::to_string(kMostPrompts));
    }
    std::vector<RequestPrompt> prompts;
    for (const Json& entry : prompt) prompts.push_back(one(entry));
    return prompts;
  }

 private:
  RequestPrompt ids(const Json& list) const {
    RequestPrompt prompt;
    for (const Json& item : list) {
      int64_t id = 0;
      if (!integer_in(item, 0, INT32_MAX, id)) {
        body_.fail(name_ + " holds " + value_text(item) + ", which is no token id" + advice_);
      }
      prompt.ids.push_back(static_cast<int32_t>(id));
    }
    if (prompt.ids.empty()) body_.fail(name_ + " is empty; give at least one token id");
    return prompt;
  }

  const Fields& body_;
  const std::string name_;
  const char* const advice_;
};

int read_max_tokens(const Fields& body, int otherwise, bool may_be_none) {
  const auto of = [&](const char* key) { return body.integer(key, INT32_MIN, INT32_MAX); };
  const bool old_name = body.has("max_tokens");
  const bool new_name = body.has("max_completion_tokens");
  if (!old_name && !new_name) return otherwise;
  const char* key = new_name ? "max_completion_tokens" : "max_tokens";
  const int64_t value = of(key);
  if (old_name && new_name && of("max_tokens") != value) {
    body.fail("max_tokens and max_completion_tokens differ; give one of them");
  }
  if (value == 0 && may_be_none) return 0;
  check_max_tokens(static_cast<int>(value),
                   body.path() + ": " + body.name(key) + " " + std::to_string(value));
  return static_cast<int>(value);
}

std::vector<std::string> read_stop(const Fields& body, const std::vector<std::string>& otherwise) {
  const Json* stop = body.find("stop");
  if (stop == nullptr) return otherwise;
  std::vector<std::string> texts;
  for (const Json& item : stop->is_array() ? *stop : Json::array({*stop})) {
    if (!item.is_string() || item.get_ref<const std::string&>().empty()) {
      body.fail(body.name("stop") + " holds " + value_text(item) +
                ", expected texts that are not empty");
    }
    texts.push_back(item.get<std::string>());
  }
  return texts;
}

// {"id": bias, ...}, as in OpenAI's API.
std::vector<LogitBias> read_logit_bias(const Fields& body,
                                       const std::vector<LogitBias>& otherwise) {
  if (!body.has("logit_bias")) return otherwise;
  const Fields entries = body.object("logit_bias");
  std::map<int32_t, float> biases;  // in ascending order
  for (const auto& [key, value] : entries.json().items()) {
    const bool is_id =
        !key.empty() && key.size() <= 9 &&
        std::all_of(key.begin(), key.end(), [](char c) { return c >= '0' && c <= '9'; });
    if (!is_id) {
      body.fail(body.name("logit_bias") + " has " + value_text(Json(key)) +
                " for a token id, expected \"15043\" for example");
    }
    // Kept within the floats: sampling_problem() refuses what is that large.
    constexpr double kMost = std::numeric_limits<float>::max();
    biases[std::stoi(key)] = static_cast<float>(std::clamp(entries.number(key), -kMost, kMost));
  }
  std::vector<LogitBias> list;
  for (const auto& [id, bias] : biases) list.push_back({id, bias});
  return list;
}

// Those of OpenAI's API: `logprobs` true and `top_logprobs` of a chat, `logprobs` N of a
// completion.
std::optional<int> read_logprobs(const Fields& body, bool is_chat) {
  constexpr int kMost = 20;
  const Json* wanted = body.find("logprobs");
  if (!is_chat) {
    if (body.has("top_logprobs") && body.get("top_logprobs") != 0) {
      body.fail(body.name("top_logprobs") + " is a field of chats; use logprobs with a number");
    }
    if (wanted == nullptr || *wanted == false) return std::nullopt;
    return static_cast<int>(body.integer("logprobs", 0, kMost));
  }
  const bool is_on = wanted != nullptr && body.boolean("logprobs");
  const int top =
      body.has("top_logprobs") ? static_cast<int>(body.integer("top_logprobs", 0, kMost)) : 0;
  if (!is_on && top > 0) {
    body.fail(body.name("top_logprobs") + " changes nothing without \"logprobs\":true");
  }
  return is_on ? std::optional(top) : std::nullopt;
}

SamplingOptions read_sampling(const Fields& body, const BodyForm& form,
                              const SamplingOptions& otherwise) {
  SamplingOptions options = otherwise;
  // Who writes top_p for OpenAI counts on its temperature.
  if (form.is_openai && otherwise.temperature == 0 && body.has("top_p") &&
      !body.has("temperature")) {
    options.temperature = 1;
  }
  const auto number = [&](const char* key, double& option) {
    if (body.has(key)) option = body.number(key);
  };
  number("temperature", options.temperature);
  number("top_p", options.top_p);
  number("min_p", options.min_p);
  if (body.has("repeat_penalty") && body.has("repetition_penalty")) {
    body.fail("repeat_penalty and repetition_penalty are two names of one option; give one");
  }
  number("repeat_penalty", options.repeat_penalty);
  number("repetition_penalty", options.repeat_penalty);
  number("frequency_penalty", options.frequency_penalty);
  number("presence_penalty", options.presence_penalty);
  options.logit_bias = read_logit_bias(body, otherwise.logit_bias);
  if (body.has("top_k")) {
    // -1 is vLLM's way to switch it off.
    options.top_k = static_cast<int>(std::max<int64_t>(0, body.integer("top_k", -1, INT32_MAX)));
  }
  if (const Json* seed = body.find("seed")) {
    if (!seed->is_number_unsigned()) {
      body.fail(body.name("seed") + " is " + value_text(*seed) +
                ", expected an integer from 0 to 18446744073709551615");
    }
    options.seed = seed->get<uint64_t>();
  }
  const std::string problem = sampling_problem(options);
  if (!problem.empty()) body.fail(problem);
  if (options.temperature > 0 || form.is_served) return options;
  // An option without effect is refused, as on the command line.
  const auto idle = [&](const char* key, bool is_off) {
    if (!body.has(key) || is_off) return;
    body.fail(body.name(key) +
              " changes nothing in a greedy request; add temperature (0.7 for example), or --temp "
              "or --sample for all requests");
  };
  idle("top_p", options.top_p == 1);
  idle("top_k", options.top_k == 0);
  idle("min_p", options.min_p == 0);
  return options;
}

void read_streaming(const Fields& body, AnswerRequest& request) {
  if (body.has("stream")) request.stream = body.boolean("stream");
  if (!body.has("stream_options")) return;
  const Fields options = body.object("stream_options");
  if (!request.stream) {
    body.fail(body.name("stream_options") + " changes nothing without \"stream\":true");
  }
  // The padding of include_obfuscation would hide the lengths of tokens; it is left out.
  require_known_names(options, {"include_usage", "continuous_usage_stats", "include_obfuscation"});
  const auto is_on = [&](const char* key) { return options.has(key) && options.boolean(key); };
  request.stream_usage = is_on("include_usage");
  request.stream_continuous_usage = is_on("continuous_usage_stats");
}

std::vector<std::string> body_names(const BodyForm& form) {
  std::vector<std::string> names = form.own_names;
  names.emplace_back(form.is_chat ? "messages" : "prompt");
  if (form.is_served) names.emplace_back("stream");
  if (form.is_served && !form.is_chat) names.emplace_back("echo");
  return names;
}

}  // namespace

AnswerRequest request_of(const RequestDefaults& defaults) {
  AnswerRequest request;
  request.max_tokens = defaults.max_tokens;
  request.stop = defaults.stop;
  request.sampling = defaults.sampling;
  request.ignore_eos = defaults.ignore_eos;
  return request;
}

void require_known_names(const Fields& fields, const std::vector<std::string>& names) {
  for (const auto& [name, value] : fields.json().items()) {
    if (value.is_null() || std::find(names.begin(), names.end(), name) != names.end()) continue;
    fields.fail(fields.name(printable(name)) + " is unknown" + did_you_mean(name, names));
  }
}

std::vector<RequestPrompt> read_prompts(const Fields& body, const std::string& key) {
  return PromptReader(body, key, "").all(body.get(key));
}

AnswerRequest read_request_body(const Fields& body, const BodyForm& form,
                                const RequestDefaults& defaults) {
  check_body_names(body, body_names(form));
  AnswerRequest request = request_of(defaults);
  request.is_chat = form.is_chat;
  if (form.is_chat) {
    request.messages = read_messages(body, defaults);
  } else {
    request.prompts =
        form.is_served
            ? read_prompts(body, "prompt")
            : std::vector{PromptReader(body, "prompt", "; several prompts are several requests")
                              .one(body.get("prompt"))};
  }
  if (form.is_served) read_streaming(body, request);
  if (form.is_served && body.has("echo")) request.echo = body.boolean("echo");
  request.max_tokens = read_max_tokens(body, defaults.max_tokens, request.echo);
  request.stop = read_stop(body, defaults.stop);
  constexpr int kMostAnswers = 128;
  if (body.has("n")) request.n = static_cast<int>(body.integer("n", 1, kMostAnswers));
  request.top_logprobs = read_logprobs(body, form.is_chat);
  request.sampling = read_sampling(body, form, defaults.sampling);
  request.has_own_seed = body.has("seed");
  if (body.has("ignore_eos")) request.ignore_eos = body.boolean("ignore_eos");
  if (body.has("return_token_ids")) request.return_token_ids = body.boolean("return_token_ids");
  return request;
}

}  // namespace edgellm
