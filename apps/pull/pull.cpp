// edgellm pull: a model of the Hugging Face Hub into the model folder.
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/common/file_lock.h"
#include "apps/common/signals.h"
#include "apps/common/terminal.h"
#include "apps/flags/flags.h"
#include "apps/hub/download.h"
#include "apps/hub/hub.h"
#include "apps/pull/commands.h"
#include "apps/pull/selection.h"
#include "apps/pull/transfer_progress.h"
#include "apps/session/cached_model.h"
#include "apps/session/conversion.h"
#include "apps/session/model_folders.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/files.h"
#include "base/hash.h"
#include "base/number_format.h"
#include "base/text.h"
#include "model/import/hf_config.h"
#include "model/model_file.h"

namespace edgellm {
namespace {

namespace fs = std::filesystem;

struct PullFlags {
  std::string model;
  std::string file;  // GGUF; empty: the Hugging Face folder
  std::string name;
  std::vector<std::string> ignore_keys;
  int retries = 5;
  bool keep = false;
};

// Where stderr is no terminal, a line now and then.
constexpr int64_t kNoteIntervalNs = 10'000'000'000;

class Pull {
 public:
  explicit Pull(const PullFlags& flags);
  int run();

 private:
  std::string name() const;
  std::string source_name() const;
  bool is_up_to_date() const;
  void fetch(const std::vector<hub::HubFile>& files);
  void fetch_folder();
  void convert() const;
  void remove_download() const;

  const PullFlags& flags_;
  hub::Hub hub_;
  hub::HubModel model_;
  std::string target_;
  std::string folder_;  // of the download
  std::vector<std::string> downloaded_;
};

hub::HubOptions options_of(const PullFlags& flags) {
  hub::HubOptions options = hub::hub_options();
  options.retries = flags.retries;
  return options;
}

Pull::Pull(const PullFlags& flags)
    : flags_(flags), hub_(hub::parse_reference(flags.model), options_of(flags)) {
  if (!flags.file.empty() && !flags.file.ends_with(".gguf")) {
    throw Error(ExitCode::kUsage, "--file " + printable(flags.file) +
                                      " is not a GGUF file; without --file the model's "
                                      "config.json, tokenizer and safetensors are taken");
  }
  target_ = new_model_path(name());
}

// A repository has one Hugging Face folder and perhaps many GGUF files.
std::string Pull::name() const {
  if (!flags_.name.empty()) return flags_.name;
  const std::string model = hub_.reference().stored_name();
  if (flags_.file.empty()) return model;
  std::string file = fs::path(flags_.file).replace_extension().string();
  std::replace(file.begin(), file.end(), '/', '-');
  return model + "/" + file;
}

std::string Pull::source_name() const {
  return "hf:" + hub_.reference().id() + "@" + model_.commit +
         (flags_.file.empty() ? "" : ":" + flags_.file);
}

// Whatever else has that name is not ours to replace.
bool Pull::is_up_to_date() const {
  if (!path_exists(target_)) return false;
  const std::string advice = "; delete it with edgellm rm, or choose another --name";
  std::string source;
  try {
    source = ModelFile::open(target_).provenance().source;
  } catch (const Error& error) {
    throw Error(error.code(), std::string(error.what()) + advice);
  }
  if (!source.starts_with("hf:" + hub_.reference().id() + "@")) {
    throw Error(ExitCode::kRuntime, printable_path(target_) + " is there already and was not " +
                                        "pulled from " + hub_.reference().text() + advice);
  }
  return source == source_name();
}

void Pull::fetch(const std::vector<hub::HubFile>& wanted) {
  std::vector<hub::HubFile> files = wanted;
  for (hub::HubFile& file : files) {
    if (!file.bytes || file.hash.kind == hub::ContentHash::Kind::kNone) {
      hub_.complete(model_, file);
    }
    downloaded_.push_back(folder_ + "/" + local_name(hub_, file));
  }
  TransferProgress progress;
  ProgressLine line;
  int64_t next_note_ns = now_ns() + kNoteIntervalNs;
  hub::download(hub_, model_, files, folder_, [&](const hub::DownloadState& state) {
    if (received_signal() != 0) {
      print_note("the download was interrupted; the same command resumes it");
      throw_if_interrupted();
    }
    const int64_t at_ns = now_ns();
    const std::string text = progress.text(state, at_ns);
    line.update(text, state.done, state.total);
    if (line.is_drawn() || at_ns < next_note_ns) return;
    print_note(text);
    next_note_ns = at_ns + kNoteIntervalNs;
  });
}

// What is small comes first: a model that cannot be converted is refused before its weights come.
void Pull::fetch_folder() {
  fetch(text_files(hub_, model_));
  model_io::read_hf_config(folder_ + "/config.json", flags_.ignore_keys);
  fetch(weight_files(hub_, model_, folder_ + "/" + kWeightsIndex));
}

void Pull::convert() const {
  ConversionRequest request;
  request.source = flags_.file.empty() ? folder_ : downloaded_.front();
  request.source_name = source_name();
  request.ignore_keys = flags_.ignore_keys;
  ConvertedModel model;
  {
    ProgressLine line;
    model = convert_source(request, target_, line.callback());
  }
  for (const std::string& note : model.notes) print_note(name() + ": " + note);
}

// With the folders that are empty then.
void Pull::remove_download() const {
  std::error_code ignored;
  for (const std::string& path : downloaded_) fs::remove(path, ignored);
  const fs::path downloads = cache_folder() + "/" + kDownloads;
  for (fs::path folder = folder_; folder != downloads; folder = folder.parent_path()) {
    if (!fs::remove(folder, ignored)) return;
  }
}

int Pull::run() {
  model_ = hub_.list();
  const std::string& id = hub_.reference().id();
  const FileLock lock(make_cache_folder(kLocks) + "/" + hex64(xxh3(id.data(), id.size())), [&] {
    print_note("waiting for another edgellm that pulls " + hub_.reference().text());
  });
  if (is_up_to_date()) {
    print_note(hub_.reference().text() +
               " is there already and up to date: " + printable_path(target_));
    return 0;
  }
  // Files of one name may lie in several folders of a repository.
  const std::string parent = fs::path(flags_.file).parent_path().string();
  folder_ =
      make_cache_folder(std::string(kDownloads) + "/" + id + "/" + model_.commit +
                        (parent.empty() ? "" : "/" + hex64(xxh3(parent.data(), parent.size()))));
  if (flags_.file.empty()) {
    fetch_folder();
  } else {
    fetch(gguf_files(hub_, model_, flags_.file));
  }
  convert();
  if (flags_.keep) {
    print_note("kept the download in " + printable_path(folder_));
  } else {
    remove_download();
  }
  print_note("wrote " + printable_path(target_) + ", " + human_bytes(InputFile(target_).size()) +
             "; run it with: edgellm run " + name() + " \"some text\"");
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
  auto flags = std::make_shared<PullFlags>();
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
  command.runs([flags] { return Pull(*flags).run(); });
}

}  // namespace edgellm
