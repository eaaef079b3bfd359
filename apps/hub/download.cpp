#include "apps/hub/download.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <exception>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "apps/common/signals.h"
#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "base/number_format.h"
#include "base/output_file.h"
#include "base/text.h"

namespace edgellm::hub {
namespace {

// More connections than that hardly make a download faster, and servers count them.
constexpr size_t kParallelFiles = 4;
constexpr std::chrono::milliseconds kWatchInterval{50};
constexpr size_t kPieceBytes = size_t{1} << 20;

// The first byte of "bytes 100-199/200"; -1 where it is none, or of a file of another size.
int64_t first_byte(const std::string& content_range, uint64_t bytes) {
  unsigned long long first = 0;
  unsigned long long last = 0;
  unsigned long long total = 0;
  const int n = std::sscanf(content_range.c_str(), "bytes %llu-%llu/%llu", &first, &last, &total);
  return n == 3 && total == bytes && first <= last && last < total ? static_cast<int64_t>(first)
                                                                   : -1;
}

class FileDownload {
 public:
  FileDownload(Hub& hub, const HubModel& model, const HubFile& file, const std::string& folder)
      : hub_(hub),
        model_(model),
        file_(file),
        bytes_(*file.bytes),
        path_(folder + "/" + local_name(hub, file)),
        part_path_(path_ + "." + (file.hash.hex.empty() ? "unnamed" : file.hash.hex.substr(0, 16)) +
                   ".part") {}

  void run();

  const HubFile& file() const { return file_; }
  uint64_t done() const { return done_; }
  uint64_t fetched() const { return fetched_; }
  // What an earlier download has left of it on the disk.
  uint64_t bytes_on_disk() const;

 private:
  void open_part();
  void restart();
  void fetch();
  Hub::Answer attempt();
  bool accept_head(int status, const std::map<std::string, std::string>& headers);
  void take(std::string_view data);
  void finish(const std::string& hash);

