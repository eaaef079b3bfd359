// Where the golden fixtures are: EDGELLM_FIXTURES, or ../shared/fixtures beside the repository.
#pragma once

#include <cstdlib>
#include <filesystem>

namespace edgellm::test {

inline std::filesystem::path fixtures() {
  if (const char* from_env = std::getenv("EDGELLM_FIXTURES")) return from_env;
  return std::filesystem::path(EDGELLM_SOURCE_DIR) / ".." / "shared" / "fixtures";
}

}  // namespace edgellm::test
