// The input of a batch: lines that are not blank, with their numbers and ids. Read as a stream. Of
// lines that are done, only the ids stay in memory.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "apps/batch/ids.h"
#include "apps/batch/line.h"
#include "apps/batch/manifest.h"
#include "base/files.h"
#include "base/lines.h"

namespace edgellm {

class BatchInput {
 public:
  // A longer line is no request: parsing may take ten times its memory, and the answers that are
  // being made share what there is.
  static constexpr size_t kMaxLineBytes = size_t{16} << 20;

  // "-" is standard input. Throws Error (kUsage).
  BatchInput(const std::string& path, bool is_text);

  const std::string& name() const { return name_; }

  // A file can be scanned before the work begins, a stream cannot.
  bool is_file() const { return is_file_; }

  // Copies what is left of a stream to a file without a name, and reads that.
  void spool();

  // Of a file: what the manifest says about it. Lines that are added later are not read.
  BatchManifest::Input scan();

  // Whether the file is `before`, perhaps with lines added.
  bool continues(const BatchManifest::Input& before) const;

  // Starts again at the first line. Of a file.
  void rewind();

  // What was read up to now.
  BatchManifest::Input read_so_far() const;

  // Of a file at its end: throws Error (kRuntime) where it is not what scan() found.
  void require_unchanged() const;

  struct Request {
    int64_t line = 0;  // from 1; blank lines count
    std::string id;
    Digest digest;
    std::string text;
    std::optional<BatchLine> json;  // empty with --text, or with a problem
    std::string problem;            // one line; empty where the request is good
    bool is_duplicate = false;      // the problem is that another request has its id
    std::string where() const { return "line " + std::to_string(line); }
  };
  LineReader::Status next(Request& request, bool may_wait = true);

 private:
  void describe(Request& request, bool is_cut);

  std::string name_;
  bool is_text_;
  bool is_file_ = false;
  FileDescriptor owned_;
  int fd_ = -1;
  std::optional<LineReader> reader_;
  std::optional<BatchManifest::Input> scanned_;
  int64_t line_ = 0;
  int64_t n_requests_ = 0;
  BatchIds ids_;
};

}  // namespace edgellm