  Hub& hub_;
  const HubModel& model_;
  const HubFile& file_;
  uint64_t bytes_;
  std::string path_;
  std::string part_path_;
  FileDescriptor part_;
  Digest digest_{ContentHash::Kind::kNone, 0};
  std::string etag_;            // of the answers so far, where it names the contents
  std::exception_ptr problem_;  // of a callback
  std::atomic<uint64_t> done_ = 0;
  std::atomic<uint64_t> fetched_ = 0;
};

uint64_t FileDownload::bytes_on_disk() const {
  for (const std::string& path : {path_, part_path_}) {
    struct stat status = {};
    if (stat(path.c_str(), &status) == 0) return static_cast<uint64_t>(status.st_size);
  }
  return 0;
}

void FileDownload::run() {
  if (path_exists(path_) && InputFile(path_).size() == bytes_) {
    done_ = bytes_;  // it got its name because its hash was right
    return;
  }
  open_part();
  const bool has_older_bytes = done_ > 0;
  fetch();
  std::string hash = digest_.hex();
  if (hash != file_.hash.hex && has_older_bytes) {
    log(LogLevel::kInfo, "what an earlier download left of " + printable(file_.path) +
                             " is not right; it is downloaded anew");
    restart();
    fetch();
    hash = digest_.hex();
  }
  finish(hash);
}

// The bytes that are there are hashed: only then can the rest be added.
void FileDownload::open_part() {
  part_ = FileDescriptor(open(part_path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
  if (part_.get() < 0) fail_to_write(part_path_, errno);
  digest_ = Digest(file_.hash.kind, bytes_);
  struct stat status = {};
  if (fstat(part_.get(), &status) != 0) fail_to_write(part_path_, errno);
  const auto there = static_cast<uint64_t>(status.st_size);
  if (there > bytes_ || file_.hash.kind == ContentHash::Kind::kNone) {
    restart();
    return;
  }
  const InputFile file(part_path_);
  std::string piece(kPieceBytes, '\0');
  for (uint64_t at = 0; at < there; at += piece.size()) {
    const auto n = static_cast<size_t>(std::min<uint64_t>(piece.size(), there - at));
    file.read(at, piece.data(), n);
    digest_.update(piece.data(), n);
    done_ += n;
  }
}

void FileDownload::restart() {
  if (ftruncate(part_.get(), 0) != 0) fail_to_write(part_path_, errno);
  digest_ = Digest(file_.hash.kind, bytes_);
  etag_.clear();
  done_ = 0;
}

void FileDownload::fetch() {
  int failures = 0;
  while (done_ < bytes_) {
    const uint64_t before = done_;
    const Hub::Answer answer = attempt();
    if (problem_) std::rethrow_exception(problem_);
    if (done_ == bytes_) return;
    failures = done_ > before ? 1 : failures + 1;
    if (answer.http.status == 416) restart();
    hub_.wait_to_retry(answer, failures, file_.path);
  }
}

Hub::Answer FileDownload::attempt() {
  std::vector<std::pair<std::string, std::string>> headers;
  if (done_ > 0) {
    headers.emplace_back("Range", "bytes=" + std::to_string(done_) + "-");
    if (!etag_.empty()) headers.emplace_back("If-Range", etag_);
  }
  // An exception must not fly through the library's frames.
  const auto guarded = [this](const auto& work) {
    try {
      return work();
    } catch (...) {
      problem_ = std::current_exception();
      return false;
    }
  };
  return hub_.get(
      model_, file_, headers,
      [&](int status, const std::map<std::string, std::string>& head) {
        return guarded([&] { return accept_head(status, head); });
      },
      [&](std::string_view data) {
        return guarded([&] {
          take(data);
          return true;
        });
      });
}

bool FileDownload::accept_head(int status, const std::map<std::string, std::string>& headers) {
  const auto header = [&](const char* name) {
    const auto found = headers.find(name);
    return found != headers.end() ? found->second : "";
  };
  if (status == 206) {
    if (first_byte(header("content-range"), bytes_) != static_cast<int64_t>(done_)) {
      hub_.fail("a server answers with '" + printable(header("content-range"), 60) + "' of " +
                printable(file_.path) + ", expected the bytes from " + std::to_string(done_) +
                " on of " + std::to_string(bytes_) + "; type the command again");
    }
  } else if (done_ > 0) {
    restart();  // the server knows no ranges, or the file is another now
  }
  const std::string etag = header("etag");
  if (etag.starts_with('"')) etag_ = etag;
  return true;
}

void FileDownload::take(std::string_view data) {
  if (data.size() > bytes_ - done_) {
    hub_.fail(printable(file_.path) + " is longer than the " + std::to_string(bytes_) +
              " bytes that the Hub's list says; type the command again");
  }
  digest_.update(data.data(), data.size());
  auto at = static_cast<off_t>(done_.load());
  fetched_ += data.size();
  done_ += data.size();
  while (!data.empty()) {
    const ssize_t n = pwrite(part_.get(), data.data(), data.size(), at);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail_to_write(part_path_, errno);
    data.remove_prefix(static_cast<size_t>(n));
    at += n;
  }
}

void FileDownload::finish(const std::string& hash) {
  if (hash != file_.hash.hex) {
    unlink(part_path_.c_str());
    hub_.fail(printable(file_.path) + " arrived with the " +
              (file_.hash.kind == ContentHash::Kind::kSha256 ? "sha256 " : "git hash ") + hash +
              ", expected " + file_.hash.hex +
              "; it was deleted: type the command again, and if that repeats, look at what stands "
              "between this machine and the Hub");
  }
  if (file_.hash.kind == ContentHash::Kind::kNone) {
    log(LogLevel::kWarn,
        "the server gives no hash of " + printable(file_.path) + "; only its size was checked");
  }
  if (fsync(part_.get()) != 0) fail_to_write(part_path_, errno);
  if (rename(part_path_.c_str(), path_.c_str()) != 0) fail_to_write(path_, errno);
  sync_folder(folder_of(path_));
}

void check_free_space(const std::vector<std::unique_ptr<FileDownload>>& downloads,
                      const std::string& folder) {
  uint64_t needed = 0;
  for (const auto& download : downloads) {
    needed +=
        *download->file().bytes - std::min(*download->file().bytes, download->bytes_on_disk());
  }
  struct statvfs status = {};
  if (statvfs(folder.c_str(), &status) != 0) fail_to_write(folder, errno);
  const uint64_t free = static_cast<uint64_t>(status.f_bavail) * status.f_frsize;
  if (needed > free) {
    throw Error(ExitCode::kRuntime, "the download takes " + human_bytes(needed) + ", and " +
                                        printable_path(folder) + " has " + human_bytes(free) +
                                        " free; make room, or set EDGELLM_CACHE to a folder on "
                                        "another disk");
  }
}

// Threads that take one download after the other.
class Workers {
 public:
  Workers(Hub& hub, std::vector<std::unique_ptr<FileDownload>>& downloads)
      : hub_(hub), downloads_(downloads) {
    try {
      for (size_t i = 0; i < std::min(kParallelFiles, downloads.size()); ++i) {
        threads_.emplace_back([this] { work(); });
      }
    } catch (const std::system_error&) {
      // The system gives no more threads (ulimit -u): those that are there do all of it.
      if (threads_.empty()) throw;
    }
  }
  // Cancels what is not done.
  ~Workers() {
    if (!are_done()) hub_.cancel();
  }

  bool are_done() const { return n_done_ == downloads_.size(); }
  void throw_if_failed() {
    const std::lock_guard guard(mutex_);
    if (failure_) std::rethrow_exception(failure_);
  }
  DownloadState state() const;

 private:
  void work() {
    try {
      for (size_t i = next_++; i < downloads_.size(); i = next_++) {
        downloads_[i]->run();
        ++n_done_;
      }
    } catch (const Interrupted&) {
      // Whoever watches the download asks for signals and ends it.
    } catch (...) {
      const std::lock_guard guard(mutex_);
      if (!failure_) failure_ = std::current_exception();
    }
  }

  Hub& hub_;
  std::vector<std::unique_ptr<FileDownload>>& downloads_;
  std::atomic<size_t> next_ = 0;
  std::atomic<size_t> n_done_ = 0;
  std::mutex mutex_;
  std::exception_ptr failure_;         // the first
  std::vector<std::jthread> threads_;  // the last: they end before what they use
};

DownloadState Workers::state() const {
  DownloadState state;
  for (const auto& download : downloads_) {
    const uint64_t bytes = *download->file().bytes;
    const uint64_t done = download->done();
    state.done += done;
    state.total += bytes;
    state.fetched += download->fetched();
    if (done == bytes) continue;
    ++state.files_left;
    if (state.file.empty()) state.file = printable(download->file().path);
  }
  return state;
}

}  // namespace

std::string local_name(const Hub& hub, const HubFile& file) {
  std::string name = file.path.substr(file.path.rfind('/') + 1);
  if (!is_plain_file_name(name)) {
    hub.fail("its file '" + printable(file.path) +
             "' has a name that edgellm does not write to a disk; download the model by other "
             "means, then type: edgellm convert FOLDER -o NAME.tmac2");
  }
  return name;
}

void download(Hub& hub, const HubModel& model, const std::vector<HubFile>& files,
              const std::string& folder, const std::function<void(const DownloadState&)>& watch) {
  std::vector<std::unique_ptr<FileDownload>> downloads;
  for (const HubFile& file : files) {
    downloads.push_back(std::make_unique<FileDownload>(hub, model, file, folder));
  }
  check_free_space(downloads, folder);
  Workers workers(hub, downloads);
  while (!workers.are_done()) {
    workers.throw_if_failed();
    watch(workers.state());
    std::this_thread::sleep_for(kWatchInterval);
  }
}

}  // namespace edgellm::hub
