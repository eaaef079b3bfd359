#include "apps/common/version.h"

#include <string_view>

#include "apps/common/measured.h"
#include "apps/common/terminal.h"

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

nlohmann::ordered_json build_json() {
  const BuildInfo info = build_info();
  nlohmann::ordered_json json = {{"version", info.version},
                                 {"revision", info.revision},
                                 {"compiler", info.compiler},
                                 {"build_type", info.build_type},
                                 {"flags", info.flags}};
  const auto of_cuda = [&](const std::string& value) -> Measured<std::string> {
    if (info.cuda_version.empty()) return NotAvailable{"this program was built without CUDA"};
    return value;
  };
  put(json, "cuda_version", of_cuda(info.cuda_version));
  put(json, "cuda_flags", of_cuda(info.cuda_flags));
  put(json, "cuda_architectures", of_cuda(info.cuda_architectures));
  return json;
}

void print_version(bool json) {
  const BuildInfo info = build_info();
  if (json) {
    print_json({{"schema", "edgellm.version/1"},
                {"name", "edgellm"},
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
