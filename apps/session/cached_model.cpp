#include "apps/session/cached_model.h"

#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <map>
#include <regex>
#include <set>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "apps/common/environment.h"
#include "apps/common/file_lock.h"
#include "apps/common/files.h"
#include "apps/common/version.h"
#include "apps/session/conversion.h"
#include "apps/session/model_folders.h"
#include "base/error.h"
#include "base/files.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/output_file.h"
#include "base/text.h"

namespace edgellm {
namespace {

namespace fs = std::filesystem;

bool is_gguf(const std::string& path) {
  std::error_code ignored;
  return fs::is_regular_file(path, ignored) && read_head(path, 4) == "GGUF";
}

// A file that a conversion may read, and what changes when its contents do.
struct SourceFile {
  std::string path;
  uint64_t bytes = 0;
  uint64_t device = 0;
  uint64_t inode = 0;
  int64_t modified_ns = 0;
  int64_t changed_ns = 0;
};

constexpr int64_t kSecondNs = 1'000'000'000;

SourceFile examine(const std::string& path) {
  struct stat status = {};
  if (stat(path.c_str(), &status) != 0) fail_file(path, "cannot be examined");
  return {.path = path,
          .bytes = static_cast<uint64_t>(status.st_size),
          .device = static_cast<uint64_t>(status.st_dev),
          .inode = static_cast<uint64_t>(status.st_ino),
          .modified_ns = status.st_mtim.tv_sec * kSecondNs + status.st_mtim.tv_nsec,
          .changed_ns = status.st_ctim.tv_sec * kSecondNs + status.st_ctim.tv_nsec};
}

// Of a Hugging Face folder: weights, JSON, templates, licences. A model card or a conversion that
// lies there as well changes nothing.
bool may_be_read(const fs::path& file) {
  const std::string name = file.filename().string();
  const std::string ending = file.extension().string();
  return ending == ".safetensors" || ending == ".json" || ending == ".jinja" ||
         ending == ".model" || name.starts_with("LICEN") || name.starts_with("COPYING");
}

// "NAME-00001-of-00003.gguf" is a part of a model.
bool is_part_of(const std::string& name, const std::string& other) {
  static const std::regex part("(.*)-[0-9]{5}(-of-[0-9]{5}\\.gguf)");
  std::smatch a;
  std::smatch b;
  return std::regex_match(name, a, part) && std::regex_match(other, b, part) && a[1] == b[1] &&
         a[2] == b[2];
}

std::vector<std::string> input_paths(const fs::path& source) {
  std::vector<std::string> paths;
  const bool is_folder = fs::is_directory(source);
  std::error_code error;
  for (fs::directory_iterator entry(is_folder ? source : source.parent_path(), error), end;
       !error && entry != end; entry.increment(error)) {
    const fs::path& path = entry->path();
    const bool counts = is_folder ? may_be_read(path)
                                  : path == source || is_part_of(source.filename().string(),
                                                                 path.filename().string());
    std::error_code ignored;
    if (counts && entry->is_regular_file(ignored)) paths.push_back(path.string());
  }
  if (error) fail_file(source.string(), "cannot be listed: " + error.message());
  std::sort(paths.begin(), paths.end());
  return paths;
}

// By name.
std::vector<SourceFile> source_files(const fs::path& source) {
  std::vector<SourceFile> files;
  for (const std::string& path : input_paths(source)) files.push_back(examine(path));
  return files;
}

// The same again only while no file has changed.
std::string stamp_of(const std::vector<SourceFile>& files, const std::string& source) {
  std::string text = source + '\n';
  for (const SourceFile& file : files) {
    text += file.path;
    for (const uint64_t value :
         {file.bytes, file.device, file.inode, static_cast<uint64_t>(file.modified_ns),
          static_cast<uint64_t>(file.changed_ns)}) {
      text += '\t' + std::to_string(value);
    }
    text += '\n';
  }
  return hex64(xxh3(text.data(), text.size()));
}

// The same for equal contents, wherever they lie; in a folder under equal names.
std::string contents_hash(const std::vector<SourceFile>& files, bool is_folder,
                          const Progress& progress) {
  uint64_t total = 0;
  for (const SourceFile& file : files) total += file.bytes;
  std::vector<char> block(size_t{1} << 20);
  std::string text;
  uint64_t done = 0;
  for (const SourceFile& source : files) {
    const InputFile file(source.path);
    const std::string name = fs::path(source.path).filename().string();
    Hasher hasher;
    for (uint64_t at = 0; at < file.size(); at += block.size()) {
      const auto bytes = static_cast<size_t>(std::min<uint64_t>(block.size(), file.size() - at));
      file.read(at, block.data(), bytes);
      hasher.update(block.data(), bytes);
      done += bytes;
      if (progress) progress("hashing " + printable(name), done, total);
    }
    text += (is_folder ? name : "") + '\t' + std::to_string(file.size()) + '\t' +
            hex64(hasher.digest()) + '\n';
  }
  return hex64(xxh3(text.data(), text.size()));
}

// Another build may convert in another way.
std::string converter_hash() {
  const BuildInfo build = build_info();
  const std::string text = build.version + ' ' + build.revision;
  return hex64(xxh3(text.data(), text.size())).substr(0, 8);
}

// A kernel stamps files with a clock that ticks each 10 ms at the slowest. A file that was written
// within a tick could change again without a change of its times.
void outwait_clock_tick(const std::vector<SourceFile>& files) {
  constexpr auto kTick = std::chrono::milliseconds(20);
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const bool is_fresh = std::any_of(files.begin(), files.end(), [&](const SourceFile& file) {
    return std::chrono::nanoseconds(file.changed_ns) + kTick > now;
  });
  if (is_fresh) std::this_thread::sleep_for(kTick);
}

// Without following a link at its end: the parts of a split GGUF file are found by its name.
fs::path full_path(const std::string& source) {
  const fs::path path = source;
  if (fs::is_directory(path)) return fs::canonical(path);
  return fs::canonical(path.has_parent_path() ? path.parent_path() : fs::path(".")) /
         path.filename();
}

// A file in kStamps: the name of a conversion in kModels, and of what it was made.
struct Stamp {
  std::string model;
  std::string source;
};

Stamp read_stamp(const std::string& path) {
  constexpr uint64_t kMaxBytes = 16384;
  const std::string text = read_text_file(path, kMaxBytes);
  const size_t end = std::min(text.find('\n'), text.size());
  return {text.substr(0, end), text.substr(std::min(end + 1, text.size()))};
}

// Calls use(path, stamp) for each stamp, the oldest first.
template <typename Use>
void for_each_stamp(const std::string& cache, const Use& use) {
  std::vector<std::pair<fs::file_time_type, std::string>> paths;
  std::error_code error;
  for (fs::directory_iterator entry(fs::path(cache) / kStamps, error), end; !error && entry != end;
       entry.increment(error)) {
    std::error_code ignored;
    paths.emplace_back(entry->last_write_time(ignored), entry->path().string());
  }
  std::sort(paths.begin(), paths.end());
  for (const auto& [time, path] : paths) use(path, read_stamp(path));
}

// A source and its conversion.
class Conversion {
 public:
  Conversion(const std::string& source, const Messages& messages)
      : source_(full_path(source)), given_(source), messages_(messages) {}

