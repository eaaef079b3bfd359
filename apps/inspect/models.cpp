// edgellm list, edgellm rm: the models in the model folders.
#include <algorithm>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "apps/common/terminal.h"
#include "apps/common/text_format.h"
#include "apps/inspect/commands.h"
#include "apps/session/cached_model.h"
#include "apps/session/model_folders.h"
#include "base/error.h"
#include "base/number_format.h"
#include "base/text.h"

namespace edgellm {
namespace {

// "NAME   SIZE  PATH", the columns as wide as their longest entry.
std::string table_of(const std::vector<StoredModel>& models) {
  size_t name_columns = std::string("NAME").size();
  size_t size_columns = std::string("1000.0 MB").size();
  for (const StoredModel& model : models) {
    name_columns = std::max(name_columns, model.name.size());
  }
  std::string text;
  const auto add = [&](std::string name, const std::string& size, const std::string& path) {
    name.resize(name_columns, ' ');
    text += name + "  " + std::string(size_columns - std::min(size_columns, size.size()), ' ') +
            size + "  " + path + "\n";
  };
  add("NAME", "SIZE", "PATH");
  for (const StoredModel& model : models) {
    add(printable_path(model.name), human_bytes(model.bytes), printable_path(model.path));
  }
  return text;
}

int list(bool json) {
  const std::vector<StoredModel> models = stored_models();
  if (json) {
    auto entries = nlohmann::ordered_json::array();
    for (const StoredModel& model : models) {
      entries.push_back({{"name", model.name}, {"path", model.path}, {"bytes", model.bytes}});
    }
    print_json({{"schema", "edgellm.list/1"}, {"folders", model_folders()}, {"models", entries}});
    return 0;
  }
  if (models.empty()) {
    const std::vector<std::string> folders = model_folders();
    print_note("no models in " + (folders.empty() ? "any model folder" : join(folders, ", ")) +
               "; edgellm pull hf:ORG/NAME downloads one, edgellm convert SRC "
               "-o FOLDER/NAME.tmac2 makes one");
    return 0;
  }
  write_stdout(table_of(models));
  return 0;
}

struct RemoveFlags {
  std::vector<std::string> names;
  bool cache = false;
};

// Those between a file that is gone and its model folder: pull makes them.
void remove_empty_folders(const std::string& path) {
  namespace fs = std::filesystem;
  const std::vector<std::string> roots = model_folders();
  const auto is_root = [&](const fs::path& folder) {
    std::error_code ignored;
    return std::any_of(roots.begin(), roots.end(), [&](const std::string& root) {
      return fs::equivalent(root, folder, ignored);
    });
  };
  std::error_code error;
  for (fs::path folder = fs::path(path).parent_path(); !folder.empty() && !is_root(folder);
       folder = folder.parent_path()) {
    if (!fs::is_empty(folder, error) || !fs::remove(folder, error)) return;
  }
}

// All names are looked for before any file goes.
int remove_models(const RemoveFlags& flags) {
  const std::vector<std::string>& names = flags.names;
  if (names.empty() && !flags.cache) {
    throw Error(ExitCode::kUsage,
                "no model named; usage: edgellm rm NAME..., or edgellm rm --cache");
  }
  std::vector<std::string> paths;
  for (const std::string& name : names) paths.push_back(find_stored_model(name));
  for (const std::string& path : paths) {
    std::error_code error;
    std::filesystem::remove(path, error);
    if (error) {
      throw Error(ExitCode::kRuntime, "cannot delete " + path + ": " + error.message());
    }
    remove_empty_folders(path);
    print_note("deleted " + path);
  }
  if (flags.cache) {
    const uint64_t bytes = empty_cache();
    print_note("deleted " + human_bytes(bytes) + " in " + printable_path(cache_folder()));
  }
  return 0;
}

}  // namespace

void add_list(Program& program) {
  Command& command = program.add("list", "List the models in the model folders",
                                 "  edgellm list\n"
                                 "  edgellm list --json\n"
                                 "  edgellm help environment says which folders these are.");
  auto json = std::make_shared<bool>(false);
  command.flag("--json", *json, "Print one JSON object");
  command.runs([json] { return list(*json); });
}

void add_rm(Program& program) {
  Command& command = program.add("rm", "Delete models from the model folders",
                                 "  edgellm rm storyteller\n"
                                 "  edgellm rm --cache\n"
                                 "  Deletes only what edgellm list shows, and does not ask.");
  auto flags = std::make_shared<RemoveFlags>();
  command.words("NAME", flags->names, "Names as edgellm list shows them").value("MODEL");
  command.flag("--cache", flags->cache,
               "Delete all cached conversions, and downloads that are not finished or were kept");
  command.runs([flags] { return remove_models(*flags); });
}

}  // namespace edgellm
