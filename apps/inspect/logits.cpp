// edgellm logits: what a model computes for given ids, for checking it against another program.
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "apps/common/terminal.h"
#include "apps/flags/flags.h"
#include "apps/inspect/commands.h"
#include "apps/inspect/forward_ids.h"
#include "apps/inspect/npy.h"
#include "apps/session/prompt.h"
#include "apps/session/session.h"
#include "base/error.h"
#include "base/hash.h"
#include "base/text.h"

namespace edgellm {
namespace {

struct LogitsFlags {
  ModelChoice model;
  PromptSource prompt;
  SessionOptions engine;
  std::string output;
  std::string hidden;
  bool all = false;
  bool json = false;
};

// Gathers [layers + 1, n, dim] from passes that each hold all layers of some rows.
class HiddenStates {
 public:
  HiddenStates(const ModelConfig& config, size_t n_ids)
      : n_levels_(static_cast<size_t>(config.layers) + 1),
        n_ids_(n_ids),
        dim_(static_cast<size_t>(config.dim)),
        values_(n_levels_ * n_ids_ * dim_) {}

  void add(const ForwardPass& pass) {
    const size_t pass_values = static_cast<size_t>(pass.rows) * dim_;
    for (size_t level = 0; level < n_levels_; ++level) {
      const auto from = pass.hidden.subspan(level * pass_values, pass_values);
      const size_t to = (level * n_ids_ + static_cast<size_t>(pass.first)) * dim_;
      std::copy(from.begin(), from.end(), values_.begin() + static_cast<std::ptrdiff_t>(to));
    }
  }

  void write(NpyFile& file) const {
    file.write_header({static_cast<int64_t>(n_levels_), static_cast<int64_t>(n_ids_),
                       static_cast<int64_t>(dim_)});
    file.write(values_);
    file.commit();
  }

 private:
  size_t n_levels_, n_ids_, dim_;
  std::vector<float> values_;
};

int logits(const LogitsFlags& flags) {
  if (!flags.prompt.any()) {
    throw Error(ExitCode::kUsage, "no ids; give --ids-file FILE or -p TEXT");
  }
  if (flags.output.empty() && flags.hidden.empty() && !flags.json) {
    throw Error(ExitCode::kUsage, "nothing to write; give -o OUT.npy, --hidden OUT.npy or --json");
  }
  Device device = choose_device(flags.engine.device, print_note);
  std::optional<NpyFile> output;
  std::optional<NpyFile> hidden_output;
  if (!flags.output.empty()) output.emplace(flags.output);
  if (!flags.hidden.empty()) hidden_output.emplace(flags.hidden);

  Session session(flags.model, flags.engine, std::move(device));
  const ModelFile& model = session.model();
  const ModelConfig& config = model.config();
  const PromptText prompt = flags.prompt.ids_file ? PromptText{} : read_named_text(flags.prompt);
  const std::vector<int32_t> ids = prompt_ids(flags.prompt, prompt, model, session.tokenizer());
  const int context = session.engine_options().context;
  if (ids.size() > static_cast<size_t>(context)) {
    throw Error(ExitCode::kPromptDoesNotFit, "there are " + std::to_string(ids.size()) +
                                                 " ids, but the context is " +
                                                 std::to_string(context) + "; use fewer ids");
  }
  Backend& backend = session.start(session.engine_options(static_cast<int>(ids.size())));

  const int64_t n_rows = flags.all ? static_cast<int64_t>(ids.size()) : 1;
  Hasher hasher;
  HiddenStates hidden(config, flags.hidden.empty() ? 0 : ids.size());
  if (output) output->write_header({n_rows, config.vocab});
  ProgressLine progress;
  const Progress show = progress.callback();
  const ForwardWants wants = {.logits = flags.all ? WantLogits::kAll : WantLogits::kLast,
                              .hidden = hidden_output.has_value()};
  forward_ids(backend, ids, wants, [&](const ForwardPass& pass) {
    hasher.update(pass.logits.data(), pass.logits.size_bytes());
    if (output) output->write(pass.logits);
    if (hidden_output) hidden.add(pass);
    show("running", static_cast<uint64_t>(pass.first + pass.rows), ids.size());
  });
  if (output) output->commit();
  if (hidden_output) hidden.write(*hidden_output);
  if (flags.json) {
    print_json({{"schema", "edgellm.logits/1"},
                {"logits_xxh3", hex64(hasher.digest())},
                {"rows", n_rows},
                {"vocab", config.vocab}});
  }
  return 0;
}

}  // namespace

void add_logits(Program& program) {
  Command& command =
      program.add("logits", "Write logits and hidden states of given tokens",
                  "  edgellm logits model.tmac2 --ids-file ids.json -o logits.npy --all\n"
                  "  edgellm logits model.tmac2 -p \"Once upon a time\" --json");
  auto flags = std::make_shared<LogitsFlags>();
  add_model_argument(command, flags->model);
  add_prompt_options(command, flags->prompt, PromptForms::kOptions);
  command
      .option("-o,--output", flags->output,
              "Write the logits as float32: [1, vocab] after the last token, or [n, vocab] "
              "with --all")
      .value("OUT.npy");
  command.flag("--all", flags->all, "The logits after every token, not only the last");
  command
      .option("--hidden", flags->hidden,
              "Write [layers + 1, n, dim]: the embedding, the residual after each layer but "
              "the last, the final norm's output")
      .value("OUT.npy");
  command.flag("--json", flags->json, "Print the xxh3-64 of the logits' bytes as JSON");
  add_engine_options(command, flags->engine);
  flags->engine.full_head = true;  // no greedy steps
  command.runs([flags] { return logits(*flags); });
}

}  // namespace edgellm
