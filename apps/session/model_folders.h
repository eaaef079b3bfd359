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

// What is converted before it runs. Such a folder is taken by its path only: model folders may hold
// folders of many kinds.
bool is_hugging_face_folder(const std::string& path);

// The file or folder that `name` means. In this order: a file of that path; the path with .tmac2
// added; a folder of that path with config.json; for a relative path, the first two in each of the
// model folders. Nothing but exactly that name is taken: two different files of it in the user's
// own folders, and names that are only similar, are Error (kModelFile) with the candidates. One of
// the user's hides an installed one.
std::string find_model(const std::string& name);

// A model in one of the model folders.
struct StoredModel {
  std::string name;  // what find_model() takes, without the ending
  std::string path;
  uint64_t bytes = 0;
};

// All files that end in .tmac2 in the model folders and the folders within, by name. Folders that
// cannot be read are left out.
std::vector<StoredModel> stored_models();

// The file in the model folders, and nowhere else, that find_model() would take for the name.
// Throws Error as find_model() does, and (kUsage) for a path.
std::string find_stored_model(const std::string& name);

// Where a new model of that name is to be written: in the first of the user's own folders, with
// what folders it needs. Throws Error: kUsage for a name that leads out of the folder or where no
// variable names a folder, kRuntime where one cannot be made.
std::string new_model_path(const std::string& name);

// find_model() would give a file, or find more than one.
bool names_model(const std::string& name);

}  // namespace edgellm
