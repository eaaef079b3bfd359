// The recorded operations of every fixtures folder that holds some.
#include <catch2/catch.hpp>
#include <set>

#include "tests/kernels/ops_check.h"
#include "tests/support/fixtures.h"
#include "tests/support/safetensors_file.h"
#include "tests/support/skip.h"

namespace edgellm::test {
namespace {

// A folder of recorded operations: safetensors, and none of the files of a model.
std::set<std::filesystem::path> op_folders() {
  std::set<std::filesystem::path> folders;
  if (!std::filesystem::is_directory(fixtures())) return folders;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(fixtures())) {
    const auto folder = entry.path().parent_path();
    if (entry.path().extension() == ".safetensors" &&
        !std::filesystem::exists(folder / "config.json")) {
      folders.insert(folder);
    }
  }
  return folders;
}

TEST_CASE("recorded operations: codes and scales exact, results within 2e-6") {
  const auto folders = op_folders();
  if (folders.empty()) {
    skip("no recorded operations below " + fixtures().string() + " (set EDGELLM_FIXTURES)");
    return;
  }
  for (const auto& folder : folders) {
    for (const OpCheck& check : check_ops(folder)) {
      INFO(folder << ": " << check.name << ", " << check.backend << ": " << check.failure);
      CHECK(check.failure.empty());
    }
  }
}

}  // namespace
}  // namespace edgellm::test