  std::string path();

 private:
  // The path of the conversion where an earlier run has left word of it, else empty.
  std::string find_stamped(const std::string& stamp) const;
  std::string find_converted(const std::string& contents) const;
  std::string convert(const std::string& contents, const std::string& stamp) const;

  fs::path source_;
  std::string given_;
  const Messages& messages_;
  std::string stamps_ = make_cache_folder(kStamps);
  std::string models_ = make_cache_folder(kModels);
};

std::string Conversion::find_stamped(const std::string& stamp) const {
  const std::string path = stamps_ + "/" + stamp;
  if (!path_exists(path)) return "";
  const std::string model = models_ + "/" + read_stamp(path).model;
  return path_exists(model) ? model : "";
}

std::string Conversion::path() {
  source_kind(given_);  // what cannot be converted is refused before it is read
  const std::vector<SourceFile> files = source_files(source_);
  const std::string stamp = stamp_of(files, source_.string() + converter_hash());
  if (std::string found = find_stamped(stamp); !found.empty()) return found;

  outwait_clock_tick(files);
  std::string contents;
  messages_.with_progress([&](const Progress& progress) {
    contents = contents_hash(files, fs::is_directory(source_), progress);
  });
  const FileLock lock(make_cache_folder(kLocks) + "/" + contents, [&] {
    messages_.note("waiting for another edgellm that converts " + printable_path(given_));
  });
  std::string path = find_converted(contents);
  if (path.empty()) path = convert(contents, stamp);
  write_file(stamps_ + "/" + stamp, fs::path(path).filename().string() + "\n" + source_.string());
  return path;
}

// Of these contents by this build, whatever the source was called then. Conversions by other builds
// are deleted.
std::string Conversion::find_converted(const std::string& contents) const {
  const std::string ending = "-" + contents + "-" + converter_hash() + ".tmac2";
  std::string found;
  for (const fs::directory_entry& entry : fs::directory_iterator(models_)) {
    const std::string name = entry.path().filename().string();
    std::error_code ignored;
    if (name.ends_with(ending)) {
      found = entry.path().string();
    } else if (name.ends_with(".tmac2") && name.find("-" + contents + "-") != std::string::npos) {
      fs::remove(entry.path(), ignored);
    }
  }
  return found;
}

std::string Conversion::convert(const std::string& contents, const std::string& stamp) const {
  constexpr size_t kMaxNameBytes = 100;
  const std::string name =
      (fs::is_directory(source_) ? source_.filename() : source_.stem()).string();
  const std::string path = models_ + "/" + name.substr(0, kMaxNameBytes) + "-" + contents + "-" +
                           converter_hash() + ".tmac2";
  std::vector<std::string> notes;
  messages_.with_progress([&](const Progress& progress) {
    ConversionRequest request;
    request.source = given_;
    notes = convert_source(request, path, progress).notes;
  });
  for (const std::string& note : notes) messages_.note(printable_path(given_) + ": " + note);
  // Else the conversion may be of other contents than its name says.
  if (stamp_of(source_files(source_), source_.string() + converter_hash()) != stamp) {
    std::error_code ignored;
    fs::remove(path, ignored);
    throw Error(ExitCode::kModelFile, printable_path(given_) +
                                          " changed while it was converted; type the command "
                                          "again when it is whole");
  }
  messages_.note("converted " + printable_path(given_) + ", once, into " + printable_path(path));
  return path;
}

// Empty where no variable names one.
std::string named_cache_folder() {
  const std::string own = environment_variable("EDGELLM_CACHE");
  if (!own.empty()) return own;
  // The XDG specification has a relative path ignored.
  const std::string cache = environment_variable("XDG_CACHE_HOME");
  if (fs::path(cache).is_absolute()) return cache + "/edgellm";
  const std::string home = environment_variable("HOME");
  return home.empty() ? "" : home + "/.cache/edgellm";
}

}  // namespace

std::string cache_folder() {
  std::string folder = named_cache_folder();
  if (!folder.empty()) return folder;
  throw Error(ExitCode::kUsage,
              "there is no cache folder, as neither EDGELLM_CACHE, XDG_CACHE_HOME nor HOME names "
              "one; set EDGELLM_CACHE to a folder that can be written");
}

std::string make_cache_folder(const std::string& name) {
  const std::string folder = cache_folder() + "/" + name;
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) {
    throw Error(ExitCode::kRuntime, "cannot make the cache folder " + printable_path(folder) +
                                        ": " + error.message() +
                                        "; set EDGELLM_CACHE to a folder that can be written");
  }
  return folder;
}

