// edgellm chat: a conversation at a terminal, or of the lines of a pipe.
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <memory>

#include "apps/common/signals.h"
#include "apps/common/terminal.h"
#include "apps/common/text_format.h"
#include "apps/common/timings.h"
#include "apps/flags/flags.h"
#include "apps/generate/chat_input.h"
#include "apps/generate/commands.h"
#include "apps/generate/conversation.h"
#include "apps/generate/conversation_file.h"
#include "apps/generate/repetition.h"
#include "apps/session/answer_options.h"
#include "apps/session/chat_prompt.h"
#include "apps/session/leading_space.h"
#include "apps/session/model_folders.h"
#include "apps/session/sampling_choice.h"
#include "apps/session/session.h"
#include "base/error.h"
#include "base/text.h"
#include "engine/generate.h"
#include "tokenizer/text_stream.h"

namespace edgellm {
namespace {

struct ChatFlags {
  ModelChoice model;
  ChatOptions chat;
  SessionOptions engine;
  SamplingChoice sampling;
  AnswerOptions answer;
  bool greedy = false;
  bool verbose = false;
};

constexpr const char* kHelp =
    "  /clear            forget the conversation; the system message stays\n"
    "  /set              show the settings\n"
    "  /set NAME VALUE   temp, top-k, top-p, min-p, repeat-penalty, frequency-penalty,\n"
    "                    presence-penalty, seed, max-tokens, system\n"
    "  /regenerate       answer the last message anew\n"
    "  /save FILE        write the conversation as JSON\n"
    "  /load FILE        continue a conversation of such a file\n"
    "  /help             this\n"
    "  /bye              end (so do /exit, /quit and Ctrl-D)\n"
    "  //...             a message that begins with /\n"
    "A message of several lines stands between \"\"\" and \"\"\"; at a terminal, a line that ends\n"
    "with \\ continues in the next. Ctrl-C stops an answer.\n";

class Chat {
 public:
  Chat(const ChatFlags& flags, const ModelFile& model, const Tokenizer& tokenizer,
       const ChatPrompt& prompt, Backend& backend, const SamplingOptions& sampling)
      : flags_(flags),
        stop_ids_(model.tokenizer().stop_ids),
        tokenizer_(tokenizer),
        backend_(backend),
        sampling_(sampling),
        seed_is_given_(flags.sampling.seed.has_value()),
        max_tokens_(flags.answer.max_tokens),
        conversation_(prompt, flags.chat.system) {}

  int run() {
    if (input_.is_terminal()) {
      let_interrupt_end_answers();
      print_note("/help lists the commands, /bye ends");
    }
    std::string message;
    while (!reader_gone_ && !done_) {
      const ChatInput::Event event = input_.read(message);
      if (event == ChatInput::Event::kEnd) break;
      if (event == ChatInput::Event::kMessage) take(message);
    }
    return 0;
  }

 private:
  // At a terminal an error is told and the conversation continues, in a pipe it ends the program.
  void take(const std::string& message) {
    if (!input_.is_terminal()) {
      act_on(message);
      return;
    }
    try {
      act_on(message);
    } catch (const Error& error) {
      if (error.code() == ExitCode::kRuntime || error.code() == ExitCode::kDevice) throw;
      print_error(error.what());
    }
  }

  void act_on(const std::string& message) {
    if (message.starts_with("//")) {
      ask(message.substr(1));
    } else if (message.starts_with('/')) {
      command(message.substr(1));
    } else {
      ask(message);
    }
  }

  void command(const std::string& line) {
    const auto [name, rest] = split_word(line);
    if (name == "clear" && rest.empty()) {
      conversation_.clear();
    } else if (name == "set") {
      set(rest);
    } else if ((name == "help" || name == "?") && rest.empty()) {
      std::fputs(kHelp, stderr);
    } else if (name == "regenerate" && rest.empty()) {
      // With a seed that was given, the next one: the same would give the same answer.
      if (seed_is_given_) ++sampling_.seed;
      conversation_.ask_again();
      if (sampling_.temperature == 0) {
        print_note("answers are greedy, so this one is the same again; /set temp 0.7 samples");
      }
      answer();
    } else if (name == "save" || name == "load") {
      if (rest.empty())
        throw Error(ExitCode::kUsage, "/" + name + " needs a file: /" + name + " FILE");
      if (name == "save") {
        save(rest);
        print_note("wrote " + rest);
      } else {
        std::vector<ChatMessage> messages = load_conversation(rest);
        print_note("continuing " + counted(std::ssize(messages), "message"));
        conversation_.replace(std::move(messages));
      }
    } else if ((name == "bye" || name == "exit" || name == "quit") && rest.empty()) {
      done_ = true;
    } else {
      throw Error(ExitCode::kUsage, "there is no command /" + line +
                                        "; /help lists the commands, and a message that begins "
                                        "with / is written //...");
    }
  }

