#include "apps/fetch/selection.h"

#include <algorithm>
#include <regex>
#include <set>

#include "base/error.h"
#include "base/files.h"
#include "base/json.h"
#include "base/text.h"

namespace edgellm {
namespace {

using hub::Hub;
using hub::HubFile;
using hub::HubModel;

constexpr const char* kWeights = "model.safetensors";
constexpr uint64_t kMaxIndexBytes = uint64_t{64} << 20;

// What model/import reads beside the weights.
constexpr const char* kTexts[] = {"config.json",
                                  "generation_config.json",
                                  "tokenizer.json",
                                  "tokenizer_config.json",
                                  "special_tokens_map.json",
                                  "chat_template.jinja",
                                  "LICENSE",
                                  "LICENSE.txt",
                                  "LICENSE.md",
                                  "LICENCE",
                                  "COPYING"};

std::vector<std::string> paths_ending(const HubModel& model, const std::string& ending) {
  std::vector<std::string> paths;
  for (const HubFile& file : model.files) {
    if (file.path.ends_with(ending)) paths.push_back(printable(file.path));
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

[[noreturn]] void refuse(const Hub& hub, const HubModel& model) {
  const std::string begin = hub.reference().text() + " holds no ";
  const char* const missing =
      model.find("config.json") == nullptr ? "config.json" : "safetensors weights";
  const std::vector<std::string> gguf = paths_ending(model, ".gguf");
  if (!gguf.empty()) {
    throw Error(ExitCode::kUnsupported, begin + missing + ", but GGUF files: " + join(gguf, ", ") +
                                            "; type: edgellm pull " + hub.reference().text() +
                                            " --file " + gguf.front());
  }
  const bool has_bin = !paths_ending(model, ".bin").empty();
  throw Error(ExitCode::kUnsupported,
              begin + missing +
                  (has_bin ? ", only PyTorch .bin files, which must be saved as safetensors first "
                             "(transformers: save_pretrained(..., safe_serialization=True))"
                           : "; expected a model with config.json and *.safetensors"));
}

}  // namespace

std::vector<HubFile> text_files(const Hub& hub, const HubModel& model) {
  const bool has_weights = model.find(kWeights) != nullptr || model.find(kWeightsIndex) != nullptr;
  if (model.find("config.json") == nullptr || !has_weights) refuse(hub, model);
  std::vector<HubFile> files;
  for (const char* name : kTexts) {
    if (const HubFile* file = model.find(name)) files.push_back(*file);
  }
  // As the conversion chooses: an index counts where there is no single file.
  if (model.find(kWeights) == nullptr) files.push_back(*model.find(kWeightsIndex));
  return files;
}

std::vector<HubFile> weight_files(const Hub& hub, const HubModel& model,
                                  const std::string& index_path) {
  if (const HubFile* single = model.find(kWeights)) return {*single};
  const Json json = parse_json_object(read_text_file(index_path, kMaxIndexBytes), {index_path});
  const Fields map = Fields(json, {index_path}).object("weight_map");
  std::set<std::string> names;
  for (const auto& [tensor, file] : map.json().items()) names.insert(map.text(tensor));
  std::vector<HubFile> files;
  for (const std::string& name : names) {
    const HubFile* const file = model.find(name);
    if (file == nullptr || name.find('/') != std::string::npos) {
      hub.fail(std::string(kWeightsIndex) + " names the file '" + printable(name) +
               "', which the model does not have; its publisher has to mend that");
    }
    files.push_back(*file);
  }
  return files;
}

std::vector<HubFile> gguf_files(const Hub& hub, const HubModel& model, const std::string& name) {
  const HubFile* const file = model.find(name);
  if (file == nullptr) {
    const std::vector<std::string> gguf = paths_ending(model, ".gguf");
    throw Error(ExitCode::kModelFile,
                hub.reference().text() + " has no file " + printable(name) +
                    (gguf.empty() ? " and no other GGUF file" : "; it has " + join(gguf, ", ")));
  }
  static const std::regex part("(.*)-[0-9]{5}-of-([0-9]{5})\\.gguf");
  std::smatch match;
  if (!std::regex_match(name, match, part)) return {*file};
  const int n = std::stoi(match[2]);
  if (n == 0) return {*file};
  std::vector<HubFile> parts;
  for (int i = 1; i <= n; ++i) {
    std::string number = std::to_string(i);
    number.insert(0, 5 - number.size(), '0');
    const std::string path = match[1].str() + "-" + number + "-of-" + match[2].str() + ".gguf";
    const HubFile* const found = model.find(path);
    if (found == nullptr) {
      throw Error(ExitCode::kModelFile, hub.reference().text() + " lacks " + printable(path) +
                                            ", a part of " + printable(name));
    }
    parts.push_back(*found);
  }
  return parts;
}

}  // namespace edgellm
