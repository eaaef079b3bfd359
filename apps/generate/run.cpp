// edgellm run: a prompt in, its continuation out.
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "apps/common/signals.h"
#include "apps/common/terminal.h"
#include "apps/common/text_format.h"
#include "apps/common/timings.h"
#include "apps/flags/flags.h"
#include "apps/generate/answer.h"
#include "apps/generate/commands.h"
#include "apps/generate/repetition.h"
#include "apps/generate/run_report.h"
#include "apps/session/answer_options.h"
#include "apps/session/chat_prompt.h"
#include "apps/session/prompt.h"
#include "apps/session/sampling_choice.h"
#include "apps/session/session.h"
#include "base/error.h"
#include "engine/generate.h"
#include "tokenizer/text_stream.h"

namespace edgellm {
namespace {

struct RunFlags {
  ModelChoice model;
  PromptSource prompt;
  SessionOptions engine;
  SamplingChoice sampling;
  bool chat = false;
  ChatOptions chat_options;
  // Greedy answers of small models often never end.
  AnswerOptions answer = {.max_tokens = 512, .limit_is_given = false, .stop = {}};
  bool ignore_eos = false;
  bool json = false;
  bool verbose = false;
  bool stream = false;
  bool no_stream = false;
  bool print_prompt = false;
  std::optional<int> logprobs;
};

Streaming streaming_of(const RunFlags& flags) {
  if (flags.json) return flags.stream ? Streaming::kEvents : Streaming::kNothing;
  return flags.no_stream ? Streaming::kNothing : Streaming::kText;
}

// {"logprob", "top": [{"id", "text", "logprob"}]}; the text null where the model has no tokenizer.
nlohmann::ordered_json to_json(const TokenLogprobs& logprobs, const Tokenizer* tokenizer) {
  auto top = nlohmann::ordered_json::array();
  for (const TokenLogprob& entry : logprobs.top) {
    nlohmann::ordered_json text;
    if (tokenizer != nullptr) text = std::string(tokenizer->token_bytes(entry.id));
    top.push_back({{"id", entry.id}, {"text", text}, {"logprob", entry.logprob}});
  }
  return {{"logprob", logprobs.logprob}, {"top", top}};
}

// The prompt as --print-prompt shows it: the text as it was given; for ids what they stand for.
std::string shown_prompt(const PromptSource& source, const std::string& given,
                         std::span<const int32_t> ids, const Tokenizer* tokenizer) {
  if (!source.ids_file) return given;
  std::string text;
  if (tokenizer == nullptr) {
    for (const int32_t id : ids) text += std::to_string(id) + " ";
    return text;
  }
  TextStream stream(*tokenizer, {});
  for (const int32_t id : ids) text += stream.push(id);
  return text + stream.finish();
}

void require_room(size_t n_prompt, int context, int max_context) {
  if (n_prompt < static_cast<size_t>(context)) return;
  const std::string needed = std::to_string(n_prompt + 1);
  throw Error(
      ExitCode::kPromptDoesNotFit,
      "the prompt is " + std::to_string(n_prompt) + " tokens and needs a context of at least " +
          needed + ", but the context is " + std::to_string(context) + "; " +
          (n_prompt < static_cast<size_t>(max_context)
               ? "use -c " + needed
               : "shorten the prompt; the model allows at most " + std::to_string(max_context)));
}

struct Prompt {
  std::string text;          // as the model reads it
  std::vector<int32_t> ids;  // at least one
  int64_t waiting_ns = 0;    // for those who write standard input
};

// `chat` is null where the prompt is no message.
Prompt read_prompt_ids(const RunFlags& flags, Session& session, const ChatPrompt* chat) {
  const Stopwatch waiting;
  PromptText given = flags.prompt.ids_file ? PromptText{} : read_prompt(flags.prompt);
  Prompt prompt;
  prompt.waiting_ns = waiting.elapsed_ns();
  if (chat != nullptr) {
    require_prompt(given);
    const ChatText text = chat->render(first_messages(flags.chat_options.system, given.text));
    prompt.ids = chat->encode(text);
    prompt.text = text.text;
  } else {
    prompt.ids = prompt_ids(flags.prompt, given, session.model(), session.tokenizer());
    prompt.text = given.text;
  }
  return prompt;
}

// Generates, showing the answer as it comes. `logprobs`: those of all tokens.
GenerateResult generate_answer(const RunFlags& flags, Session& session, const Prompt& prompt,
                               const SamplingOptions& sampling, Answer& answer,
                               nlohmann::ordered_json& logprobs) {
  const std::vector<int32_t>& stop_ids = session.model().tokenizer().stop_ids;
  nlohmann::ordered_json details = nlohmann::ordered_json::object();  // of the token to come
  GenerateRequest request;
  request.prompt_ids = prompt.ids;
  request.max_tokens = flags.answer.max_tokens;
  request.stop_ids = stop_ids;
  request.ignore_stop_ids = flags.ignore_eos;
  request.sampling = sampling;
  if (flags.logprobs) {
    request.top_logprobs = *flags.logprobs;
    request.on_logprobs = [&](const TokenLogprobs& of_token) {
      details = to_json(of_token, session.tokenizer());
      logprobs.push_back(details);
    };
  }
  request.on_token = [&](int32_t id) {
    const bool is_stop = std::binary_search(stop_ids.begin(), stop_ids.end(), id);
    return answer.push(id, is_stop, details);
  };
  request.interrupted = [] { return received_signal() != 0; };
  GenerateResult result = generate(session.backend(), request);
  answer.finish();
  return result;
}

// Why the answer ends where the model did not end it, and that it may not be worth much.
void print_notes(const RunFlags& flags, const Session& session, const SamplingOptions& sampling,
                 const GenerateResult& result) {
  const int context = session.backend().info().context;
  const int most = session.config().max_context;
  if (result.finish_reason == FinishReason::kContext) {
    print_note("the context of " + std::to_string(context) +
               " tokens is full, so the answer ends here; " +
               (context < most ? "-c allows more, up to " + std::to_string(most)
                               : "the model allows no more"));
  }
  if (result.finish_reason == FinishReason::kLength && !flags.answer.limit_is_given) {
    print_note("the answer ends at the default limit of " +
               std::to_string(flags.answer.max_tokens) + " tokens; -n N sets another, -n -1 none");
  }
  if (repeats_itself(result.token_ids)) {
    print_note("the answer repeats itself; try " +
               (sampling.temperature > 0 ? std::string("a higher --temp, or --repeat-penalty 1.2")
                : has_sampling_defaults(session.model().tokenizer(), session.model().path())
                    ? "--sample"
                    : "--temp 0.7"));
  }
}

int run(const RunFlags& flags) {
  check_answer(flags.answer);
  check_sampling(flags.sampling);
  Device device = choose_device(flags.engine.device, print_note);
  const bool on_gpu = device.gpu.has_value();

  const Stopwatch total;
  Session session(flags.model, flags.engine, std::move(device));
  const ModelFile& model = session.model();
  const Tokenizer* const tokenizer = session.tokenizer();
  if (tokenizer == nullptr && !flags.answer.stop.empty()) {
    throw Error(ExitCode::kUsage, model.path() + " has no tokenizer, so --stop has no meaning");
  }
  std::optional<ChatPrompt> chat;
  if (flags.chat) chat.emplace(model, tokenizer, flags.chat_options.parse_special);
  EngineOptions options = session.engine_options();
  SamplingOptions sampling = sampling_options(flags.sampling, model.tokenizer(), model.path());
  if (!flags.sampling.seed && sampling.temperature > 0) sampling.seed = fresh_seed();
  // A step whose logits are wanted computes all of them. A GPU builds its certified head while
  // loading: not for choices that it cannot serve.
  if (flags.logprobs || (on_gpu && !keeps_few_ids(sampling, model.config().vocab))) {
    options.full_head = true;
  }
  const int64_t opening_ns = total.elapsed_ns();
  const Prompt prompt = read_prompt_ids(flags, session, chat ? &*chat : nullptr);
  require_room(prompt.ids.size(), options.context, model.config().max_context);
  const Stopwatch preparing;
  session.start(options);
  const int64_t load_ns = opening_ns + preparing.elapsed_ns();

  Answer answer(tokenizer, flags.answer.stop, streaming_of(flags));
  const std::string prompt_text =
      flags.print_prompt ? shown_prompt(flags.prompt, prompt.text, prompt.ids, tokenizer) : "";
  // What the prompt was given as a message for stands in no line with it, unless it is printed.
  if (!flags.chat || (flags.print_prompt && !flags.json)) {
    answer.start_behind(prompt.ids);
  } else {
    answer.drop_leading_space();
  }
  if (!flags.json) answer.begin_with(prompt_text);
  auto logprobs = nlohmann::ordered_json::array();
  const GenerateResult result = generate_answer(flags, session, prompt, sampling, answer, logprobs);

  const RunReport report = {
      .model = &model,
      .backend = &session.backend(),
      .options = &options,
      .sampling = &sampling,
      .prompt_ids = prompt.ids,
      .result = &result,
      .timings = {.total_ns = total.elapsed_ns() - prompt.waiting_ns, .load_ns = load_ns}};
  if (flags.json) {
    const auto text_or_null = [&](const std::string& text) {
      return tokenizer != nullptr ? nlohmann::ordered_json(text) : nullptr;
    };
    nlohmann::ordered_json json = to_json(report, text_or_null(answer.text()));
    if (flags.print_prompt) json["prompt"] = text_or_null(prompt_text);
    if (flags.logprobs) json["logprobs"] = logprobs;
    answer.print_object(json);
  } else {
    answer.print_rest();
    print_notes(flags, session, sampling, result);
  }
  const bool interrupted = result.finish_reason == FinishReason::kInterrupted;
  if (flags.verbose) {
    print_verbose(report);
  } else if (interrupted && !flags.json) {
    print_note("interrupted after " + counted(report.eval_count(), "token") +
               (report.timed_tokens() > 0 ? ", " + fixed(report.eval_tps(), 1) + " tokens/s" : ""));
  }
  return interrupted ? 128 + received_signal() : 0;
}

}  // namespace

void add_run(Program& program) {
  Command& command = program.add(
      "run", "Continue a prompt",
      "  edgellm run model.tmac2 \"Once upon a time\"\n"
      "  edgellm run model.tmac2 \"Once upon a time\" --sample --seed 7\n"
      "  edgellm run model.tmac2 --chat \"Who was Ada Lovelace?\" --system \"Be brief.\"\n"
      "  edgellm run model.tmac2 -f notes.txt -n 200 --verbose\n"
      "  cat notes.txt | edgellm run model.tmac2 -p \"In short:\" --stop \"The End\" --json\n"
      "  Without --sample or --temp the most probable token is taken, always (greedy).\n"
      "  transformers' greedy generation also applies the repetition penalty of the\n"
      "  model's generation_config.json: add it as --repeat-penalty (edgellm info shows it).");
  auto flags = std::make_shared<RunFlags>();
  add_model_argument(command, flags->model);
  add_prompt_options(command, flags->prompt, PromptForms::kAll);
  const Option chat = command
                          .flag("--chat", flags->chat,
                                "The prompt is a message, put into the model's chat template")
                          .excludes(command.find("--ids-file"));
  for (const Option& option : add_chat_options(command, flags->chat_options)) option.needs(chat);
  add_answer_options(command, flags->answer);
  command.flag("--ignore-eos", flags->ignore_eos, "Never choose a token that ends the answer");
  add_engine_options(command, flags->engine);
  add_full_head_flag(command, flags->engine);
  add_sampling_options(command, flags->sampling);
  command.flag("--print-prompt", flags->print_prompt,
               "Print the prompt before the answer; with --json as a field");
  const Option no_stream =
      command.flag("--no-stream", flags->no_stream, "Print the answer when it is complete");
  const Option json =
      command.flag("--json", flags->json, "Print one JSON object instead of the text");
  command
      .flag("--stream", flags->stream,
            "With --json: a line for each token as it comes, then the object")
      .needs(json)
      .excludes(no_stream);
  command
      .option(
          "--logprobs", flags->logprobs,
          "With --json: log-probabilities of each token and of the N most probable in its place")
      .range(0, kMaxTopLogprobs)
      .needs(json)
      .value("N");
  command.flag("--verbose", flags->verbose, "Print timings and memory to standard error")
      .aliases("-v");
  command.runs([flags] { return run(*flags); });
}

}  // namespace edgellm
