// Files that are whole or not there.
#include "base/output_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <vector>

#include "base/files.h"
#include "tests/support/temp_dir.h"

namespace edgellm::test {
namespace {

using Temporary = OutputFile::Temporary;

std::string text_of(const std::string& path) { return read_text_file(path, 1 << 20); }

size_t files_in(const TempDir& folder) {
  size_t n = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
    n += entry.is_regular_file();
  }
  return n;
}

std::string message_of(const std::string& path) {
  try {
    OutputFile file(path);
  } catch (const Error& error) {
    CHECK(error.code() == ExitCode::kRuntime);
    return error.what();
  }
  return "";
}

TEST_CASE("a file gets its name when it is committed, and an older one stays until then") {
  const TempDir folder;
  const std::string path = folder / "out";
  write_file(path, "old");
  {
    OutputFile file(path);
    file.write("ne", 2);
    CHECK(text_of(path) == "old");
    CHECK(text_of(file.temporary_path()) == "ne");
    CHECK(files_in(folder) == 2);
  }
  CHECK(text_of(path) == "old");
  CHECK(files_in(folder) == 1);

  OutputFile file(path);
  file.write("ne", 2);
  file.write_at(4, "er", 2);
  file.write_at(2, "w", 1);
  const auto fd = file.commit();
  CHECK(text_of(path) == std::string("new\0er", 6));
  CHECK(files_in(folder) == 1);
  struct stat status = {};
  REQUIRE(fstat(fd.get(), &status) == 0);
  CHECK(status.st_size == 6);
}

TEST_CASE("two writers of one name do not meet; a fixed name replaces what was left") {
  const TempDir folder;
  const std::string path = folder / "out";
  OutputFile first(path);
  OutputFile second(path);
  CHECK(first.temporary_path() != second.temporary_path());

  write_file(path + ".tmp", "left by a killed process");
  OutputFile fixed(path, Temporary::kFixed);
  CHECK(fixed.temporary_path() == path + ".tmp");
  fixed.write("x", 1);
  fixed.commit();
  CHECK(text_of(path) == "x");
}

TEST_CASE("a device is written directly and keeps its name") {
  OutputFile null("/dev/null");
  CHECK(null.temporary_path().empty());
  null.write("x", 1);
  null.commit();
  CHECK(is_device_or_pipe("/dev/null"));

  OutputFile full("/dev/full");
  CHECK_THROWS_WITH(full.write("x", 1), "cannot write /dev/full: No space left on device");
}

TEST_CASE("places that cannot be written, in the words they were given") {
  const TempDir folder;
  CHECK(message_of(folder / "none/out") ==
        "cannot write " + (folder / "none/out") + ": there is no folder " + (folder / "none"));
  CHECK(message_of(folder.path().string()) ==
        "cannot write " + folder.path().string() + ": it is a folder; name a file in it");
  try {
    OutputFile file(folder / "none/out", Temporary::kUnique,
                    {"out: cannot be made", "out: cannot be named"});
    FAIL("nothing was thrown");
  } catch (const Error& error) {
    CHECK(error.code() == ExitCode::kRuntime);
    CHECK(std::string(error.what()) == "out: cannot be made: No such file or directory");
  }
  OutputFile file(folder / "out", Temporary::kUnique, {"cannot be made", "cannot be named"});
  std::filesystem::create_directory(folder / "out");
  CHECK_THROWS_WITH(file.commit(), "cannot be named: Is a directory");
}

}  // namespace
}  // namespace edgellm::test
