#include "model/import/source.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "base/files.h"
#include "model/import/older_file.h"
#include "model/import/older_tensors.h"

namespace edgellm::model_io {
namespace {

constexpr uint64_t kMaxLicenceBytes = uint64_t{64} << 10;

void check_folder(const std::string& path) {
  if (!path_exists(path)) fail_in_file(path, "no such folder");
  if (!is_folder(path)) {
    fail_file(path, "is a file, expected a Hugging Face folder (config.json, safetensors)");
  }
}

// Its beginning, where it is longer than any licence.
std::string read_licence(const std::string& folder) {
  for (const char* name : {"LICENSE", "LICENSE.txt", "LICENSE.md", "LICENCE", "COPYING"}) {
    const std::string path = folder + "/" + name;
    if (!path_exists(path) || is_folder(path)) continue;
    const InputFile file(path);
    std::string text(static_cast<size_t>(std::min(file.size(), kMaxLicenceBytes)), '\0');
    file.read(0, text.data(), text.size());
    return text;
  }
  return "";
}

// "bitnet" of "models/bitnet/", and of "." inside of that folder.
std::string base_name(const std::string& folder) {
  return std::filesystem::absolute(folder + "/.")
      .lexically_normal()
      .parent_path()
      .filename()
      .string();
}

// Those of the paths that lead to a file.
std::vector<std::string> existing(const std::vector<std::string>& paths) {
  std::vector<std::string> found;
  for (const std::string& path : paths) {
    if (!path.empty() && path_exists(path)) found.push_back(path);
  }
  return found;
}

}  // namespace

std::vector<std::string> tokenizer_texts(const HfTokenizerFiles& files) {
  std::vector<std::string> paths;
  for (const char* name : {"chat_template.jinja", "config.json", "generation_config.json",
                           "special_tokens_map.json", "tokenizer.json", "tokenizer_config.json"}) {
    paths.push_back(files.path_of(name));
  }
  return existing(paths);
}

HfTokenizerFiles given_tokenizer_files(const std::string& path, const std::string& config_json) {
  if (!is_folder(path)) {
    InputFile given(path);  // must be there
    return {folder_of(path), path, config_json};
  }
  HfTokenizerFiles files = HfTokenizerFiles::of_folder(path);
  files.config_json = config_json;
  if (!path_exists(files.tokenizer_json)) fail_file(path, "has no tokenizer.json");
  return files;
}

ImportSource hf_source(const std::string& path, const std::vector<std::string>& ignore_keys) {
  check_folder(path);
  const HfTokenizerFiles files = HfTokenizerFiles::of_folder(path);
  HfConfig hf = read_hf_config(files.config_json, ignore_keys);
  HfTokenizer tokenizer = read_hf_tokenizer(files, hf.model);
  std::vector<std::string> texts = tokenizer_texts(files);
  const std::vector<std::string> index = existing({path + "/model.safetensors.index.json"});
  texts.insert(texts.end(), index.begin(), index.end());
  return {.path = path,
          .name = base_name(path),
          .config_path = files.config_json,
          .hf = std::move(hf),
          .tokenizer = std::move(tokenizer),
          .tokenizer_path = files.tokenizer_json,
          .checkpoint = Checkpoint(path),
          .texts = std::move(texts),
          .licence = read_licence(path)};
}

ImportSource older_source(const std::string& path, const OlderFileOptions& older,
                          const std::vector<std::string>& ignore_keys) {
  InputFile file(path);
  const OlderHeader header = read_older_header(file);
  HfConfig hf = older_config(file, header, older.config, ignore_keys);
  const HfTokenizerFiles files = older.tokenizer.empty()
                                     ? HfTokenizerFiles{"", "", older.config}
                                     : given_tokenizer_files(older.tokenizer, older.config);
  HfTokenizer tokenizer = read_hf_tokenizer(files, hf.model);
  Checkpoint checkpoint = older_checkpoint(std::move(file), header, hf.model);
  return {.path = path,
          .name = std::filesystem::path(path).filename().string(),
          .config_path = older.config,
          .hf = std::move(hf),
          .tie_is_known = !older.config.empty(),
          .tokenizer = std::move(tokenizer),
          .tokenizer_path = files.tokenizer_json,
          .checkpoint = std::move(checkpoint),
          .texts = tokenizer_texts(files),
          .licence = ""};
}

}  // namespace edgellm::model_io
