#include "apps/batch/journal.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "apps/common/signals.h"
#include "apps/common/terminal.h"
#include "base/error.h"
#include "base/lines.h"
#include "base/output_file.h"

namespace edgellm {
namespace {

bool same_file(int fd, const std::string& path) {
  struct stat open_one = {};
  struct stat named = {};
  return fstat(fd, &open_one) == 0 && stat(path.c_str(), &named) == 0 &&
         open_one.st_dev == named.st_dev && open_one.st_ino == named.st_ino;
}

void lock(int fd, const std::string& path) {
  if (flock(fd, LOCK_EX | LOCK_NB) == 0) return;
  if (errno == EWOULDBLOCK) {
    throw Error(ExitCode::kRuntime, path +
                                        " is being written by another edgellm batch; wait until it "
                                        "has ended, or name another output");
  }
  // Some network file systems have no locks.
  print_warning("cannot lock " + path + " (" + std::strerror(errno) +
                "): make sure that no other process writes it");
}

}  // namespace

BatchJournal::BatchJournal(const std::string& path) {
  std::error_code failed;
  path_ = std::filesystem::weakly_canonical(path, failed).string();
  if (failed) path_ = path;
  require_writable(path_);
  while (true) {
    const int flags = O_RDWR | O_APPEND | O_CLOEXEC;
    fd_ = FileDescriptor(open(path_.c_str(), flags | O_CREAT | O_EXCL, 0666));
    is_ours_to_remove_ = fd_.get() >= 0;
    if (!is_ours_to_remove_) {
      if (errno != EEXIST) fail_to_write(path, errno);
      fd_ = FileDescriptor(open(path_.c_str(), flags));
      if (fd_.get() < 0 && errno == ENOENT) continue;
      if (fd_.get() < 0) fail_to_write(path, errno);
    }
    lock(fd_.get(), path);
    // Between opening and locking, its last owner may have put another file in its place.
    if (same_file(fd_.get(), path_)) return;
  }
}

BatchJournal::~BatchJournal() {
  if (is_ours_to_remove_ && is_empty()) unlink(path_.c_str());
}

bool BatchJournal::is_empty() const {
  struct stat status = {};
  return fstat(fd_.get(), &status) == 0 && status.st_size == 0;
}

void BatchJournal::clear() {
  if (ftruncate(fd_.get(), 0) != 0) fail_to_write(path_, errno);
}

BatchJournal::Cleaned BatchJournal::clean(const Judge& judge) {
  Cleaned cleaned;
  std::vector<std::pair<RecordPlace, int64_t>> changes;  // every verdict but kKeep
  uint64_t kept_end = 0;
  for_each_record(fd_.get(), path_,
                  [&](const auto& info, const std::string&, const RecordPlace& place) {
                    const int64_t verdict = info ? judge(*info) : kDrop;
                    if (verdict != kKeep) changes.emplace_back(place, verdict);
                    if (!info) {
                      ++cleaned.damaged;
                    } else if (verdict == kDrop) {
                      ++cleaned.dropped;
                    } else {
                      ++cleaned.kept;
                    }
                    if (verdict != kDrop) kept_end = place.offset + place.bytes;
                  });
  if (changes.empty()) return cleaned;
  const bool only_the_end = changes.front().first.offset == kept_end;
  if (only_the_end) {
    if (ftruncate(fd_.get(), static_cast<off_t>(kept_end)) != 0 || fsync(fd_.get()) != 0) {
      fail_to_write(path_, errno);
    }
    return cleaned;
  }
  replace([&](const Emit& emit) {
    auto change = changes.begin();
    for_each_record(fd_.get(), path_,
                    [&](const auto&, const std::string& text, const RecordPlace& place) {
                      int64_t verdict = kKeep;
                      if (change != changes.end() && change->first.offset == place.offset) {
                        verdict = (change++)->second;
                      }
                      if (verdict == kKeep) emit(text + "\n");
                      if (verdict > 0) emit(moved_record(text, verdict));
                    });
  });
  return cleaned;
}

void BatchJournal::sort() {
  std::vector<RecordPlace> places;
  for_each_record(fd_.get(), path_,
                  [&](const auto& info, const std::string&, const RecordPlace& place) {
                    if (info) places.push_back(place);
                  });
  const auto by_line = [](const RecordPlace& a, const RecordPlace& b) { return a.line < b.line; };
  if (std::is_sorted(places.begin(), places.end(), by_line)) return;
  replace([&](const Emit& emit) { emit_in_order(places, path_, emit); });
}

void BatchJournal::replace(const std::function<void(const Emit&)>& write_records) {
  struct stat status = {};
  const bool known = fstat(fd_.get(), &status) == 0;
  OutputFile file(path_, OutputFile::Temporary::kFixed);
  // This file is the journal from now on, and records are appended to a journal.
  if (fcntl(file.fd(), F_SETFL, O_APPEND) != 0) fail_to_write(path_, errno);
  if (known) (void)!fchmod(file.fd(), status.st_mode & 07777);
  lock(file.fd(), path_);  // before it has the name
  std::string buffer;
  constexpr size_t kWriteBytes = size_t{1} << 20;
  write_records([&](std::string_view bytes) {
    buffer += bytes;
    if (buffer.size() < kWriteBytes) return;
    file.write(buffer.data(), buffer.size());
    buffer.clear();
  });
  file.write(buffer.data(), buffer.size());
  fd_ = file.commit();
}

void for_each_record(
    int fd, const std::string& path,
    const std::function<void(const std::optional<RecordInfo>& info, const std::string& text,
                             const RecordPlace& place)>& visit) {
  LineReader reader(fd, path, {.wait = await_input});
  Line line;
  while (reader.next(line) == LineReader::Status::kLine) {
    throw_if_interrupted();
    std::optional<RecordInfo> info;
    if (line.has_newline && !line.is_cut) info = read_record(line.text);
    visit(
        info, line.text,
        {.line = info ? info->head.line : 0, .fd = fd, .offset = line.offset, .bytes = line.bytes});
  }
}

void emit_in_order(std::vector<RecordPlace>& places, const std::string& name,
                   const std::function<void(std::string_view bytes)>& emit) {
  std::sort(places.begin(), places.end(),
            [](const RecordPlace& a, const RecordPlace& b) { return a.line < b.line; });
  std::string text;
  for (const RecordPlace& place : places) {
    throw_if_interrupted();
    text.resize(place.bytes);
    size_t done = 0;
    while (done < text.size()) {
      const ssize_t n = pread(place.fd, text.data() + done, text.size() - done,
                              static_cast<off_t>(place.offset + done));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) {
        throw Error(ExitCode::kRuntime, "cannot read " + name + ": " + std::strerror(errno));
      }
      if (n == 0) throw Error(ExitCode::kRuntime, name + " became shorter while it was read");
      done += static_cast<size_t>(n);
    }
    emit(text);
  }
}

}  // namespace edgellm
