#include "apps/version.h"

#include <string_view>

#include "apps/terminal.h"

namespace edgellm {

BuildInfo build_info() {
  return {
      .version = EDGELLM_VERSION,
      .revision = EDGELLM_REVISION,
      .cuda_version = EDGELLM_CUDA_VERSION,
      .compiler = EDGELLM_COMPILER,
      .build_type = EDGELLM_BUILD_TYPE,
      .flags = EDGELLM_FLAGS,
      .cuda_flags = std::string_view(EDGELLM_CUDA_VERSION).empty() ? "" : EDGELLM_CUDA_FLAGS_TEXT,
      .cuda_architectures = EDGELLM_CUDA_ARCHITECTURES};
}

void print_version(bool json) {
  const BuildInfo info = build_info();
  if (json) {
    print_json({{"name", "edgellm"},
                {"version", info.version},
                {"revision", info.revision},
                {"cuda", !info.cuda_version.empty()},
                {"cuda_version", info.cuda_version},
                {"compiler", info.compiler}});
    return;
  }
  const std::string cuda = info.cuda_version.empty() ? "without CUDA" : "CUDA " + info.cuda_version;
  write_stdout("edgellm " + info.version + " (git " + info.revision + ", " + cuda + ", " +
               info.compiler + ")\n");
}

}  // namespace edgellm
