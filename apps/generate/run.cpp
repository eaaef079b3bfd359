// edgellm run: a prompt in, its continuation out.
#include <algorithm>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "apps/commands.h"
#include "apps/common/signals.h"
#include "apps/common/terminal.h"
#include "apps/common/text_format.h"
#include "apps/common/timings.h"
#include "apps/common/version.h"
#include "apps/session/answer_flags.h"
#include "apps/session/chat_prompt.h"
#include "apps/session/model_flags.h"
#include "apps/session/prompt.h"
#include "apps/session/sampling_flags.h"
#include "base/error.h"
#include "base/hash.h"
#include "base/text.h"
#include "engine/generate.h"
#include "tokenizer/text_stream.h"

namespace edgellm {
namespace {

struct Flags {
  std::string model;
  PromptFlags prompt;
  EngineFlags engine;
  SamplingFlags sampling;
  bool chat = false;
  ChatFlags chat_flags;
  AnswerFlags answer;
  bool ignore_eos = false;
  bool json = false;
  bool verbose = false;
  bool stream = false;
  bool no_stream = false;
  bool print_prompt = false;
  std::optional<int> logprobs;
};

// What is written to stdout before the run has ended.
enum class Streaming {
  kNothing,
  kText,    // the text as it becomes final
  kEvents,  // a line of JSON for each token
};

Streaming streaming_of(const Flags& flags) {
  if (flags.json) return flags.stream ? Streaming::kEvents : Streaming::kNothing;
  return flags.no_stream ? Streaming::kNothing : Streaming::kText;
}

// Collects the answer and shows it as it comes: text where the model has a tokenizer, else ids with
// blanks between them.
class Answer {
 public:
  Answer(const Tokenizer* tokenizer, std::vector<std::string> stop_strings, Streaming streaming)
      : streaming_(streaming) {
    if (tokenizer != nullptr) text_stream_.emplace(*tokenizer, std::move(stop_strings));
  }

  // Text to stand before the answer, where a text is printed, and its ids.
  void begin_with(const std::string& prompt, std::span<const int32_t> ids) {
    if (prompt.empty()) return;
    prompt_ = prompt;
    if (text_stream_) text_stream_->start_behind(ids);
    if (streaming_ == Streaming::kText) write(prompt_);
  }

  // One token; a stop token has no text. `details` are more fields of its event. False when the
  // answer has ended: at a stop string, or because nobody reads it any more.
  bool push(int32_t id, bool is_stop, const nlohmann::ordered_json& details) {
    std::string piece;
    if (text_stream_) {
      if (!is_stop) piece = text_stream_->push(id);
    } else if (!is_stop) {
      piece = (text_.empty() ? "" : " ") + std::to_string(id);
    }
    nlohmann::ordered_json event = {{"id", id}};
    event["text"] = text_stream_ ? nlohmann::ordered_json(piece) : nullptr;
    event.update(details);
    append(piece, event);
    return !reader_gone_ && !(text_stream_ && text_stream_->stopped());
  }

  // Text that was held back to the end becomes an event without an id.
  void finish() {
    if (!text_stream_) return;
    const std::string piece = text_stream_->finish();
    if (!piece.empty()) append(piece, {{"id", nullptr}, {"text", piece}});
  }

  // What is still to be written to stdout of a text, with the newline that ends it.
  void print_rest() {
    const std::string all = prompt_ + text_;
    if (all.empty()) return;
    std::string rest = streaming_ == Streaming::kText ? "" : all;
    if (all.back() != '\n') rest += '\n';
    write(rest);
  }

  void print_object(const nlohmann::ordered_json& json) { write(json_line(json)); }

  const std::string& text() const { return text_; }

 private:
  void append(const std::string& piece, const nlohmann::ordered_json& event) {
    text_ += piece;
    if (streaming_ == Streaming::kText) write(piece);
    if (streaming_ == Streaming::kEvents) write(json_line(event));
  }

  void write(const std::string& bytes) {
    if (!reader_gone_) reader_gone_ = !write_stdout(bytes);
  }

