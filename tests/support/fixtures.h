// Where the golden fixtures are: EDGELLM_FIXTURES, or the full set in ../shared/fixtures beside the
// repository, or the small ones that the repository holds.
//
// Tests take every file that lies there and name no folder: what a file is for shows in its
// contents.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <vector>

namespace edgellm::test {

// The folder, which exists. A relative EDGELLM_FIXTURES counts from the repository, for ctest runs
// elsewhere; one that names no folder throws, lest a slip of the pen pass as "nothing to test".
inline std::filesystem::path fixtures() {
  const std::filesystem::path source = EDGELLM_SOURCE_DIR;
  const char* from_env = std::getenv("EDGELLM_FIXTURES");
  if (from_env != nullptr && *from_env != '\0') {
    const std::filesystem::path folder = source / from_env;  // an absolute path replaces the source
    if (std::filesystem::is_directory(folder)) return folder;
    throw std::runtime_error("EDGELLM_FIXTURES=" + std::string(from_env) + ": no folder " +
                             folder.string());
  }
  const std::filesystem::path beside = source / ".." / "shared" / "fixtures";
  return std::filesystem::is_directory(beside) ? beside : source / "tests" / "data" / "fixtures";
}

// The files and folders below the fixtures for which wanted(path) is true, sorted.
template <class Wanted>
std::vector<std::filesystem::path> fixtures_where(Wanted wanted) {
  std::vector<std::filesystem::path> found;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(fixtures())) {
    if (wanted(entry.path())) found.push_back(entry.path());
  }
  std::sort(found.begin(), found.end());
  return found;
}

inline bool has_safetensors(const std::filesystem::path& folder) {
  const std::filesystem::directory_iterator files(folder);
  return std::any_of(begin(files), end(files),
                     [](const auto& file) { return file.path().extension() == ".safetensors"; });
}

inline bool is_model_folder(const std::filesystem::path& path) {
  return std::filesystem::exists(path / "config.json") && has_safetensors(path);
}

// Safetensors that belong to no model: recorded operations.
inline bool is_recorded_operations(const std::filesystem::path& path) {
  return path.extension() == ".safetensors" &&
         !std::filesystem::exists(path.parent_path() / "config.json");
}

}  // namespace edgellm::test
