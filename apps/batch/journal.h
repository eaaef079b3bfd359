// The output of a batch while it is made: a file to which a line is appended for every request that
// is done, in the order in which they end. It belongs to one process at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "apps/batch/records.h"
#include "base/files.h"

namespace edgellm {

// Where a record stands.
struct RecordPlace {
  int64_t line = 0;  // of the input
  int fd = -1;
  uint64_t offset = 0;
  uint64_t bytes = 0;  // with its newline
};

class BatchJournal {
 public:
  // Opens the file or makes it. Throws Error (kRuntime) where it cannot be written, is no regular
  // file, or is being written by another process.
  explicit BatchJournal(const std::string& path);
  ~BatchJournal();
  BatchJournal(const BatchJournal&) = delete;
  BatchJournal& operator=(const BatchJournal&) = delete;

  int fd() const { return fd_.get(); }
  bool is_empty() const;
  // A file that this object made is removed with it, if it is empty and keep() was not called.
  void keep() { is_ours_to_remove_ = false; }

  void clear();

  // What becomes of a record: it stays, it is dropped, or it gets another line number (above 0).
  static constexpr int64_t kKeep = 0;
  static constexpr int64_t kDrop = -1;
  using Judge = std::function<int64_t(const RecordInfo&)>;
  struct Cleaned {
    int64_t kept = 0;
    int64_t dropped = 0;  // by the judge
    int64_t damaged = 0;  // lines that are no records, a torn last one included
  };
  // Asks the judge about every record, in their order. The file is replaced as a whole or not at
  // all.
  Cleaned clean(const Judge& judge);

  // Puts the records in the order of the input's lines, all or nothing.
  void sort();

 private:
  using Emit = std::function<void(std::string_view bytes)>;
  void replace(const std::function<void(const Emit&)>& write_records);

  std::string path_;  // without symbolic links: what is replaced is the file they lead to
  FileDescriptor fd_;
  bool is_ours_to_remove_ = false;
};

// Visits every line of a file of records. `info` is empty for a line that is damaged or torn.
void for_each_record(
    int fd, const std::string& path,
    const std::function<void(const std::optional<RecordInfo>& info, const std::string& text,
                             const RecordPlace& place)>& visit);

// Hands out the records in the order of their lines. Sorts `places`.
void emit_in_order(std::vector<RecordPlace>& places, const std::string& name,
                   const std::function<void(std::string_view bytes)>& emit);

}  // namespace edgellm
