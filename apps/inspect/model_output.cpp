#include "apps/inspect/model_output.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <vector>

#include "apps/common/signals.h"
#include "apps/common/terminal.h"
#include "base/error.h"
#include "base/files.h"
#include "base/output_file.h"

namespace edgellm {

ModelOutput::ModelOutput(const std::string& named) : path_(named), name_(named) {
  if (named != kStandardOutput) {
    require_writable(named);
    return;
  }
  if (is_terminal(STDOUT_FILENO)) {
    throw Error(ExitCode::kUsage, "a model is no text for a terminal; name a file, or pipe it on");
  }
  std::error_code ignored;
  folder_ = std::filesystem::temp_directory_path(ignored).string() + "/edgellm-model-XXXXXX";
  if (mkdtemp(folder_.data()) == nullptr) {
    const int error = errno;
    const std::string parent = folder_of(folder_);
    folder_.clear();
    throw Error(ExitCode::kRuntime, "cannot make the model in " + parent + ": " +
                                        std::strerror(error) + "; name another folder with TMPDIR");
  }
  path_ = folder_ + "/model.tmac2";
  name_ = "standard output";
}

ModelOutput::~ModelOutput() {
  if (folder_.empty()) return;
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

void ModelOutput::finish() const {
  if (!is_stdout()) return;
  constexpr size_t kPieceBytes = size_t{1} << 20;
  const FileDescriptor file(open(path_.c_str(), O_RDONLY | O_CLOEXEC));
  std::string piece(kPieceBytes, '\0');
  while (true) {
    throw_if_interrupted();
    const ssize_t n = read(file.get(), piece.data(), piece.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      throw Error(ExitCode::kRuntime, "cannot read " + path_ + ": " + std::strerror(errno));
    }
    if (n == 0 || !write_stdout({piece.data(), static_cast<size_t>(n)})) return;
  }
}

}  // namespace edgellm
