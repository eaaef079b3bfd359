// Appends lines to a file by a thread of its own, so that the caller never waits for the disk. Says
// how many of them are safe.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>

namespace edgellm {

class RecordWriter {
 public:
  // `fd` stays the caller's. With `sync` it is a file: lines are appended in groups, each synced to
  // the disk, and a write that fails leaves nothing behind. Without, it is a stream.
  RecordWriter(int fd, bool sync, std::string name);
  ~RecordWriter();  // writes what there is, and keeps a failure to itself
  RecordWriter(const RecordWriter&) = delete;
  RecordWriter& operator=(const RecordWriter&) = delete;

  // A line with its newline. Throws Error (kRuntime) where an earlier one could not be written.
  void append(const std::string& record);

  // Returns when all lines are safe. Throws as append() does.
  void flush();

  // Lines that are on the disk, or with the reader of a stream.
  int64_t n_safe() const;

  // The pipe's reader has closed it: nothing more arrives.
  bool reader_gone() const;

 private:
  void work();
  int write_group(const std::string& group);  // 0 or errno
  void throw_failure();                       // mutex_ is held

  const int fd_;
  const bool sync_;
  const std::string name_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  std::string pending_;
  int64_t n_pending_ = 0;
  int64_t n_safe_ = 0;
  int error_ = 0;  // errno of the write that failed: nothing is written after it
  bool in_work_ = false;
  bool is_ending_ = false;
  bool in_hurry_ = false;  // somebody waits in flush()

  std::thread thread_;  // the last: it uses the others
};

}  // namespace edgellm
