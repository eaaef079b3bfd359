// Runs inputs through a fuzz target without a fuzzer: every file of the folders that are named.
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "tests/fuzz/fuzz.h"

namespace {

// False, and a line on stderr, where the input is a finding.
bool replay(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  try {
    LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", path.c_str(), error.what());
    return false;
  }
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  int n_inputs = 0;
  int n_findings = 0;
  for (int i = 1; i < argc; ++i) {
    for (const auto& entry : std::filesystem::directory_iterator(argv[i])) {
      ++n_inputs;
      if (!replay(entry.path())) ++n_findings;
    }
  }
  std::printf("%d inputs, %d findings\n", n_inputs, n_findings);
  return n_inputs > 0 && n_findings == 0 ? 0 : 1;
}