  // The first word, and what stands behind the spaces after it.
  static std::pair<std::string, std::string> split_word(const std::string& line) {
    const size_t end = std::min(line.find(' '), line.size());
    const size_t rest = std::min(line.find_first_not_of(' ', end), line.size());
    return {line.substr(0, end), line.substr(rest)};
  }

  void set(const std::string& words) {
    const auto [name, value] = split_word(words);
    if (name.empty()) {
      show_settings();
    } else if (name == "system") {
      conversation_.set_system(value);
    } else if (name == "max-tokens") {
      max_tokens_ = parse_max_tokens(value);
    } else if (name == "seed" && value == "random") {
      seed_is_given_ = false;
    } else {
      set_sampling_option(sampling_, name, value);
      if (name == "seed") seed_is_given_ = true;
      if (sampling_.temperature == 0 && name != "temp" && !name.ends_with("-penalty")) {
        print_note(name + " takes effect when temp is above 0");
      }
    }
  }

  static int parse_max_tokens(const std::string& value) {
    int number = 0;
    const char* const end = value.data() + value.size();
    const auto [rest, error] = std::from_chars(value.data(), end, number);
    check_max_tokens(error == std::errc() && rest == end ? number : 0, "'" + value + "'");
    return number;
  }

  void show_settings() const {
    std::string out;
    const auto line = [&](const char* name, const nlohmann::ordered_json& value) {
      out += "  /set " + std::string(name) + " " + value.dump() + "\n";
    };
    line("temp", sampling_.temperature);
    line("top-k", sampling_.top_k);
    line("top-p", sampling_.top_p);
    line("min-p", sampling_.min_p);
    line("repeat-penalty", sampling_.repeat_penalty);
    line("frequency-penalty", sampling_.frequency_penalty);
    line("presence-penalty", sampling_.presence_penalty);
    out += "  /set seed " + (seed_is_given_ ? std::to_string(sampling_.seed) : "random") + "\n";
    line("max-tokens", max_tokens_);
    out += "  /set system " + conversation_.system().value_or("") + "\n";
    std::fputs(out.c_str(), stderr);
  }

  // A disk that is full does not end a conversation at a terminal.
  void save(const std::string& path) const {
    try {
      save_conversation(conversation_.messages(), path);
    } catch (const Error& error) {
      throw Error(ExitCode::kUsage, error.what());
    }
  }

  void ask(const std::string& message) {
    conversation_.ask(message);
    require_room();
    answer();
  }

  void answer() {
    TextStream stream(tokenizer_, flags_.answer.stop);
    std::string text;  // of the model, for the template
    std::string shown;
    LeadingSpace leading_space;
    const auto show = [&](const std::string& piece) {
      text += piece;
      const std::string to_show = leading_space.dropped_from(piece);
      shown += to_show;
      if (!reader_gone_) reader_gone_ = !write_stdout(to_show);
    };
    if (!seed_is_given_) sampling_.seed = fresh_seed();
    GenerateRequest request;
    request.prompt_ids = conversation_.prompt_ids();
    request.n_cached = conversation_.n_cached();
    request.max_tokens = max_tokens_;
    request.stop_ids = stop_ids_;
    request.sampling = sampling_;
    request.on_token = [&](int32_t id) {
      const bool is_stop = std::binary_search(stop_ids_.begin(), stop_ids_.end(), id);
      if (!is_stop) show(stream.push(id));
      return !reader_gone_ && !stream.stopped();
    };
    request.interrupted = [] { return received_signal() != 0; };
    const GenerateResult result = generate(backend_, request);
    show(stream.finish());
    if (!shown.ends_with('\n') && !reader_gone_) reader_gone_ = !write_stdout("\n");

    if (flags_.verbose) print_numbers(result);
    conversation_.answered(result, stop_ids_, text);
    if (result.finish_reason == FinishReason::kContext) {
      print_note("the context of " + std::to_string(backend_.info().context) +
                 " tokens is full, so the answer ends here; /clear begins a new conversation");
    }
    if (repeats_itself(result.token_ids)) {
      print_note(std::string("the answer repeats itself; try ") +
                 (sampling_.temperature > 0 ? "/set repeat-penalty 1.2" : "/set temp 0.7"));
    }
    if (result.finish_reason == FinishReason::kInterrupted) {
      if (!input_.is_terminal() || !take_interrupt()) throw_if_interrupted();
    }
  }

  void require_room() {
    const size_t n = conversation_.prompt_ids().size();
    if (n < static_cast<size_t>(backend_.info().context)) return;
    conversation_.take_back();
    throw Error(ExitCode::kPromptDoesNotFit,
                "the conversation with this message is " + std::to_string(n) +
                    " tokens, but the context is " + std::to_string(backend_.info().context) +
                    "; /clear begins a new one, and chat -c N allows more where the model does");
  }

