#include "apps/fetch/pull_model.h"

#include <algorithm>
#include <filesystem>
#include <optional>

#include "apps/common/file_lock.h"
#include "apps/common/terminal.h"
#include "apps/fetch/selection.h"
#include "apps/hub/hub.h"
#include "apps/session/cached_model.h"
#include "apps/session/conversion.h"
#include "apps/session/model_folders.h"
#include "base/error.h"
#include "base/files.h"
#include "base/hash.h"
#include "base/text.h"
#include "model/import/hf_config.h"
#include "model/model_file.h"

namespace edgellm {
namespace {

namespace fs = std::filesystem;

class Pull {
 public:
  Pull(const PullRequest& request, const PullEvents& events);
  PulledModel run();

 private:
  std::string name() const;
  std::string source_name() const;
  bool is_up_to_date() const;
  void fetch(const std::vector<hub::HubFile>& files);
  void fetch_folder();
  void convert() const;
  void remove_download() const;

  const PullRequest& request_;
  const PullEvents& events_;
  hub::Hub hub_;
  hub::HubModel model_;
  std::string target_;
  std::string folder_;  // of the download
  std::vector<std::string> downloaded_;
};

hub::HubOptions options_of(const PullRequest& request) {
  hub::HubOptions options = hub::hub_options();
  options.retries = request.retries;
  return options;
}

Pull::Pull(const PullRequest& request, const PullEvents& events)
    : request_(request),
      events_(events),
      hub_(hub::parse_reference(request.model), options_of(request)) {
  if (!request.file.empty() && !request.file.ends_with(".gguf")) {
    throw Error(ExitCode::kUsage, "--file " + printable(request.file) +
                                      " is not a GGUF file; without --file the model's "
                                      "config.json, tokenizer and safetensors are taken");
  }
  target_ = new_model_path(name());
}

// A repository has one Hugging Face folder and perhaps many GGUF files.
std::string Pull::name() const {
  if (!request_.name.empty()) return request_.name;
  const std::string model = hub_.reference().stored_name();
  if (request_.file.empty()) return model;
  std::string file = fs::path(request_.file).replace_extension().string();
  std::replace(file.begin(), file.end(), '/', '-');
  return model + "/" + file;
}

std::string Pull::source_name() const {
  return "hf:" + hub_.reference().id() + "@" + model_.commit +
         (request_.file.empty() ? "" : ":" + request_.file);
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
  hub::download(hub_, model_, files, folder_, events_.on_download);
}

// What is small comes first: a model that cannot be converted is refused before its weights come.
void Pull::fetch_folder() {
  fetch(text_files(hub_, model_));
  model_io::read_hf_config(folder_ + "/config.json", request_.ignore_keys);
  fetch(weight_files(hub_, model_, folder_ + "/" + kWeightsIndex));
}

void Pull::convert() const {
  ConversionRequest request;
  request.source = request_.file.empty() ? folder_ : downloaded_.front();
  request.source_name = source_name();
  request.ignore_keys = request_.ignore_keys;
  const ConvertedModel model = convert_source(request, target_, events_.on_conversion);
  for (const std::string& note : model.notes) events_.note(name() + ": " + note);
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

PulledModel Pull::run() {
  model_ = hub_.list();
  const std::string& id = hub_.reference().id();
  const FileLock lock(make_cache_folder(kLocks) + "/" + hex64(xxh3(id.data(), id.size())), [&] {
    events_.note("waiting for another edgellm that pulls " + hub_.reference().text());
  });
  if (is_up_to_date()) {
    events_.note(hub_.reference().text() +
                 " is there already and up to date: " + printable_path(target_));
    return {.name = name(), .path = target_, .was_there = true};
  }
  // Files of one name may lie in several folders of a repository.
  const std::string parent = fs::path(request_.file).parent_path().string();
  folder_ =
      make_cache_folder(std::string(kDownloads) + "/" + id + "/" + model_.commit +
                        (parent.empty() ? "" : "/" + hex64(xxh3(parent.data(), parent.size()))));
  if (request_.file.empty()) {
    fetch_folder();
  } else {
    fetch(gguf_files(hub_, model_, request_.file));
  }
  convert();
  if (request_.keep) {
    events_.note("kept the download in " + printable_path(folder_));
  } else {
    remove_download();
  }
  return {.name = name(), .path = target_};
}

}  // namespace

PulledModel pull_model(const PullRequest& request, const PullEvents& events) {
  return Pull(request, events).run();
}

}  // namespace edgellm
