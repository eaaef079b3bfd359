// Where the golden fixtures are: EDGELLM_FIXTURES, or the full set in ../shared/fixtures beside the
// repository, or the small ones that the repository holds.
#pragma once

#include <cstdlib>
#include <filesystem>

namespace edgellm::test {

inline std::filesystem::path fixtures() {
  if (const char* from_env = std::getenv("EDGELLM_FIXTURES")) return from_env;
  const std::filesystem::path source = EDGELLM_SOURCE_DIR;
  const std::filesystem::path beside = source / ".." / "shared" / "fixtures";
  return std::filesystem::exists(beside) ? beside : source / "tests" / "data" / "fixtures";
}

}  // namespace edgellm::test