uint64_t empty_cache() {
  uint64_t bytes = 0;
  for (const char* name : {kModels, kStamps, kLocks, kDownloads}) {
    const fs::path folder = fs::path(cache_folder()) / name;
    std::error_code error;
    for (fs::recursive_directory_iterator entry(folder, error), end; !error && entry != end;
         entry.increment(error)) {
      std::error_code ignored;
      if (entry->is_regular_file(ignored)) bytes += entry->file_size(ignored);
    }
    fs::remove_all(folder, error);
    if (error) {
      throw Error(ExitCode::kRuntime,
                  "cannot delete " + printable_path(folder.string()) + ": " + error.message());
    }
  }
  return bytes;
}

std::vector<CachedConversion> cached_conversions() {
  const std::string cache = named_cache_folder();
  std::vector<CachedConversion> conversions;
  if (cache.empty()) return conversions;
  std::map<std::string, std::string> sources;
  for_each_stamp(
      cache, [&](const std::string&, const Stamp& stamp) { sources[stamp.model] = stamp.source; });
  std::error_code error;
  for (fs::directory_iterator entry(fs::path(cache) / kModels, error), end; !error && entry != end;
       entry.increment(error)) {
    std::error_code unreadable;
    if (entry->path().extension() != ".tmac2" || !entry->is_regular_file(unreadable)) continue;
    const uint64_t bytes = entry->file_size(unreadable);
    conversions.push_back({entry->path().string(), unreadable ? 0 : bytes,
                           sources[entry->path().filename().string()]});
  }
  std::sort(conversions.begin(), conversions.end(),
            [](const auto& a, const auto& b) { return a.path < b.path; });
  return conversions;
}

