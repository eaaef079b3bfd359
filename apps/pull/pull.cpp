// edgellm pull: a model of the Hugging Face Hub into the model folder.
#include <memory>
#include <optional>
#include <string>

#include "apps/common/signals.h"
#include "apps/common/terminal.h"
#include "apps/fetch/pull_model.h"
#include "apps/flags/flags.h"
#include "apps/pull/commands.h"
#include "apps/pull/transfer_progress.h"
#include "base/clock.h"
#include "base/files.h"
#include "base/number_format.h"
#include "base/text.h"

namespace edgellm {
namespace {

// Where stderr is no terminal, a line now and then.
constexpr int64_t kNoteIntervalNs = 10'000'000'000;

// How a pull goes, on stderr.
class PullReport {
 public:
  PullEvents events() {
    return {.note = [this](std::string_view message) { note(message); },
            .on_download = [this](const hub::DownloadState& state) { show_download(state); },
            .on_conversion =
                [this](std::string_view what, uint64_t done, uint64_t total) {
                  download_.reset();
                  if (!conversion_) conversion_.emplace();
                  conversion_->callback()(what, done, total);
                }};
  }

  void note(std::string_view message) {
    download_.reset();
    conversion_.reset();
    print_note(message);
  }

 private:
  void show_download(const hub::DownloadState& state) {
    if (received_signal() != 0) {
      note("the download was interrupted; the same command resumes it");
      throw_if_interrupted();
    }
    if (!download_) download_.emplace();
    const int64_t at_ns = now_ns();
    const std::string text = progress_.text(state, at_ns);
    download_->update(text, state.done, state.total);
    if (download_->is_drawn() || at_ns < next_note_ns_) return;
    print_note(text);
    next_note_ns_ = at_ns + kNoteIntervalNs;
  }

  TransferProgress progress_;
  std::optional<ProgressLine> download_;
  std::optional<ProgressLine> conversion_;
  int64_t next_note_ns_ = now_ns() + kNoteIntervalNs;
};

int run(const PullRequest& request) {
  PullReport report;
  const PulledModel model = pull_model(request, report.events());
  if (model.was_there) return 0;
  report.note("wrote " + printable_path(model.path) + ", " +
              human_bytes(InputFile(model.path).size()) + "; run it with: edgellm run " +
              model.name + " \"some text\"");
  return 0;
}

}  // namespace

void add_pull(Program& program) {
  Command& command = program.add(
      "pull", "Download a model from the Hugging Face Hub and convert it",
      "  edgellm pull hf:microsoft/bitnet-b1.58-2B-4T\n"
      "  edgellm pull hf:tiiuae/Falcon-E-1B-Base@bfloat16\n"
      "  edgellm pull hf:microsoft/bitnet-b1.58-2B-4T-gguf --file ggml-model-i2_s.gguf\n"
      "  The same command again resumes a download, and updates a model that has changed.");
  auto flags = std::make_shared<PullRequest>();
  command
      .option("NAME", flags->model,
              "hf:ORG/NAME, as the model is called on the Hub; with @REVISION a branch, a tag or a "
              "commit")
      .required();
  command
      .option("--file", flags->file,
              "Take this GGUF file of the repository, in place of config.json and safetensors")
      .value("NAME.gguf");
  command.option("--name", flags->name, "The model's name in the model folder [ORG/NAME]")
      .value("MODEL_NAME");
  command.flag("--keep", flags->keep, "Keep the download in the cache folder after conversion");
  command
      .repeated_option("--ignore-key", flags->ignore_keys,
                       "As of convert: a key of config.json that you declare harmless")
      .value("KEY");
  command
      .option("--retries", flags->retries,
              "Attempts after a failed one without a byte between them [5]")
      .range(0, 100)
      .value("N");
  command.runs([flags] { return run(*flags); });
}

}  // namespace edgellm
