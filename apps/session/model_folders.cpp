#include "apps/session/model_folders.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <sstream>

#include "apps/common/environment.h"
#include "apps/common/near_matches.h"
#include "apps/session/cached_model.h"
#include "base/error.h"
#include "base/files.h"
#include "base/text.h"

namespace edgellm {
namespace {

namespace fs = std::filesystem;

constexpr const char* kEnding = ".tmac2";

// Anything but a folder: the reader says what it is worth.
bool is_file(const std::string& path) {
  std::error_code ignored;
  return fs::exists(path, ignored) && !fs::is_directory(path, ignored);
}

// The path itself or with the ending; empty where neither is a file.
std::string with_ending(const std::string& path) {
  if (is_file(path)) return path;
  const bool has_name = fs::path(path).has_filename();
  return has_name && is_file(path + kEnding) ? path + kEnding : "";
}

// A name that may stand in a model folder: nothing that leads out of it.
bool is_name(const std::string& name) {
  const fs::path path(name);
  return !name.empty() && path.is_relative() &&
         std::none_of(path.begin(), path.end(),
                      [](const fs::path& part) { return part == "." || part == ".."; });
}

// The folders that the user chooses.
std::vector<std::string> own_folders() {
  std::vector<std::string> folders;
  std::istringstream listed(environment_variable("EDGELLM_MODELS"));
  for (std::string folder; std::getline(listed, folder, ':');) {
    if (!folder.empty()) folders.push_back(folder);
  }
  // The XDG specification has a relative path ignored.
  std::string data = environment_variable("XDG_DATA_HOME");
  if (!fs::path(data).is_absolute()) {
    const std::string home = environment_variable("HOME");
    data = home.empty() ? "" : home + "/.local/share";
  }
  if (!data.empty()) folders.push_back(data + "/edgellm/models");
  return folders;
}

// The folder of models that were installed with the program; empty where there is none.
std::string installed_folder() {
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  const fs::path folder = program.parent_path().parent_path() / "share/edgellm/models";
  return !error && fs::is_directory(folder, error) ? folder.string() : "";
}

// What a path means by itself, not looked for in the model folders; empty where nothing is there.
std::string at_path(const std::string& path) {
  std::string file = with_ending(path);
  return file.empty() && is_hugging_face_folder(path) ? path : file;
}

std::vector<std::string> found_in(const std::vector<std::string>& folders,
                                  const std::string& name) {
  std::vector<std::string> found;
  for (const std::string& folder : folders) {
    const std::string path = at_path((fs::path(folder) / name).string());
    std::error_code ignored;
    const bool is_known = std::any_of(found.begin(), found.end(), [&](const std::string& other) {
      return fs::equivalent(path, other, ignored);
    });
    if (!path.empty() && !is_known) found.push_back(path);
  }
  return found;
}

// A model of the user's own hides an installed one of that name.
std::vector<std::string> found_in_folders(const std::string& name) {
  std::vector<std::string> found = found_in(own_folders(), name);
  const std::string installed = installed_folder();
  if (found.empty() && !installed.empty()) found = found_in({installed}, name);
  return found;
}

// The .tmac2 files in the folder itself.
std::vector<std::string> models_in(const std::string& folder) {
  std::vector<std::string> paths;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    if (entry->path().extension() == kEnding) paths.push_back(entry->path().string());
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

// "; did you mean ...?" with models of the folders and of the folder that the path names.
std::string similar_models(const std::string& name) {
  const fs::path asked(name);
  std::vector<std::string> folders = {asked.parent_path().string()};
  if (is_name(name)) {
    const std::vector<std::string> more = model_folders();
    folders.insert(folders.end(), more.begin(), more.end());
  }
  const auto stem_of = [](const fs::path& path) {
    return (path.extension() == kEnding ? path.stem() : path.filename()).string();
  };
  std::vector<std::string> stems;
  std::vector<std::string> paths;
  for (const std::string& folder : folders) {
    for (const fs::path path : models_in(folder.empty() ? "." : folder)) {
      stems.push_back(stem_of(path));
      paths.push_back((folder.empty() ? path.filename() : path).string());
    }
  }
  const std::vector<std::string> near = near_matches(stem_of(asked), stems);
  std::vector<std::string> candidates;
  for (size_t i = 0; i < paths.size(); ++i) {
    if (std::find(near.begin(), near.end(), stems[i]) == near.end()) continue;
    if (std::find(candidates.begin(), candidates.end(), paths[i]) == candidates.end()) {
      candidates.push_back(paths[i]);
    }
  }
  // A folder is listed in any order; an error should read the same every time.
  std::sort(candidates.begin(), candidates.end());
  return candidates.empty() ? "" : "; did you mean " + join(candidates, " or ") + "?";
}

std::string only_one(const std::string& name, const std::vector<std::string>& found) {
  if (found.size() > 1) {
    throw Error(ExitCode::kModelFile, "the model " + name + " is ambiguous, found " +
                                          join(found, " and ") + "; give the path of one of them");
  }
  return found.front();
}

// The model folders as messages name them.
std::string folders_text() {
  const std::vector<std::string> folders = model_folders();
  return folders.empty() ? "any model folder, as neither EDGELLM_MODELS, XDG_DATA_HOME nor HOME "
                           "names one"
                         : join(folders, ", ");
}

[[noreturn]] void fail_not_found(const std::string& name) {
  if (is_folder(name)) {
    const std::vector<std::string> within = models_in(name);
    throw Error(ExitCode::kModelFile,
                name + " is a folder, expected a .tmac2 file; " +
                    (within.empty() ? "it has no config.json, so it is no Hugging Face folder "
                                      "either; edgellm list shows the models there are"
                                    : "it holds " + join(within, ", ")));
  }
  std::string message = "no model file " + name;
  if (is_name(name)) {
    message += ", and no such model in " + folders_text();
  }
  const std::string similar = similar_models(name);
  throw Error(ExitCode::kModelFile,
              message + (similar.empty() ? "; give the path of a .tmac2 file (edgellm convert "
                                           "makes one, edgellm pull downloads one)"
                                         : similar));
}

bool is_readable_model(const std::string& path) {
  try {
    return is_convertible(path);
  } catch (const Error&) {
    return false;
  }
}

// What an entry of a model folder is, if it is a model.
std::optional<StoredModel> stored_model(const fs::directory_entry& entry,
                                        const std::string& folder) {
  StoredModel model;
  model.path = entry.path().string();
  fs::path name = entry.path().lexically_relative(folder);
  std::error_code error;
  if (entry.path().extension() == kEnding && entry.is_regular_file(error)) {
    model.name = name.replace_extension().string();
    const uint64_t bytes = entry.file_size(error);
    model.bytes = error ? 0 : bytes;
    return model;
  }
  const bool is_gguf = entry.path().extension() == ".gguf" && entry.is_regular_file(error) &&
                       is_readable_model(model.path);
  if (!is_gguf && !is_hugging_face_folder(model.path)) return std::nullopt;
  const std::vector<std::string> files = conversion_inputs(model.path);
  const bool is_later_part =
      is_gguf && fs::path(files.front()).filename() != entry.path().filename();
  if (is_later_part) return std::nullopt;
  model.kind = is_gguf ? StoredKind::kGguf : StoredKind::kHuggingFace;
  model.name = name.string() + (is_gguf ? "" : "/");
  for (const std::string& file : files) {
    const uint64_t bytes = fs::file_size(file, error);
    if (!error) model.bytes += bytes;
  }
  return model;
}

}  // namespace

bool is_hugging_face_folder(const std::string& path) {
  return is_folder(path) && path_exists(path + "/config.json");
}

std::vector<std::string> model_folders() {
  std::vector<std::string> folders = own_folders();
  const std::string installed = installed_folder();
  const bool is_own = std::any_of(folders.begin(), folders.end(), [&](const std::string& folder) {
    std::error_code ignored;
    return fs::equivalent(folder, installed, ignored);
  });
  if (!installed.empty() && !is_own) folders.push_back(installed);
  return folders;
}

bool names_model(const std::string& name) {
  return !at_path(name).empty() || (is_name(name) && !found_in_folders(name).empty());
}

std::string find_model(const std::string& name) {
  const std::string path = at_path(name);
  if (!path.empty()) return path;
  const std::vector<std::string> found =
      is_name(name) ? found_in_folders(name) : std::vector<std::string>{};
  if (found.empty()) fail_not_found(name);
  return only_one(name, found);
}

const char* to_string(StoredKind kind) {
  switch (kind) {
    case StoredKind::kModel:
      return "tmac2";
    case StoredKind::kGguf:
      return "gguf";
    case StoredKind::kHuggingFace:
      return "hugging_face";
  }
  throw ContractViolation("unknown kind of model");
}

std::vector<StoredModel> stored_models() {
  std::vector<StoredModel> models;
  for (const std::string& folder : model_folders()) {
    std::error_code error;
    for (fs::recursive_directory_iterator
             entry(folder, fs::directory_options::skip_permission_denied, error),
         end;
         !error && entry != end; entry.increment(error)) {
      const std::optional<StoredModel> model = stored_model(*entry, folder);
      if (!model) continue;
      models.push_back(*model);
      if (model->kind == StoredKind::kHuggingFace) entry.disable_recursion_pending();
    }
  }
  std::stable_sort(models.begin(), models.end(),
                   [](const auto& a, const auto& b) { return a.name < b.name; });
  return models;
}

std::string new_model_path(const std::string& name) {
  if (!is_name(name) || name.ends_with('/')) {
    throw Error(ExitCode::kUsage, "'" + printable_path(name) +
                                      "' is not a name for a model in a model folder; expected "
                                      "words, perhaps with slashes between them");
  }
  const std::vector<std::string> folders = own_folders();
  if (folders.empty()) {
    throw Error(ExitCode::kUsage,
                "there is no model folder, as neither EDGELLM_MODELS, "
                "XDG_DATA_HOME nor HOME names one; set EDGELLM_MODELS to a "
                "folder that can be written");
  }
  std::string path =
      (fs::path(folders.front()) / name).string() + (name.ends_with(kEnding) ? "" : kEnding);
  std::error_code error;
  fs::create_directories(fs::path(path).parent_path(), error);
  if (error) {
    throw Error(ExitCode::kRuntime, "cannot make the model folder " + folder_of(path) + ": " +
                                        error.message() +
                                        "; set EDGELLM_MODELS to a folder that can be written");
  }
  return path;
}

StoredModel find_stored_model(const std::string& name) {
  if (!is_name(name)) {
    throw Error(ExitCode::kUsage, printable_path(name) +
                                      " is a path, expected the name of a model in a model folder; "
                                      "edgellm list shows them");
  }
  const std::vector<std::string> found = found_in_folders(name);
  if (found.empty()) {
    throw Error(ExitCode::kModelFile, "no model " + name + " in " + folders_text() +
                                          "; edgellm list shows the models there are");
  }
  const std::string path = only_one(name, found);
  for (const StoredModel& model : stored_models()) {
    std::error_code ignored;
    if (fs::equivalent(model.path, path, ignored)) return model;
  }
  throw Error(ExitCode::kModelFile, printable_path(path) +
                                        " is none of the models that edgellm list shows; if it is "
                                        "to go, type: rm " +
                                        printable_path(path));
}

}  // namespace edgellm