std::string conversion_name(const std::string& path) {
  const std::string cache = named_cache_folder();
  const fs::path file = path;
  if (cache.empty() || file.parent_path() != fs::path(cache) / kModels) return "";
  // NAME-CONTENTS-CONVERTER.tmac2
  const std::string stem = file.stem().string();
  const size_t converter = stem.rfind('-');
  if (converter == std::string::npos || converter == 0) return "";
  const size_t contents = stem.rfind('-', converter - 1);
  return contents == std::string::npos ? "" : stem.substr(0, contents);
}

uint64_t forget_conversion(const std::string& source) {
  const std::string cache = named_cache_folder();
  if (cache.empty()) return 0;
  const std::string full = full_path(source).string();
  std::set<std::string> forgotten;
  std::set<std::string> of_others;  // the same contents elsewhere
  for_each_stamp(cache, [&](const std::string& path, const Stamp& stamp) {
    (stamp.source == full ? forgotten : of_others).insert(stamp.model);
    std::error_code ignored;
    if (stamp.source == full) fs::remove(path, ignored);
  });
  uint64_t bytes = 0;
  for (const CachedConversion& conversion : cached_conversions()) {
    const std::string name = fs::path(conversion.path).filename().string();
    if (!forgotten.contains(name) || of_others.contains(name)) continue;
    std::error_code error;
    if (fs::remove(conversion.path, error)) bytes += conversion.bytes;
  }
  return bytes;
}

std::vector<std::string> conversion_inputs(const std::string& source) {
  return input_paths(full_path(source));
}

bool is_convertible(const std::string& path) {
  return is_gguf(path) || is_hugging_face_folder(path);
}

std::string cached_conversion(const std::string& source, const Messages& messages) {
  std::string path = Conversion(source, messages).path();
  log(LogLevel::kDebug, source + " was converted into " + path);
  return path;
}

}  // namespace edgellm
