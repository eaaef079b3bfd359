#include "model/model_writer.h"

#include <sys/stat.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "base/text.h"

namespace edgellm::model_io {
namespace {

[[noreturn]] void fail_output(const std::string& path, const std::string& predicate) {
  throw Error(ExitCode::kRuntime, printable_path(path) + " " + predicate);
}

}  // namespace

ModelWriter::ModelWriter(const std::string& output, Metadata metadata,
                         const std::vector<SectionPlan>& plan,
                         const std::vector<FileIdentity>& inputs, bool dry_run)
    : output_(output), metadata_(std::move(metadata)) {
  check_target(inputs);
  place_sections(plan);
  check_free_space();
  if (dry_run) return;
  const std::string name = printable_path(output_);
  file_.emplace(output_, OutputFile::Temporary::kUnique,
                OutputFile::Blame{name + " cannot be written", name + " cannot be given its name"});
}

void ModelWriter::check_target(const std::vector<FileIdentity>& inputs) const {
  if (output_.empty() || output_.back() == '/') {
    fail_output(output_, "is not the name of a file; type: -o NAME.tmac2");
  }
  struct stat status = {};
  if (::stat(output_.c_str(), &status) != 0) return;
  if (S_ISDIR(status.st_mode)) {
    fail_output(output_, "is a folder, expected the name of the file to write");
  }
  // Renaming over a device such as /dev/null would replace it for the whole system.
  if (!S_ISREG(status.st_mode)) fail_output(output_, "is not a regular file");
  const FileIdentity target = {static_cast<uint64_t>(status.st_dev),
                               static_cast<uint64_t>(status.st_ino)};
  if (std::find(inputs.begin(), inputs.end(), target) != inputs.end()) {
    fail_output(output_, "is one of the files to convert; choose another name for the output");
  }
}

// The offsets stand in the metadata, whose size decides where the first section can start. Room is
// kept for the longest metadata possible: the widest offsets and a full golden.
void ModelWriter::place_sections(const std::vector<SectionPlan>& plan) {
  metadata_.golden = Golden{{}, std::vector<int32_t>(kMaxGoldenIds, INT32_MAX)};
  metadata_.sections.clear();
  for (const SectionPlan& planned : plan) {
    const auto bytes = tensor_bytes(planned.dtype, planned.shape);
    require(bytes.has_value(), "a planned section has a size");
    metadata_.sections.push_back(
        {planned.name, planned.dtype, planned.shape, planned.group, INT64_MAX, *bytes, UINT64_MAX});
  }
  const uint64_t longest = metadata_text(metadata_).size();
  metadata_.golden.reset();
  if (longest > kMaxMetadataBytes) {
    fail_output(output_, "would have metadata of " + std::to_string(longest) + " bytes, at most " +
                             std::to_string(kMaxMetadataBytes) + " are read");
  }

  first_offset_ = round_up(kHeaderBytes + longest, kFirstSectionAlignment);
  uint64_t offset = first_offset_;
  for (size_t i = 0; i < metadata_.sections.size(); ++i) {
    Section& section = metadata_.sections[i];
    section.offset = round_up(offset, kSectionAlignment);
    offset = section.offset + section.bytes;
    const bool is_new = states_.emplace(section.name, SectionState{i, 0, nullptr}).second;
    require(is_new, "planned sections have different names");
  }
  file_bytes_ = offset;
}

void ModelWriter::check_free_space() const {
  struct statvfs status = {};
  if (::statvfs(folder_of(output_).c_str(), &status) != 0) {
    fail_output(output_, std::string("cannot be written: its folder cannot be examined: ") +
                             std::strerror(errno));
  }
  const uint64_t free = static_cast<uint64_t>(status.f_bavail) * status.f_frsize;
  if (free < file_bytes_) {
    fail_output(output_, "needs " + std::to_string(file_bytes_) + " bytes, there are " +
                             std::to_string(free) + " free; make room or choose another folder");
  }
}

void ModelWriter::write(uint64_t offset, const void* data, size_t bytes) {
  if (file_) file_->write_at(offset, data, bytes);
}

void ModelWriter::append(std::string_view name, const void* data, size_t bytes) {
  const auto it = states_.find(std::string(name));
  require(it != states_.end(), "a planned section");
  SectionState& state = it->second;
  Section& section = metadata_.sections[state.index];
  require(bytes <= section.bytes - state.done, "no more bytes than the section has");
  if (bytes == 0) return;
  write(section.offset + state.done, data, bytes);
  if (!state.hasher) state.hasher = std::make_unique<Hasher>();
  state.hasher->update(data, bytes);
  state.done += bytes;
  if (state.done == section.bytes) {
    section.xxh3 = state.hasher->digest();
    state.hasher.reset();
    ++n_full_;
  }
}

void ModelWriter::write_metadata() {
  const std::string text = metadata_text(metadata_);
  require(kHeaderBytes + text.size() <= first_offset_, "the metadata fits its room");
  std::vector<char> block(static_cast<size_t>(first_offset_), '\0');
  const uint32_t version = kVersion;
  const uint64_t metadata_bytes = text.size();
  const uint64_t metadata_hash = xxh3(text.data(), text.size());
  std::memcpy(block.data(), kMagic, 8);
  std::memcpy(block.data() + 8, &version, sizeof(version));
  std::memcpy(block.data() + 16, &metadata_bytes, sizeof(metadata_bytes));
  std::memcpy(block.data() + 24, &metadata_hash, sizeof(metadata_hash));
  std::memcpy(block.data() + kHeaderBytes, text.data(), text.size());
  write(0, block.data(), block.size());
}

void ModelWriter::seal() {
  require(n_full_ == metadata_.sections.size(), "every section was written to its end");
  write_metadata();
}

void ModelWriter::set_golden(const Golden& golden) {
  require(golden.prompt_ids.size() + golden.greedy_ids.size() <= kMaxGoldenIds,
          "a golden has at most kMaxGoldenIds ids");
  metadata_.golden = golden;
  write_metadata();
}

void ModelWriter::commit() {
  require(file_.has_value(), "a dry run has nothing to commit");
  ModelFile::open(temp_path());  // what the reader refuses must not get the name
  file_->commit();
}

}  // namespace edgellm::model_io
