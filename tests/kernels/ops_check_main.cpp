// edgellm_ops_check DIR: checks recorded operations (tests/kernels/ops_check.h), prints a line for
// each, exit 0 when all are within their limits.
#include <cstdio>
#include <exception>

#include "tests/kernels/ops_check.h"

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: edgellm_ops_check DIR\n");
    return 2;
  }
  try {
    const auto checks = edgellm::test::check_ops(argv[1]);
    int failed = 0;
    for (const auto& check : checks) {
      const bool ok = check.failure.empty();
      failed += !ok;
      std::printf("%-6s %-28s %-14s worst error %.3f of the limit %s\n", ok ? "ok" : "FAILED",
                  check.name.c_str(), check.backend.c_str(), check.worst, check.failure.c_str());
    }
    std::printf("%zu checks, %d failed\n", checks.size(), failed);
    return checks.empty() || failed > 0 ? 1 : 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "edgellm_ops_check: %s\n", error.what());
    return 1;
  }
}
