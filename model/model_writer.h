// Writes a `.tmac2` file under a temporary name beside its target and gives it its name when it is
// whole. Sections may be filled in any order, each of them from its first byte to its last.
//
//   ModelWriter writer(output, metadata, plan);   // checks the target and the free space
//   writer.append("embedding", bytes, n);         // ... until every section is full
//   writer.seal();                                // now temp_path() is a complete model
//   writer.set_golden(golden);                    // optional
//   writer.commit();                              // fsync, rename, fsync the folder
//
// Unless commit() succeeded, the destructor removes the temporary file.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/files.h"
#include "base/hash.h"
#include "base/output_file.h"
#include "model/layout.h"
#include "model/metadata.h"

namespace edgellm::model_io {

class ModelWriter {
 public:
  // More golden ids than these find no room in the reserved metadata.
  static constexpr size_t kMaxGoldenIds = 64;

  // The metadata's sections and golden are made here; `inputs` are files that must not be
  // overwritten. Failures are Error (kRuntime).
  // A dry run checks all that a real one does, and writes no byte: no golden, no commit().
  ModelWriter(const std::string& output, Metadata metadata, const std::vector<SectionPlan>& plan,
              const std::vector<FileIdentity>& inputs, bool dry_run = false);

  uint64_t file_bytes() const { return file_bytes_; }
  const Metadata& metadata() const { return metadata_; }
  // Not in a dry run, which writes no file.
  const std::string& temp_path() const { return file_->temporary_path(); }

  void append(std::string_view section, const void* data, size_t bytes);
  void seal();
  void set_golden(const Golden& golden);
  void commit();

 private:
  struct SectionState {
    size_t index = 0;                // in metadata_.sections
    uint64_t done = 0;               // bytes written
    std::unique_ptr<Hasher> hasher;  // while 0 < done < bytes
  };

  void place_sections(const std::vector<SectionPlan>& plan);
  void check_target(const std::vector<FileIdentity>& inputs) const;
  void check_free_space() const;
  void write(uint64_t offset, const void* data, size_t bytes);
  void write_metadata();

  std::string output_;
  std::optional<OutputFile> file_;  // empty in a dry run
  Metadata metadata_;
  std::unordered_map<std::string, SectionState> states_;
  size_t n_full_ = 0;  // sections completely written
  uint64_t first_offset_ = 0;
  uint64_t file_bytes_ = 0;
};

}  // namespace edgellm::model_io
