// edgellm perplexity: how well a model predicts a text.
#include <algorithm>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>

#include "apps/common/signals.h"
#include "apps/common/terminal.h"
#include "apps/common/text_format.h"
#include "apps/flags/flags.h"
#include "apps/inspect/commands.h"
#include "apps/inspect/forward_ids.h"
#include "apps/inspect/npy.h"
#include "apps/session/prompt.h"
#include "apps/session/session.h"
#include "base/error.h"
#include "base/text.h"
#include "engine/sampling.h"

namespace edgellm {
namespace {

struct PerplexityFlags {
  std::string model;
  PromptSource text;
  SessionOptions engine;
  std::optional<int> window;
  std::string logprobs;
  bool json = false;
};

using Window = std::vector<int32_t>;

// Cuts `ids` into windows of `size`, the last one shorter, with `bos` in front of each. A window
// without an id to predict is left out.
std::vector<Window> cut(std::span<const int32_t> ids, size_t size, std::optional<int32_t> bos) {
  std::vector<Window> windows;
  for (size_t begin = 0; begin < ids.size(); begin += size) {
    const auto piece = ids.subspan(begin, std::min(size, ids.size() - begin));
    Window window;
    if (bos) window.push_back(*bos);
    window.insert(window.end(), piece.begin(), piece.end());
    if (window.size() > 1) windows.push_back(std::move(window));
  }
  return windows;
}

// A window of text is its ids after a BOS, where the model has one; ids of a file are used as they
// are.
std::vector<Window> make_windows(const PerplexityFlags& flags, Session& session) {
  const ModelFile& model = session.model();
  const int context = session.engine_options().context;
  std::vector<int32_t> ids;
  std::optional<int32_t> bos;
  if (flags.text.ids_file) {
    ids = read_ids_file(*flags.text.ids_file, model.config().vocab);
  } else {
    const Tokenizer* const tokenizer = session.tokenizer();
    if (tokenizer == nullptr) fail_without_tokenizer(model);
    const PromptText text = read_named_text(flags.text);
    require_utf8(text);
    ids = tokenizer->encode(text.text, /*add_special=*/false);
    bos = model.tokenizer().bos;
  }
  const int longest = bos ? context - 1 : context;
  const int size = flags.window.value_or(longest);
  if (size > longest) {
    throw Error(ExitCode::kUsage, "--window " + std::to_string(size) +
                                      " does not fit the context of " + std::to_string(context) +
                                      "; use at most --window " + std::to_string(longest));
  }
  std::vector<Window> windows = cut(ids, static_cast<size_t>(size), bos);
  if (windows.empty()) {
    throw Error(ExitCode::kUsage, "the text is too short: there is no token to predict");
  }
  return windows;
}

// ln p of every id of the window but the first.
std::vector<float> window_logprobs(Backend& backend, const Window& window,
                                   const std::function<void(int n_ids)>& on_ids) {
  const auto vocab = static_cast<size_t>(backend.model().config().vocab);
  std::vector<float> logprobs;
  logprobs.reserve(window.size() - 1);
  // The last id is only predicted, never read.
  const std::span<const int32_t> inputs(window.data(), window.size() - 1);
  forward_ids(backend, inputs, {.logits = WantLogits::kAll}, [&](const ForwardPass& pass) {
    for (int row = 0; row < pass.rows; ++row) {
      const auto logits = pass.logits.subspan(static_cast<size_t>(row) * vocab, vocab);
      const int32_t next = window[static_cast<size_t>(pass.first + row + 1)];
      logprobs.push_back(static_cast<float>(log_probability(logits, next)));
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

int perplexity(const PerplexityFlags& flags) {
  if (!flags.text.any()) {
    throw Error(ExitCode::kUsage,
                "no text; usage: edgellm perplexity MODEL -f FILE (see edgellm perplexity --help)");
  }
  Device device = choose_device(flags.engine.device, print_note);
  std::optional<NpyFile> output;
  if (!flags.logprobs.empty()) output.emplace(flags.logprobs);

  Session session(flags.model, flags.engine, std::move(device));
  const ModelFile& model = session.model();
  const std::vector<Window> windows = make_windows(flags, session);
  size_t longest = 0;
  size_t tokens = 0;
  for (const Window& window : windows) {
    longest = std::max(longest, window.size());
    tokens += window.size() - 1;
  }
  Backend& backend = session.start(session.engine_options(static_cast<int>(longest)));

  std::vector<std::vector<float>> logprobs;
  double sum = 0;
  {
    ProgressLine progress;
    const Progress show = progress.callback();
    uint64_t done = 0;
    for (const Window& window : windows) {
      logprobs.push_back(window_logprobs(backend, window, [&](int n_ids) {
        done += static_cast<uint64_t>(n_ids);
        show("window " + std::to_string(logprobs.size() + 1) + " of " +
                 std::to_string(windows.size()),
             done, tokens);
      }));
      for (const float value : logprobs.back()) sum += static_cast<double>(value);
    }
  }
  if (output) write_logprobs(*output, logprobs, tokens);

  const double nll_mean = -sum / static_cast<double>(tokens);
  if (flags.json) {
    print_json({{"schema", "edgellm.perplexity/1"},
                {"model", {{"path", model.path()}, {"id", hex64(model.id())}}},
                {"nll_mean", nll_mean},
                {"ppl", std::exp(nll_mean)},
                {"tokens", tokens},
                {"windows", windows.size()},
                {"kv_type", flags.engine.kv_type}});
  } else {
    write_stdout("perplexity " + fixed(std::exp(nll_mean), 4) + " (" + fixed(nll_mean, 6) +
                 " nats per token, " + std::to_string(tokens) + " tokens in " +
                 std::to_string(windows.size()) + " windows)\n");
  }
  return 0;
}

}  // namespace

void add_perplexity(Program& program) {
  Command& command = program.add(
      "perplexity", "Measure how well a model predicts a text",
      "  edgellm perplexity model.tmac2 -f book.txt\n"
      "  edgellm perplexity model.tmac2 -f book.txt --window 1023 --json --logprobs out.npy");
  auto flags = std::make_shared<PerplexityFlags>();
  add_model_argument(command, flags->model);
  add_prompt_options(command, flags->text, PromptForms::kFiles);
  command
      .option("--window", flags->window,
              "Tokens of a window; each starts with an empty cache, after a BOS where the model "
              "has one [as many as fit the context]")
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
