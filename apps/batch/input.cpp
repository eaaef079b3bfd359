#include "apps/batch/input.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "apps/common/signals.h"
#include "base/error.h"
#include "base/hash.h"
#include "base/output_file.h"
#include "tokenizer/tokenizer.h"

namespace edgellm {
namespace {

constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

bool is_regular(int fd) {
  struct stat status = {};
  return fstat(fd, &status) == 0 && S_ISREG(status.st_mode);
}

[[noreturn]] void fail_to_spool(const std::string& folder, int error) {
  throw Error(ExitCode::kRuntime, "cannot keep standard input in " + folder + ": " +
                                      std::strerror(error) +
                                      "; name another folder with TMPDIR, or save it to a file");
}

}  // namespace

BatchInput::BatchInput(const std::string& path, bool is_text)
    : name_(path == "-" ? "standard input" : path), is_text_(is_text), fd_(STDIN_FILENO) {
  if (path != "-") {
    owned_ = FileDescriptor(open(path.c_str(), O_RDONLY | O_CLOEXEC));
    fd_ = owned_.get();
    std::error_code ignored;
    const bool is_folder = std::filesystem::is_directory(path, ignored);
    if (is_folder) errno = EISDIR;
    if (fd_ < 0 || is_folder) {
      throw Error(ExitCode::kUsage, "cannot read " + path + ": " + std::strerror(errno));
    }
  }
  is_file_ = is_regular(fd_);
  rewind();
  // Standard input may be a file that another program has read the beginning of. The rest is the
  // input.
  if (path == "-" && is_file_ && lseek(fd_, 0, SEEK_CUR) > 0) spool();
}

void BatchInput::rewind() {
  reader_.emplace(fd_, name_,
                  LineReader::Options{.max_line_bytes = kMaxLineBytes,
                                      .max_bytes = scanned_ ? scanned_->bytes : UINT64_MAX,
                                      .wait = await_input});
  line_ = 0;
  n_requests_ = 0;
  ids_ = {};
}

void BatchInput::spool() {
  std::error_code failed;
  const std::string folder = std::filesystem::temp_directory_path(failed).string();
  std::string name = folder + "/edgellm-batch-XXXXXX";
  FileDescriptor file(mkostemp(name.data(), O_CLOEXEC));
  if (file.get() < 0) fail_to_spool(folder, errno);
  unlink(name.c_str());
  std::array<char, 1 << 16> buffer;
  while (true) {
    await_input(fd_);
    const ssize_t n = read(fd_, buffer.data(), buffer.size());
    if (n == 0) break;
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      throw Error(ExitCode::kUsage, "cannot read " + name_ + ": " + std::strerror(errno));
    }
    const int error = write_all(file.get(), {buffer.data(), static_cast<size_t>(n)});
    if (error != 0) fail_to_spool(folder, error);
  }
  owned_ = std::move(file);
  fd_ = owned_.get();
  is_file_ = true;
  rewind();
}

BatchManifest::Input BatchInput::scan() {
  rewind();
  Line line;
  while (reader_->next(line) == LineReader::Status::kLine) {
    throw_if_interrupted();
    if (!is_blank_line(line.text)) ++n_requests_;
  }
  scanned_ = read_so_far();
  rewind();
  return *scanned_;
}

bool BatchInput::continues(const BatchManifest::Input& before) const {
  if (before.bytes > scanned_->bytes) return false;
  if (before.bytes == scanned_->bytes) return before == *scanned_;
  LineReader reader(fd_, name_, {.max_bytes = before.bytes, .wait = await_input});
  Line line;
  line.has_newline = true;
  while (reader.next(line) == LineReader::Status::kLine) throw_if_interrupted();
  if (reader.xxh3() != before.xxh3) return false;
  if (line.has_newline) return true;
  char next = 0;  // added bytes must not have made the last line longer
  return pread(fd_, &next, 1, static_cast<off_t>(before.bytes)) == 1 &&
         (next == '\n' || next == '\r');
}

BatchManifest::Input BatchInput::read_so_far() const {
  return {.bytes = reader_->bytes_read(), .xxh3 = reader_->xxh3(), .requests = n_requests_};
}

void BatchInput::require_unchanged() const {
  if (!scanned_ || read_so_far() == *scanned_) return;
  throw Error(ExitCode::kRuntime, name_ +
                                      " was changed while it was read; type the same command "
                                      "again, which says how to resume");
}

LineReader::Status BatchInput::next(Request& request, bool may_wait) {
  Line line;
  while (true) {
    const LineReader::Status status = reader_->next(line, may_wait);
    if (status != LineReader::Status::kLine) return status;
    ++line_;
    if (line_ == 1 && line.text.starts_with(kByteOrderMark)) {
      line.text.erase(0, kByteOrderMark.size());
    }
    if (!is_blank_line(line.text)) break;
  }
  ++n_requests_;
  request = {};
  request.line = line_;
  request.text = std::move(line.text);
  describe(request, line.is_cut);
  return LineReader::Status::kLine;
}

void BatchInput::describe(Request& request, bool is_cut) {
  std::optional<std::string> given;
  if (is_cut) {
    request.problem =
        request.where() + " is longer than " + std::to_string(kMaxLineBytes >> 20) + " MiB";
  } else if (const size_t bad = find_invalid_utf8(request.text); bad != std::string::npos) {
    request.problem = request.where() + " is not UTF-8 at byte " + std::to_string(bad) +
                      "; convert it first, for example with iconv -t UTF-8";
  } else if (!is_text_) {
    try {
      request.json = parse_batch_line(request.text, request.where());
      given = request.json->id;
    } catch (const Error& error) {
      request.problem = error.what();
    }
  }
  BatchIds::Id id = ids_.assign(given, request.line);
  request.id = std::move(id.text);
  request.digest = request_digest(request.id, request.text);
  if (id.used_in_line == 0) return;
  request.is_duplicate = true;
  request.problem = request.where() + ": the id " + nlohmann::json(*given).dump() +
                    " is that of line " + std::to_string(id.used_in_line) +
                    " already; ids must be unique";
}

}  // namespace edgellm
