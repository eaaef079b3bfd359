// edgellm perplexity: how well a model predicts a text.
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>

#include "apps/common/terminal.h"
#include "apps/common/text_format.h"
#include "apps/flags/flags.h"
#include "apps/inspect/commands.h"
#include "apps/inspect/forward_ids.h"
#include "apps/inspect/npy.h"
#include "apps/inspect/perplexity_windows.h"
#include "apps/session/prompt.h"
#include "apps/session/session.h"
#include "base/error.h"
#include "base/text.h"
#include "engine/sampling.h"

namespace edgellm {
namespace {

struct PerplexityFlags {
  ModelChoice model;
  PromptSource text;
  SessionOptions engine;
  std::string method;
  PerplexityOptions cut;
  std::string logprobs;
  bool json = false;
};

// What tokenizing adds in front of a text: many a model has a BOS in its files that no text gets.
std::optional<int32_t> added_bos(const TokenizerInfo& info, const Tokenizer* tokenizer) {
  if (!info.bos) return std::nullopt;
  if (tokenizer == nullptr) return info.add_bos ? info.bos : std::nullopt;
  constexpr const char* kAnyText = "a";
  const size_t n_plain = tokenizer->encode(kAnyText, /*add_special=*/false).size();
  const std::vector<int32_t> ids = encode_prompt(*tokenizer, info, kAnyText);
  return ids.size() > n_plain && ids.front() == *info.bos ? info.bos : std::nullopt;
}

// Ids of a file are used as they are: none is put in front of a window.
PerplexityCut cut_text(const PerplexityFlags& flags, Session& session) {
  const ModelFile& model = session.model();
  const int context = session.engine_options().context;
  const bool side_by_side = flags.cut.method == PerplexityMethod::kWindows;
  const Tokenizer* const tokenizer = session.tokenizer();
  const std::optional<int32_t> bos = added_bos(model.tokenizer(), tokenizer);
  if (flags.text.ids_file) {
    return PerplexityCut(read_ids_file(*flags.text.ids_file, model.config().vocab),
                         side_by_side ? std::nullopt : bos, context, flags.cut);
  }
  if (tokenizer == nullptr) fail_without_tokenizer(model);
  const PromptText text = read_named_text(flags.text);
  require_utf8(text);
  return PerplexityCut(side_by_side ? tokenizer->encode(text.text, /*add_special=*/false)
                                    : encode_prompt(*tokenizer, model.tokenizer(), text.text),
                       bos, context, flags.cut);
}

// ln p of the last `n_counted` ids of a window.
std::vector<float> window_logprobs(Backend& backend, std::span<const int32_t> window,
                                   size_t n_counted, const std::function<void(int n_ids)>& on_ids) {
  const auto vocab = static_cast<size_t>(backend.model().config().vocab);
  std::vector<float> logprobs;
  logprobs.reserve(n_counted);
  // The last id is only predicted, never read.
  const std::span<const int32_t> inputs = window.first(window.size() - 1);
  const ForwardWants wants = {.logits = WantLogits::kAll, .logits_from = inputs.size() - n_counted};
  forward_ids(backend, inputs, wants, [&](const ForwardPass& pass) {
    for (size_t at = 0; at < pass.logits.size(); at += vocab) {
      const int32_t next = window[wants.logits_from + logprobs.size() + 1];
      logprobs.push_back(static_cast<float>(log_probability(pass.logits.subspan(at, vocab), next)));
    }
    on_ids(pass.rows);
  });
  return logprobs;
}

void write_logprobs(NpyFile& file, const std::vector<std::vector<float>>& windows, size_t tokens) {
  const size_t length = windows.front().size();
  const bool ragged = std::any_of(windows.begin(), windows.end(),
                                  [&](const auto& window) { return window.size() != length; });
  if (windows.size() == 1 || ragged) {
    file.write_header({static_cast<int64_t>(tokens)});
  } else {
    file.write_header({static_cast<int64_t>(windows.size()), static_cast<int64_t>(length)});
  }
  for (const auto& window : windows) file.write(window);
  file.commit();
}

PerplexityFlags checked(PerplexityFlags flags) {
  if (!flags.text.any()) {
    if (is_terminal(STDIN_FILENO)) {
      throw Error(ExitCode::kUsage,
                  "no text; usage: edgellm perplexity MODEL -f FILE (see edgellm perplexity "
                  "--help)");
    }
    flags.text.file = "-";
  }
  if (!flags.method.empty()) flags.cut.method = perplexity_method_of(flags.method);
  if (!flags.cut.stride) return flags;
  if (flags.method.empty()) flags.cut.method = PerplexityMethod::kStride;
  if (flags.cut.method != PerplexityMethod::kStride) {
    throw Error(ExitCode::kUsage, "--stride changes nothing with --method " + flags.method +
                                      "; leave one of them out");
  }
  return flags;
}

std::string in_words(const PerplexityCut& cut, PerplexityMethod method) {
  std::string text = std::to_string(cut.n_counted()) + " tokens in " +
                     counted(std::ssize(cut.windows()), "window");
  if (method != PerplexityMethod::kWindows) text += " of " + std::to_string(cut.window_size());
  if (method == PerplexityMethod::kStride) text += ", stride " + std::to_string(cut.stride());
  if (method == PerplexityMethod::kLlamaCpp) text += ", llama.cpp's way";
  return text;
}

int perplexity(const PerplexityFlags& given) {
  const PerplexityFlags flags = checked(given);
  Device device = choose_device(flags.engine.device, print_note);
  std::optional<NpyFile> output;
  if (!flags.logprobs.empty()) output.emplace(flags.logprobs);

  Session session(flags.model, flags.engine, std::move(device));
  const ModelFile& model = session.model();
  const PerplexityCut cut = cut_text(flags, session);
  Backend& backend = session.start(session.engine_options(static_cast<int>(cut.longest_pass())));

  uint64_t n_read = 0;
  for (const PerplexityWindow& window : cut.windows()) n_read += window.end - window.begin;
  std::vector<std::vector<float>> logprobs;
  double sum = 0;
  double sum_of_weights = 0;
  {
    ProgressLine progress;
    const Progress show = progress.callback();
    uint64_t done = 0;
    for (const PerplexityWindow& window : cut.windows()) {
      const size_t n_counted = window.end - window.first_counted;
      logprobs.push_back(window_logprobs(backend, cut.ids_of(window), n_counted, [&](int n_ids) {
        done += static_cast<uint64_t>(n_ids);
        show("window " + std::to_string(logprobs.size() + 1) + " of " +
                 std::to_string(cut.windows().size()),
             done, n_read);
      }));
      double window_sum = 0;
      for (const float value : logprobs.back()) window_sum += static_cast<double>(value);
      sum += window_sum / static_cast<double>(n_counted) * window.weight;
      sum_of_weights += window.weight;
    }
  }
  if (output) write_logprobs(*output, logprobs, cut.n_counted());

  const double nll_mean = -sum / sum_of_weights;
  if (flags.json) {
    print_json({{"schema", "edgellm.perplexity/1"},
                {"model", {{"path", model.path()}, {"id", hex64(model.id())}}},
                {"method", to_string(flags.cut.method)},
                {"window", cut.window_size()},
                {"stride", cut.stride()},
                {"nll_mean", nll_mean},
                {"ppl", std::exp(nll_mean)},
                {"tokens", cut.n_counted()},
                {"windows", cut.windows().size()},
                {"kv_type", flags.engine.kv_type}});
  } else {
    write_stdout("perplexity " + fixed(std::exp(nll_mean), 4) + " (" + fixed(nll_mean, 6) +
                 " nats per token, " + in_words(cut, flags.cut.method) + ")\n");
  }
  return 0;
}

}  // namespace

void add_perplexity(Program& program) {
  Command& command = program.add(
      "perplexity", "Measure how well a model predicts a text",
      "  edgellm perplexity model.tmac2 -f book.txt\n"
      "  edgellm perplexity model.tmac2 -f book.txt --method llama.cpp\n"
      "  edgellm perplexity model.tmac2 -f book.txt --window 2048 --stride 512\n"
      "  edgellm perplexity model.tmac2 -f book.txt --window 1023 --json --logprobs out.npy");
  auto flags = std::make_shared<PerplexityFlags>();
  add_model_argument(command, flags->model);
  add_prompt_options(command, flags->text, PromptForms::kFiles);
  command
      .option("--method", flags->method,
              "windows: side by side, every token of each; stride: overlapping, as in "
              "transformers' guide; llama.cpp: the second half of each, as llama-perplexity "
              "[windows]")
      .check(perplexity_method_problem)
      .value("windows|stride|llama.cpp");
  command
      .option("--window", flags->cut.window,
              "Tokens of a window; each starts with an empty cache [as many as fit the context; "
              "with llama.cpp 512]")
      .range(1, INT32_MAX)
      .value("N");
  command
      .option("--stride", flags->cut.stride,
              "Tokens from the beginning of a window to that of the next; implies --method stride "
              "[512]")
      .range(1, INT32_MAX)
      .value("N");
  command
      .option("--logprobs", flags->logprobs,
              "Write ln p of every predicted token as float32: [windows, n], or [tokens] where "
              "there is one window or their lengths differ")
      .value("OUT.npy");
  command.flag("--json", flags->json, "Print one JSON object");
  add_engine_options(command, flags->engine);
  flags->engine.full_head = true;  // no greedy steps
  command.runs([flags] { return perplexity(*flags); });
}

}  // namespace edgellm
