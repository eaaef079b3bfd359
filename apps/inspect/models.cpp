// edgellm list, edgellm rm: the models in the model folders, and conversions in the cache.
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

struct Row {
  std::string name;
  uint64_t bytes;
  std::string path;
};

// "NAME   SIZE  PATH", the columns as wide as their longest entry.
std::string table_of(const std::string& title, const std::vector<Row>& rows) {
  size_t name_columns = title.size();
  size_t size_columns = std::string("1000.0 MB").size();
  for (const Row& row : rows) name_columns = std::max(name_columns, row.name.size());
  std::string text;
  const auto add = [&](std::string name, const std::string& size, const std::string& path) {
    name.resize(name_columns, ' ');
    text += name + "  " + std::string(size_columns - std::min(size_columns, size.size()), ' ') +
            size + "  " + path + "\n";
  };
  add(title, "SIZE", "PATH");
  for (const Row& row : rows) {
    add(printable_path(row.name), human_bytes(row.bytes), printable_path(row.path));
  }
  return text;
}

// Where a conversion came from, for people.
std::string source_text(const CachedConversion& conversion) {
  if (conversion.source.empty()) return "(not known)";
  std::error_code ignored;
  return conversion.source +
         (std::filesystem::exists(conversion.source, ignored) ? "" : " (no longer there)");
}

int list_as_json(const std::vector<StoredModel>& models,
                 const std::vector<CachedConversion>& conversions) {
  auto entries = nlohmann::ordered_json::array();
  for (const StoredModel& model : models) {
    entries.push_back({{"name", model.name},
                       {"path", model.path},
                       {"bytes", model.bytes},
                       {"kind", to_string(model.kind)}});
  }
  auto cached = nlohmann::ordered_json::array();
  for (const CachedConversion& conversion : conversions) {
    cached.push_back(
        {{"path", conversion.path},
         {"bytes", conversion.bytes},
         {"source", conversion.source.empty() ? nlohmann::ordered_json(nullptr)
                                              : nlohmann::ordered_json(conversion.source)}});
  }
  print_json({{"schema", "edgellm.list/1"},
              {"folders", model_folders()},
              {"models", entries},
              {"cached", cached}});
  return 0;
}

int list(bool json) {
  const std::vector<StoredModel> models = stored_models();
  const std::vector<CachedConversion> conversions = cached_conversions();
  if (json) return list_as_json(models, conversions);
  if (models.empty()) {
    const std::vector<std::string> folders = model_folders();
    print_note("no models in " + (folders.empty() ? "any model folder" : join(folders, ", ")) +
               "; edgellm pull hf:ORG/NAME downloads one, edgellm convert SRC "
               "-o FOLDER/NAME.tmac2 makes one");
  }
  std::vector<Row> rows;
  for (const StoredModel& model : models) rows.push_back({model.name, model.bytes, model.path});
  std::string text = models.empty() ? "" : table_of("NAME", rows);
  if (!conversions.empty()) {
    std::vector<Row> cached;
    for (const CachedConversion& conversion : conversions) {
      cached.push_back({source_text(conversion), conversion.bytes, conversion.path});
    }
    text += (text.empty() ? "" : "\n") + table_of("CONVERTED FROM", cached);
  }
  write_stdout(text);
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

void delete_file(const std::string& path) {
  std::error_code error;
  std::filesystem::remove(path, error);
  if (error) throw Error(ExitCode::kRuntime, "cannot delete " + path + ": " + error.message());
  print_note("deleted " + path);
}

// A folder may hold more than the model, so it is left to its owner.
void refuse_folder(const StoredModel& model) {
  if (model.kind != StoredKind::kHuggingFace) return;
  throw Error(ExitCode::kUsage,
              printable_path(model.path) +
                  " is a Hugging Face folder, which edgellm rm does not delete; type: rm -r " +
                  printable_path(model.path));
}

void remove_model(const StoredModel& model) {
  if (model.kind == StoredKind::kModel) {
    delete_file(model.path);
  } else {
    const uint64_t bytes = forget_conversion(model.path);
    if (bytes > 0) print_note("deleted " + human_bytes(bytes) + " in the cache, made from it");
    for (const std::string& part : conversion_inputs(model.path)) delete_file(part);
  }
  remove_empty_folders(model.path);
}

// All names are looked for before any file goes.
int remove_models(const RemoveFlags& flags) {
  const std::vector<std::string>& names = flags.names;
  if (names.empty() && !flags.cache) {
    throw Error(ExitCode::kUsage,
                "no model named; usage: edgellm rm NAME..., or edgellm rm --cache");
  }
  std::vector<StoredModel> models;
  for (const std::string& name : names) {
    models.push_back(find_stored_model(name));
    refuse_folder(models.back());
  }
  for (const StoredModel& model : models) remove_model(model);
  if (flags.cache) {
    const uint64_t bytes = empty_cache();
    print_note("deleted " + human_bytes(bytes) + " in " + printable_path(cache_folder()));
  }
  return 0;
}

}  // namespace

void add_list(Program& program) {
  Command& command = program.add(
      "list", "List the models in the model folders, and what is in the cache",
      "  edgellm list\n"
      "  edgellm list --json\n"
      "  GGUF files and Hugging Face folders are shown as well; they are converted once.\n"
      "  edgellm help environment says which folders these are.");
  auto json = std::make_shared<bool>(false);
  command.flag("--json", *json, "Print one JSON object");
  command.runs([json] { return list(*json); });
}

void add_rm(Program& program) {
  Command& command = program.add("rm", "Delete models from the model folders",
                                 "  edgellm rm storyteller\n"
                                 "  edgellm rm model.gguf   # with what was made from it\n"
                                 "  edgellm rm --cache\n"
                                 "  Deletes only what edgellm list shows, and does not ask.\n"
                                 "  Hugging Face folders stay.");
  auto flags = std::make_shared<RemoveFlags>();
  command.words("NAME", flags->names, "Names as edgellm list shows them").value("MODEL");
  command.flag("--cache", flags->cache,
               "Delete all cached conversions, and downloads that are not finished or were kept");
  command.runs([flags] { return remove_models(*flags); });
}

}  // namespace edgellm
