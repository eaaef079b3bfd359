#include "apps/batch/merge.h"

#include <fcntl.h>
#include <sys/file.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <unordered_map>
#include <unordered_set>

#include "apps/batch/input.h"
#include "apps/batch/journal.h"
#include "apps/common/signals.h"
#include "apps/common/terminal.h"
#include "base/error.h"
#include "base/files.h"
#include "base/output_file.h"
#include "base/text.h"

namespace edgellm {
namespace {

// An output that is to be merged.
struct Source {
  std::string path;
  FileDescriptor fd;
  std::optional<BatchManifest> manifest;
};

// A list for a message: a few items and the number of the others.
std::string first_few(const std::vector<std::string>& items, int64_t count) {
  std::string text = join(items, ", ");
  const int64_t more = count - static_cast<int64_t>(items.size());
  return more > 0 ? text + " and " + std::to_string(more) + " more" : text;
}

constexpr size_t kShownItems = 5;

[[noreturn]] void fail_check(const std::string& what) {
  throw Error(ExitCode::kVerification, what);
}

Source open_source(const std::string& path, const BatchFlags& flags) {
  Source source{path, FileDescriptor(open(path.c_str(), O_RDONLY | O_CLOEXEC)), {}};
  if (source.fd.get() < 0) {
    throw Error(ExitCode::kUsage, "cannot read " + path + ": " + std::strerror(errno));
  }
  std::error_code ignored;
  if (std::filesystem::equivalent(path, flags.output, ignored)) {
    throw Error(ExitCode::kUsage,
                path + " is both merged and written; name an output that --merge does not read");
  }
  if (flock(source.fd.get(), LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    fail_check(path + " is being written by edgellm batch; wait until it has ended");
  }
  source.manifest = read_manifest(path);
  if (!source.manifest && flags.input.empty()) {
    throw Error(ExitCode::kUsage, path + " has no " + manifest_path(path) +
                                      ", so nothing tells whether it is a part; name the input to "
                                      "check against with -i IN.jsonl");
  }
  return source;
}

// Requires shards of one run, each of them once: same model, same flags, same input.
void check_manifests(const std::vector<Source>& sources, bool has_input) {
  const Source* first = nullptr;
  std::vector<std::string> of_shard;
  for (const Source& source : sources) {
    if (!source.manifest) continue;
    if (first == nullptr) first = &source;
    BatchManifest same_shard = *source.manifest;
    same_shard.shard = first->manifest->shard;
    std::vector<std::string> differences = manifest_differences(*first->manifest, same_shard);
    if (source.manifest->shard.count != first->manifest->shard.count) {
      differences.push_back("it was cut in " + std::to_string(first->manifest->shard.count) +
                            " shards, now in " + std::to_string(source.manifest->shard.count));
    }
    if (source.manifest->input != first->manifest->input) {
      differences.emplace_back("the input is not the same");
    }
    if (!differences.empty()) {
      throw Error(ExitCode::kUsage, first->path + " and " + source.path +
                                        " are not of the same run: " + join(differences, "; "));
    }
    of_shard.resize(static_cast<size_t>(source.manifest->shard.count));
    std::string& name = of_shard[static_cast<size_t>(source.manifest->shard.index) - 1];
    if (!name.empty()) {
      throw Error(ExitCode::kUsage, name + " and " + source.path + " are both shard " +
                                        to_string(source.manifest->shard));
    }
    name = source.path;
    if (!source.manifest->is_complete && !has_input) {
      fail_check(source.path + " is not complete; type its command again to resume it");
    }
  }
  for (size_t i = 0; i < of_shard.size() && !has_input; ++i) {
    if (of_shard[i].empty()) {
      fail_check("shard " + std::to_string(i + 1) + "/" + std::to_string(of_shard.size()) +
                 " is missing");
    }
  }
}

class Merge {
 public:
  explicit Merge(const BatchFlags& flags) : flags_(flags) {
    if (flags.output != "-" && path_exists(manifest_path(flags.output))) {
      throw Error(ExitCode::kUsage, flags.output + " is the output of a run (" +
                                        manifest_path(flags.output) +
                                        " is there); name another file");
    }
    for (const std::string& path : flags.merge) sources_.push_back(open_source(path, flags));
    check_manifests(sources_, !flags.input.empty());
  }

  int run() {
    for (const Source& source : sources_) read(source);
    if (flags_.input.empty()) {
      check_count();
    } else {
      check_against_input();
    }
    write();
    const std::string count = std::to_string(places_.size()) + " records, " +
                              std::to_string(failed_) + " of them failed: " + flags_.output;
    failed_ > 0 ? print_error(count) : print_note(count);
    return static_cast<int>(failed_ > 0 ? ExitCode::kBatchFailed : ExitCode::kSuccess);
  }

 private:
  void read(const Source& source) {
    for_each_record(
        source.fd.get(), source.path,
        [&](const std::optional<RecordInfo>& info, const std::string&, const RecordPlace& place) {
          if (!info) {
            fail_check(source.path + " has a line that is not whole, at byte " +
                       std::to_string(place.offset) + "; type its command again");
          }
          const auto [known, is_new] = by_digest_.emplace(info->head.digest, places_.size());
          // Two lines with the same id have different digests, so ids are compared as well.
          const bool is_new_id = ids_.emplace(request_digest(info->head.custom_id, "")).second;
          if (!is_new || !is_new_id) {
            fail_check("there are two records of " + quoted(info->head.custom_id) +
                       ", one of them in " + source.path);
          }
          places_.push_back(place);
          if (!info->succeeded) ++failed_;
        });
  }

  static std::string quoted(const std::string& id) { return nlohmann::json(id).dump(); }

  void check_count() const {
    const auto& input = sources_.front().manifest->input;
    const int64_t expected = input ? input->requests : 0;
    if (std::ssize(places_) == expected) return;
    fail_check("the input has " + std::to_string(expected) + " requests, but there are " +
               std::to_string(places_.size()) +
               " records; name the input with -i to learn which are missing");
  }

  void check_against_input() {
    bool is_text = flags_.is_text;
    for (const Source& source : sources_) {
      if (source.manifest) is_text = is_text || source.manifest->flags.value("--text", false);
    }
    BatchInput input(flags_.input, is_text);
    BatchInput::Request request;
    std::vector<std::string> missing;
    int64_t n_missing = 0;
    size_t n_found = 0;
    while (input.next(request) == LineReader::Status::kLine) {
      throw_if_interrupted();
      const auto place = by_digest_.find(request.digest);
      if (place != by_digest_.end()) {
        places_[place->second].line = request.line;
        ++n_found;
        continue;
      }
      ++n_missing;
      if (missing.size() < kShownItems) missing.push_back(quoted(request.id));
    }
    if (n_missing > 0) {
      fail_check("no record of " + first_few(missing, n_missing) + " of " + input.name());
    }
    if (n_found < places_.size()) {
      fail_check(std::to_string(places_.size() - n_found) + " records are of no line of " +
                 input.name());
    }
  }

  void write() {
    if (flags_.output == "-") {
      emit_in_order(places_, "a part", [](std::string_view bytes) { write_stdout(bytes); });
      return;
    }
    OutputFile file(flags_.output);
    emit_in_order(places_, "a part",
                  [&](std::string_view bytes) { file.write(bytes.data(), bytes.size()); });
    file.commit();
  }

  const BatchFlags& flags_;
  std::vector<Source> sources_;
  std::vector<RecordPlace> places_;
  std::unordered_map<Digest, size_t, DigestHash> by_digest_;
  std::unordered_set<Digest, DigestHash> ids_;
  int64_t failed_ = 0;
};

}  // namespace

int merge_batches(const BatchFlags& flags) { return Merge(flags).run(); }

}  // namespace edgellm