  std::optional<TextStream> text_stream_;
  std::string prompt_;
  std::string text_;
  Streaming streaming_;
  bool reader_gone_ = false;
};

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
std::string shown_prompt(const PromptFlags& flags, const PromptText& prompt,
                         std::span<const int32_t> ids, const Tokenizer* tokenizer) {
  if (!flags.ids_file) return prompt.text;
  std::string text;
  if (tokenizer == nullptr) {
    for (const int32_t id : ids) text += std::to_string(id) + " ";
    return text;
  }
  TextStream stream(*tokenizer, {});
  for (const int32_t id : ids) text += stream.push(id);
  return text + stream.finish();
}

struct Timings {
  int64_t total_ns = 0;
  int64_t load_ns = 0;
};

// All that was found out, for --json and --verbose.
struct Report {
  const ModelFile* model;
  const Backend* backend;
  const EngineOptions* options;
  const SamplingOptions* sampling;
  std::span<const int32_t> prompt_ids;
  const GenerateResult* result;
  Timings timings;

  int64_t prompt_count() const { return static_cast<int64_t>(prompt_ids.size()); }
  int64_t eval_count() const { return static_cast<int64_t>(result->token_ids.size()); }
  double prompt_tps() const { return per_second(prompt_count(), result->prompt_eval_ns); }
  // The first token comes out of the prompt's evaluation: the rate is of those after it.
  int64_t timed_tokens() const { return std::max<int64_t>(0, eval_count() - 1); }
  double eval_tps() const { return per_second(timed_tokens(), result->eval_ns); }
};

// The eight lines are Ollama's, in its words and layout, left out where they have nothing to say,
// so that the two tools can be compared line by line.
void print_verbose(const Report& report) {
  const GenerateResult& result = *report.result;
  std::string out;
  const auto line = [&out](const char* label, const std::string& value) {
    std::string start = label;
    start.resize(22, ' ');
    out += start + value + "\n";
  };
  line("total duration:", go_duration(report.timings.total_ns));
  line("load duration:", go_duration(report.timings.load_ns));
  line("prompt eval count:", std::to_string(report.prompt_count()) + " token(s)");
  line("prompt eval duration:", go_duration(result.prompt_eval_ns));
  line("prompt eval rate:", fixed(report.prompt_tps(), 2) + " tokens/s");
  if (report.eval_count() > 0) {
    line("eval count:", std::to_string(report.eval_count()) + " token(s)");
  }
  if (report.timed_tokens() > 0) {
    line("eval duration:", go_duration(result.eval_ns));
    line("eval rate:", fixed(report.eval_tps(), 2) + " tokens/s");
  }

  const Percentiles gaps = percentiles(result.inter_token_ns);
  const MemoryPlan memory = report.backend->memory();
  const HeadStats head = report.backend->head_stats();
  const uint64_t token_bytes = weight_bytes_per_token(*report.model, memory.head_copy);
  line("time to first token:", go_duration(result.ttft_ns));
  if (report.timed_tokens() > 0) {
    line("inter-token p50:", go_duration(gaps.p50));
    line("inter-token p99:", go_duration(gaps.p99));
    line("weights read:", human_bytes(token_bytes) + " per token, " +
                              fixed(static_cast<double>(token_bytes) * report.eval_tps() / 1e9, 2) +
                              " GB/s");
  }
  const SamplingOptions& sampling = *report.sampling;
  line("sampling:", sampling.is_argmax() ? "greedy" : edgellm::to_json(sampling).dump());
  line("head:",
       head.steps == 0
           ? "full"
           : "int8, certified; rows rescored: mean " +
                 fixed(static_cast<double>(head.rescored) / static_cast<double>(head.steps), 1) +
                 ", most " + std::to_string(head.most_rescored) + " of " +
                 std::to_string(report.model->config().vocab));
  line("memory:", human_bytes(memory.weights) + " weights, " +
                      (memory.head_copy > 0 ? human_bytes(memory.head_copy) + " int8 head, " : "") +
                      human_bytes(memory.kv_cache) + " KV cache, " + human_bytes(memory.workspace) +
                      " workspace");
  const StepLaunches step = report.backend->step_launches(1);
  if (step.launches > 0) {
    line("launches:",
         std::to_string(step.launches) + " per token" +
             (step.graph_nodes > 0 ? ", a graph of " + std::to_string(step.graph_nodes) + " nodes"
                                   : std::string()));
  }
  line("context:", std::to_string(report.backend->context()) + " tokens");
  line("device:", report.backend->device_name());
  std::fputs(out.c_str(), stderr);
}

// Hash of the generated ids as little-endian int32 (the only byte order this program runs on).
std::string output_hash(std::span<const int32_t> ids) {
  return hex64(xxh3(ids.data(), ids.size_bytes()));
}

nlohmann::ordered_json to_json(const Report& report, const nlohmann::ordered_json& text) {
  const ModelFile& model = *report.model;
  const GenerateResult& result = *report.result;
  const Percentiles gaps = percentiles(result.inter_token_ns);
  return {
      {"schema", "edgellm.run/1"},
      {"version", build_info().version},
      {"model",
       {{"path", model.path()},
        {"id", hex64(model.id())},
        {"architecture", model.config().architecture},
        {"params", model.parameter_count()},
        {"bytes", model.file_bytes()}}},
      {"prompt_ids", report.prompt_ids},
      {"token_ids", result.token_ids},
      {"text", text},
      {"finish_reason", to_string(result.finish_reason)},
      {"timings",
       {{"total_ns", report.timings.total_ns},
        {"load_ns", report.timings.load_ns},
        {"prompt_eval_count", report.prompt_count()},
        {"prompt_eval_ns", result.prompt_eval_ns},
        {"prompt_tps", report.prompt_tps()},
        {"eval_count", report.eval_count()},
        {"eval_ns", result.eval_ns},
        {"eval_tps", report.eval_tps()},
        {"ttft_ns", result.ttft_ns},
        {"itl_ns", {{"p50", gaps.p50}, {"p90", gaps.p90}, {"p99", gaps.p99}, {"max", gaps.max}}}}},
      {"device", report.backend->device_name()},
      {"threads", report.options->threads},
      {"kv_type", report.options->kv_type == KvType::kF32 ? "f32" : "f16"},
      {"context", report.backend->context()},
      {"sampling", edgellm::to_json(*report.sampling)},
      {"output_hash", output_hash(result.token_ids)}};
}

void require_room(size_t n_prompt, int context, int max_context) {
  if (n_prompt < static_cast<size_t>(context)) return;
  const std::string needed = std::to_string(n_prompt + 1);
  throw Error(ExitCode::kPromptDoesNotFit,
              "the prompt is " + std::to_string(n_prompt) +
                  " tokens and needs a context of at least " + needed + ", but the context is " +
                  std::to_string(context) + "; " +
                  (n_prompt < static_cast<size_t>(max_context)
                       ? "use -c " + needed
                       : "shorten the prompt, the model allows no more than " +
                             std::to_string(max_context)));
}

void check_flags(const Flags& flags) {
  check_answer_flags(flags.answer);
  check_sampling_flags(flags.sampling);
}

int run(const Flags& flags) {
  check_flags(flags);
  const Device device = choose_device(flags.engine);

  const Stopwatch total;
  const ModelFile model = open_model(flags.model);
  const auto tokenizer = load_tokenizer(model);
  const Tokenizer* const tokenizer_or_null = tokenizer ? &*tokenizer : nullptr;
  if (tokenizer_or_null == nullptr && !flags.answer.stop.empty()) {
    throw Error(ExitCode::kUsage, model.path() + " has no tokenizer, so --stop has no meaning");
  }
  std::optional<ChatPrompt> chat;
  if (flags.chat) chat.emplace(model, tokenizer_or_null, flags.chat_flags.parse_special);
  EngineOptions options = engine_options(flags.engine, model.config());
  const SamplingOptions sampling =
      sampling_options(flags.sampling, model.tokenizer(), model.path());
  // A step whose logits are wanted computes all of them.
  if (!sampling.is_argmax() || flags.logprobs) options.full_head = true;

  const int64_t opening_ns = total.elapsed_ns();

  PromptText prompt = flags.prompt.ids_file ? PromptText{} : read_prompt(flags.prompt);
  const int64_t waiting_ns = total.elapsed_ns() - opening_ns;  // for whoever writes standard input
  std::vector<int32_t> ids;
  if (chat) {
    require_prompt(prompt);
    const ChatText text = chat->render(first_messages(flags.chat_flags.system, prompt.text));
    ids = chat->encode(text);
    prompt.text = text.text;
  } else {
    ids = prompt_ids(flags.prompt, prompt, model, tokenizer_or_null);
  }
  require_room(ids.size(), options.context, model.config().max_context);

  const Stopwatch preparing;
  check_contents(model, flags.engine);
  const auto backend = make_backend(model, flags.engine, device, options);
  const int64_t load_ns = opening_ns + preparing.elapsed_ns();

  const std::vector<int32_t>& stop_ids = model.tokenizer().stop_ids;
  Answer answer(tokenizer_or_null, flags.answer.stop, streaming_of(flags));
  const std::string prompt_text =
      flags.print_prompt ? shown_prompt(flags.prompt, prompt, ids, tokenizer_or_null) : "";
  if (!flags.json) answer.begin_with(prompt_text, ids);
  nlohmann::ordered_json details = nlohmann::ordered_json::object();  // of the token to come
  auto logprobs = nlohmann::ordered_json::array();                    // of all tokens
  GenerateRequest request;
  request.prompt_ids = ids;
  request.max_tokens = flags.answer.max_tokens;
  request.stop_ids = stop_ids;
  request.ignore_stop_ids = flags.ignore_eos;
  request.sampling = sampling;
  if (flags.logprobs) {
    request.top_logprobs = *flags.logprobs;
    request.on_logprobs = [&](const TokenLogprobs& of_token) {
      details = to_json(of_token, tokenizer_or_null);
      logprobs.push_back(details);
    };
  }
  request.on_token = [&](int32_t id) {
    const bool is_stop = std::binary_search(stop_ids.begin(), stop_ids.end(), id);
    return answer.push(id, is_stop, details);
  };
  request.interrupted = [] { return received_signal() != 0; };
  const GenerateResult result = generate(*backend, request);
  answer.finish();

  const Report report = {
      .model = &model,
      .backend = backend.get(),
      .options = &options,
      .sampling = &sampling,
      .prompt_ids = ids,
      .result = &result,
      .timings = {.total_ns = total.elapsed_ns() - waiting_ns, .load_ns = load_ns}};
  if (flags.json) {
    const auto text_or_null = [&](const std::string& text) {
      return tokenizer ? nlohmann::ordered_json(text) : nullptr;
    };
    nlohmann::ordered_json json = to_json(report, text_or_null(answer.text()));
    if (flags.print_prompt) json["prompt"] = text_or_null(prompt_text);
    if (flags.logprobs) json["logprobs"] = logprobs;
    answer.print_object(json);
  } else {
    answer.print_rest();
  }
  const bool interrupted = result.finish_reason == FinishReason::kInterrupted;
  if (flags.verbose || (interrupted && !flags.json)) print_verbose(report);
  return interrupted ? 128 + received_signal() : 0;
}

}  // namespace

Command add_run(CLI::App& root) {
  CLI::App* app = root.add_subcommand("run", "Continue a prompt");
  app->footer(
      "  edgellm run model.tmac2 \"Once upon a time\"\n"
      "  edgellm run model.tmac2 \"Once upon a time\" --sample --seed 7\n"
      "  edgellm run model.tmac2 --chat \"Who was Ada Lovelace?\" --system \"Be brief.\"\n"
      "  edgellm run model.tmac2 -f notes.txt -n 200 --verbose\n"
      "  cat notes.txt | edgellm run model.tmac2 -p \"In short:\" --stop \"The End\" --json");
  auto flags = std::make_shared<Flags>();
  add_model_argument(*app, flags->model);
  add_prompt_options(*app, flags->prompt, PromptForms::kAll);
  CLI::Option* chat = app->add_flag("--chat", flags->chat,
                                    "The prompt is a message, put into the model's chat template")
                          ->excludes("--ids-file")
                          ->option_text(" ");
  for (CLI::Option* option : add_chat_options(*app, flags->chat_flags)) option->needs(chat);
  add_answer_options(*app, flags->answer);
  app->add_flag("--ignore-eos", flags->ignore_eos, "Never choose a token that ends the answer");
  add_engine_options(*app, flags->engine);
  app->add_flag("--full-head", flags->engine.full_head,
                "Compute every logit of every token, without an int8 copy of the head; changes "
                "speed and memory, never the result");
  add_sampling_options(*app, flags->sampling);
  app->add_flag("--print-prompt", flags->print_prompt,
                "Print the prompt before the answer; with --json as a field");
  CLI::Option* no_stream =
      app->add_flag("--no-stream", flags->no_stream, "Print the answer when it is complete")
          ->option_text(" ");
  CLI::Option* json =
      app->add_flag("--json", flags->json, "Print one JSON object instead of the text");
  app->add_flag("--stream", flags->stream,
                "With --json: a line for each token as it comes, then the object")
      ->needs(json)
      ->excludes(no_stream)
      ->option_text(" ");
  app->add_option_function<int>(
         "--logprobs", [flags](int n) { flags->logprobs = n; },
         "With --json: log-probabilities of each token and of the N most probable in its place")
      ->check(CLI::Range(0, INT32_MAX).description(""))
      ->needs(json)
      ->option_text("N");
  app->add_flag("--verbose", flags->verbose, "Print timings and memory to standard error");
  return {app, [flags] { return run(*flags); }};
}

}  // namespace edgellm
