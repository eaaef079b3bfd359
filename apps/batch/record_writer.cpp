#include "apps/batch/record_writer.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "base/output_file.h"

namespace edgellm {
namespace {

// A sync takes a disk some milliseconds. Ten of them a second cost little, and a crash of the
// machine loses the records of a tenth of a second.
constexpr auto kSyncInterval = std::chrono::milliseconds(100);
// A disk that stands still must not fill the memory.
constexpr size_t kMaxPendingBytes = size_t{64} << 20;

}  // namespace

RecordWriter::RecordWriter(int fd, bool sync, std::string name)
    : fd_(fd), sync_(sync), name_(std::move(name)), thread_([this] { work(); }) {}

RecordWriter::~RecordWriter() {
  {
    const std::lock_guard lock(mutex_);
    is_ending_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void RecordWriter::throw_failure() {
  if (error_ == 0 || error_ == EPIPE) return;
  std::string message = "cannot write " + name_ + ": " + std::strerror(error_);
  if (sync_) message += "; what was written before is safe: type the same command again to resume";
  throw Error(ExitCode::kRuntime, message);
}

void RecordWriter::append(const std::string& record) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return pending_.size() < kMaxPendingBytes || error_ != 0; });
  throw_failure();
  if (error_ != 0) return;
  pending_ += record;
  ++n_pending_;
  changed_.notify_all();
}

void RecordWriter::flush() {
  std::unique_lock lock(mutex_);
  in_hurry_ = true;
  changed_.notify_all();
  changed_.wait(lock, [&] { return (n_pending_ == 0 && !in_work_) || error_ != 0; });
  in_hurry_ = false;
  throw_failure();
}

int64_t RecordWriter::n_safe() const {
  const std::lock_guard lock(mutex_);
  return n_safe_;
}

bool RecordWriter::reader_gone() const {
  const std::lock_guard lock(mutex_);
  return error_ == EPIPE;
}

void RecordWriter::work() {
  auto next_sync = std::chrono::steady_clock::now();
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return n_pending_ > 0 || is_ending_; });
    if (n_pending_ == 0 || error_ != 0) return;
    if (sync_) {
      changed_.wait_until(lock, next_sync, [&] { return is_ending_ || in_hurry_; });
      next_sync = std::chrono::steady_clock::now() + kSyncInterval;
    }
    const std::string group = std::exchange(pending_, {});
    const int64_t n_records = std::exchange(n_pending_, 0);
    in_work_ = true;
    lock.unlock();
    changed_.notify_all();
    const int error = write_group(group);
    lock.lock();
    in_work_ = false;
    error_ = error;
    if (error == 0) n_safe_ += n_records;
    changed_.notify_all();
    if (error != 0) return;
  }
}

int RecordWriter::write_group(const std::string& group) {
  struct stat before = {};
  if (sync_ && fstat(fd_, &before) != 0) return errno;
  int error = write_all(fd_, group);
  if (error == 0 && sync_ && fdatasync(fd_) != 0) error = errno;
  // A line that was written in part would be taken for a torn one.
  if (error != 0 && sync_ && ftruncate(fd_, before.st_size) != 0) return error;
  return error;
}

}  // namespace edgellm
