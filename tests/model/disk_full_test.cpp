// A disk that fills up while a file is written: a file system in memory, of its own and small,
// which something else fills once the writer has found room enough and begun.
#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <string>
#include <vector>

#include "tests/model/test_model.h"
#include "tests/support/skip.h"

using namespace edgellm;
using namespace edgellm::test;

namespace {

constexpr int kPassed = 0;
constexpr int kFailed = 1;
constexpr int kNotPermitted = 77;

// Mounts `size_bytes` of memory over the folder, for this process only.
bool mount_small_disk(const std::string& folder, size_t size_bytes) {
  if (unshare(CLONE_NEWNS) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return false;
  if (mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) return false;
  const std::string options = "size=" + std::to_string(size_bytes);
  return mount("tmpfs", folder.c_str(), "tmpfs", 0, options.c_str()) == 0;
}

void fill_up(const std::string& path) {
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
  const std::vector<char> page(4096, 'x');
  while (write(fd, page.data(), page.size()) > 0) {
  }
  close(fd);
}

// What the child process finds; Catch2 lives in the parent only.
int convert_onto_a_disk_that_fills_up(const std::string& source, const std::string& folder) {
  if (!mount_small_disk(folder, 256 << 10)) return kNotPermitted;
  bool is_full = false;
  ConvertOptions options;
  options.progress = [&](std::string_view, uint64_t, uint64_t) {
    // Not before the writer has begun: it looks first whether there is room.
    if (is_full || std::filesystem::is_empty(folder)) return;
    fill_up(folder + "/filler");
    is_full = true;
  };
  try {
    convert_hf(source, folder + "/out.tmac2", options);
  } catch (const Error& error) {
    const std::string message = error.what();
    std::fprintf(stderr, "%s\n", message.c_str());
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      names.push_back(entry.path().filename().string());
    }
    return error.code() == ExitCode::kRuntime &&
                   message.find("No space left on device") != std::string::npos &&
                   names == std::vector<std::string>{"filler"}
               ? kPassed
               : kFailed;
  }
  std::fprintf(stderr, "the disk did not fill up\n");
  return kFailed;
}

}  // namespace

TEST_CASE("convert: a disk that fills up is an error and leaves nothing behind") {
  const TempDir temp;
  tiny_bitnet().write(temp.path() / "hf");
  std::filesystem::create_directory(temp / "disk");
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) _exit(convert_onto_a_disk_that_fills_up(temp / "hf", temp / "disk"));
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  REQUIRE(WIFEXITED(status));
  if (WEXITSTATUS(status) == kNotPermitted) {
    skip("this user may mount no file system");
    return;
  }
  CHECK(WEXITSTATUS(status) == kPassed);
}
