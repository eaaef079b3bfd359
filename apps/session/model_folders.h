// Where a MODEL of the command line is: a path, or a name in one of the model folders.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace edgellm {

// The folders of EDGELLM_MODELS, then edgellm/models in the user's data folder, whether they exist
// or not; last ../share/edgellm/models beside the program, if it exists, where `make install` puts
// the demo model.
std::vector<std::string> model_folders();

// A folder with config.json, which is converted before it runs.
bool is_hugging_face_folder(const std::string& path);

// The file or folder that `name` means. In this order: a file of that path; the path with .tmac2
// added; a folder of that path with config.json; for a relative path, the same in each of the model
// folders. Nothing but exactly that name is taken: two different files of it in the user's
// own folders, and names that are only similar, are Error (kModelFile) with the candidates. One of
// the user's hides an installed one.
std::string find_model(const std::string& name);

enum class StoredKind : uint8_t { kModel, kGguf, kHuggingFace };

const char* to_string(StoredKind kind);  // "tmac2", "gguf", "hugging_face"

// A model in one of the model folders.
struct StoredModel {
  std::string name;  // what find_model() takes: without .tmac2, a folder with a slash at its end
  std::string path;  // of the first part of a split GGUF file
  uint64_t bytes = 0;
  StoredKind kind = StoredKind::kModel;
};

// All .tmac2 and .gguf files and Hugging Face folders in the model folders and the folders within,
// by name. Folders that cannot be read are left out.
std::vector<StoredModel> stored_models();

// The one of stored_models() that find_model() would take for the name. Throws Error as
// find_model() does, and (kUsage) for a path.
StoredModel find_stored_model(const std::string& name);

// Where a new model of that name is to be written: in the first of the user's own folders, with
// what folders it needs. Throws Error: kUsage for a name that leads out of the folder or where no
// variable names a folder, kRuntime where one cannot be made.
std::string new_model_path(const std::string& name);

// find_model() would give a file, or find more than one.
bool names_model(const std::string& name);

}  // namespace edgellm
