// edgellm list, edgellm rm: the models in the model folders.
#include <algorithm>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "apps/common/terminal.h"
#include "apps/common/text_format.h"
#include "apps/inspect/commands.h"
#include "apps/session/model_folders.h"
#include "base/error.h"
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
               "; edgellm convert SRC -o FOLDER/NAME.tmac2 makes one");
    return 0;
  }
  write_stdout(table_of(models));
  return 0;
}

// All names are looked for before any file goes.
int remove_models(const std::vector<std::string>& names) {
  std::vector<std::string> paths;
  for (const std::string& name : names) paths.push_back(find_stored_model(name));
  for (const std::string& path : paths) {
    std::error_code error;
    std::filesystem::remove(path, error);
    if (error) {
      throw Error(ExitCode::kRuntime, "cannot delete " + path + ": " + error.message());
    }
    print_note("deleted " + path);
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
                                 "  Deletes only what edgellm list shows, and does not ask.");
  auto names = std::make_shared<std::vector<std::string>>();
  command.words("NAME", *names, "Names as edgellm list shows them").required().value("MODEL");
  command.runs([names] { return remove_models(*names); });
}

}  // namespace edgellm
