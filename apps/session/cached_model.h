// The cache folder: conversions of what was given to a command in place of a `.tmac2` file, and
// downloads of `pull`. Nothing in it is the only copy of anything.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "apps/session/session.h"

namespace edgellm {

// EDGELLM_CACHE, else edgellm in XDG_CACHE_HOME, else ~/.cache/edgellm. It may not exist. Throws
// Error (kUsage) where no variable names one.
std::string cache_folder();

// Its folders.
inline constexpr const char* kModels = "models";        // conversions
inline constexpr const char* kStamps = "stamps";        // which conversion is of which files
inline constexpr const char* kLocks = "locks";          // FileLock's
inline constexpr const char* kDownloads = "downloads";  // of pull, until they are converted

// Makes the folder `name` in the cache folder and returns its path.
std::string make_cache_folder(const std::string& name);

// Deletes what edgellm has put into the cache folder, and nothing else there. Returns the bytes.
uint64_t empty_cache();

struct CachedConversion {
  std::string path;
  uint64_t bytes = 0;
  std::string source;  // where it was found last; empty: no run of this build has left word
};

// The conversions in the cache folder, by path; none where no variable names a cache folder.
std::vector<CachedConversion> cached_conversions();

// What the source was called, without its ending, that a conversion in the cache folder was made
// from; empty for any other path.
std::string conversion_name(const std::string& path);

// Deletes the conversions of this source that are of no other one as well. Returns their bytes.
uint64_t forget_conversion(const std::string& source);

// What stands at the path is converted before it runs: a GGUF file, or a folder with config.json.
// Decided by the contents.
bool is_convertible(const std::string& path);

// The files that a conversion of such a source may read, by name: all parts of a split GGUF file.
std::vector<std::string> conversion_inputs(const std::string& source);

// The `.tmac2` file made from such a source, converted now or in an earlier run. A source is known
// again by its path and its files' sizes, times and inodes, else by the hashes of their contents.
std::string cached_conversion(const std::string& source, const Messages& messages);

}  // namespace edgellm