  // How much was computed: n tokens of the prompt, the others were in the cache.
  void print_numbers(const GenerateResult& result) const {
    const size_t n_prompt = conversation_.prompt_ids().size();
    const auto n_cached = static_cast<size_t>(conversation_.n_cached());
    const size_t n_answer = result.token_ids.size();
    const auto n_timed = static_cast<int64_t>(n_answer) - 1;  // the first comes with the prompt
    print_note(
        "prompt " + std::to_string(n_prompt - n_cached) + " tokens (" + std::to_string(n_cached) +
        " cached), " +
        fixed(per_second(static_cast<int64_t>(n_prompt - n_cached), result.prompt_eval_ns), 1) +
        " tokens/s; answer " + std::to_string(n_answer) + " tokens, " +
        (n_timed > 0 ? fixed(per_second(n_timed, result.eval_ns), 1) + " tokens/s; " : "") +
        "context " + std::to_string(n_prompt + n_answer) + " of " +
        std::to_string(backend_.info().context) +
        (sampling_.temperature > 0 ? "; seed " + std::to_string(sampling_.seed) : ""));
  }

  const ChatFlags& flags_;
  const std::vector<int32_t>& stop_ids_;
  const Tokenizer& tokenizer_;
  Backend& backend_;
  SamplingOptions sampling_;
  bool seed_is_given_;  // else every answer draws its own
  int max_tokens_;
  Conversation conversation_;
  ChatInput input_;
  bool reader_gone_ = false;
  bool done_ = false;
};

// The model's own defaults, with what the user says in their place.
SamplingOptions chat_sampling(const ChatFlags& flags, const ModelFile& model) {
  SamplingChoice choice = flags.sampling;
  if (!flags.greedy) {
    choice.model_defaults = choice.model_defaults || choice.names_values() ||
                            has_sampling_defaults(model.tokenizer(), model.path());
    if (!choice.model_defaults) {
      print_note(model.path() +
                 " does not say how to sample, so answers are greedy; --temp 0.7 "
                 "samples");
    }
  }
  return sampling_options(choice, model.tokenizer(), model.path());
}

int chat(const ChatFlags& flags) {
  check_answer(flags.answer);
  SamplingChoice choice = flags.sampling;
  choice.model_defaults = choice.model_defaults || !flags.greedy;
  check_sampling(choice);
  Session session(flags.model, flags.engine);
  const ModelFile& model = session.model();
  const Tokenizer* const tokenizer = session.tokenizer();
  const ChatPrompt prompt(model, tokenizer, flags.chat.parse_special);
  const EngineOptions options = session.engine_options();
  const SamplingOptions sampling = chat_sampling(flags, model);
  return Chat(flags, model, *tokenizer, prompt, session.start(options), sampling).run();
}

}  // namespace

std::vector<std::string> with_command(const Program& program,
                                      const std::vector<std::string>& arguments) {
  if (arguments.empty() || arguments.front().starts_with('-') ||
      program.has_command(arguments.front()) || !names_model(arguments.front())) {
    return arguments;
  }
  if (!is_terminal(STDIN_FILENO) || !is_terminal(STDOUT_FILENO)) {
    const std::string model = printable_path(arguments.front());
    throw Error(ExitCode::kUsage, model +
                                      " is a model, and a command is missing before it; type "
                                      "edgellm run " +
                                      model + " \"some text\", or edgellm chat " + model);
  }
  std::vector<std::string> with_chat = arguments;
  with_chat.insert(with_chat.begin(), "chat");
  return with_chat;
}

void add_chat(Program& program) {
  Command& command =
      program.add("chat", "Hold a conversation",
                  "  edgellm chat model.tmac2\n"
                  "  edgellm chat model.tmac2 --system \"Answer in one sentence.\" --temp 0.5\n"
                  "  edgellm chat model.tmac2 < questions.txt > answers.txt");
  auto flags = std::make_shared<ChatFlags>();
  add_model_argument(command, flags->model);
  add_chat_options(command, flags->chat);
  add_answer_options(command, flags->answer);
  add_engine_options(command, flags->engine);
  add_sampling_options(command, flags->sampling, SamplingDefault::kModels);
  command
      .flag("--greedy", flags->greedy,
            "Always choose the most probable token, without the model's sampling defaults")
      .group("Sampling")
      .excludes(command.find("--sample"))
      .excludes(command.find("--temp"));
  command
      .flag("--verbose", flags->verbose,
            "Print to standard error what each answer took, and what of its prompt was cached")
      .aliases("-v");
  command.on_extra_words(
      "a message is typed once the conversation has begun; edgellm run MODEL "
      "--chat \"some text\" answers a single one");
  command.runs([flags] { return chat(*flags); });
}

}  // namespace edgellm
