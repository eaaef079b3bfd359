// Lines from a descriptor, however it delivers them. What LineSplitter does with pieces is in
// tests/compare/line_reader_test.cpp.
#include "base/lines.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <catch2/catch.hpp>
#include <thread>
#include <vector>

#include "base/files.h"
#include "base/output_file.h"
#include "tests/support/temp_dir.h"

namespace edgellm::test {
namespace {

using Status = LineReader::Status;

std::string file_of(const TempDir& folder, const std::string& text) {
  write_file(folder / "lines", text);
  return folder / "lines";
}

FileDescriptor opened(const std::string& path) {
  return FileDescriptor(open(path.c_str(), O_RDONLY | O_CLOEXEC));
}

std::vector<Line> all_lines(LineReader& reader) {
  std::vector<Line> lines;
  Line line;
  while (reader.next(line) == Status::kLine) lines.push_back(line);
  return lines;
}

TEST_CASE("lines know their place and their bytes") {
  const TempDir folder;
  const std::string text = "one\r\n\n  \ntwo";
  const auto fd = opened(file_of(folder, text));
  LineReader reader(fd.get(), "lines", {});
  const std::vector<Line> lines = all_lines(reader);
  REQUIRE(lines.size() == 4);
  CHECK(lines[0].text == "one");
  CHECK(lines[1].text.empty());
  CHECK(lines[3].text == "two");
  uint64_t offset = 0;
  for (const Line& line : lines) {
    CHECK(line.offset == offset);
    offset += line.bytes;
    CHECK_FALSE(line.is_cut);
  }
  CHECK(offset == text.size());
  CHECK(lines[2].has_newline);
  CHECK_FALSE(lines[3].has_newline);
  CHECK(is_blank_line(lines[2].text));
  CHECK_FALSE(is_blank_line(lines[3].text));
  CHECK(reader.bytes_read() == text.size());
  CHECK(reader.xxh3() == xxh3(text.data(), text.size()));
}

TEST_CASE("a line beyond the limit is cut, and the next one is whole") {
  const TempDir folder;
  // Longer than one read of the reader, so that bytes are dropped on the way.
  for (const size_t length : {size_t{9}, size_t{1'000'000}}) {
    const auto fd = opened(file_of(folder, std::string(length, 'x') + "\nnext\n"));
    LineReader reader(fd.get(), "lines", {.max_line_bytes = 8});
    const std::vector<Line> lines = all_lines(reader);
    REQUIRE(lines.size() == 2);
    CHECK(lines[0].is_cut);
    CHECK(lines[0].text == std::string(8, 'x'));
    CHECK(lines[0].bytes == length + 1);
    CHECK_FALSE(lines[1].is_cut);
    CHECK(lines[1].text == "next");
    CHECK(lines[1].offset == length + 1);
  }
}

TEST_CASE("a file is read from its start or from where its descriptor stands") {
  const TempDir folder;
  const auto fd = opened(file_of(folder, "one\ntwo\nthree\n"));
  REQUIRE(lseek(fd.get(), 4, SEEK_SET) == 4);
  LineReader from_start(fd.get(), "lines", {.max_bytes = 8});
  CHECK(all_lines(from_start).size() == 2);
  LineReader from_here(fd.get(), "lines", {.from_here = true});
  const std::vector<Line> lines = all_lines(from_here);
  REQUIRE(lines.size() == 2);
  CHECK(lines[0].text == "two");
}

TEST_CASE("a pipe is waited for only where the caller wants it") {
  std::array<int, 2> ends = {};
  REQUIRE(pipe(ends.data()) == 0);
  const FileDescriptor in(ends[0]);
  FileDescriptor out(ends[1]);
  int waits = 0;
  LineReader reader(ends[0], "pipe", {.wait = [&](int, bool may_wait) { waits += may_wait; }});
  Line line;
  CHECK(reader.next(line, /*may_wait=*/false) == Status::kNotYet);
  REQUIRE(write(ends[1], "half", 4) == 4);
  CHECK(reader.next(line, /*may_wait=*/false) == Status::kNotYet);
  CHECK(waits == 0);
  REQUIRE(write(ends[1], " line\nmore", 10) == 10);
  CHECK(reader.next(line, /*may_wait=*/false) == Status::kLine);
  CHECK(line.text == "half line");
  out = FileDescriptor();
  CHECK(reader.next(line) == Status::kLine);
  CHECK(line.text == "more");
  CHECK(reader.next(line) == Status::kEnd);
  CHECK(waits > 0);
}

TEST_CASE("what ends the wait ends the reading, and a failure has the blame it was given") {
  std::array<int, 2> ends = {};
  REQUIRE(pipe(ends.data()) == 0);
  const FileDescriptor in(ends[0]);
  const FileDescriptor out(ends[1]);
  struct Ended {};
  LineReader reader(ends[0], "pipe", {.wait = [](int, bool) { throw Ended(); }});
  Line line;
  CHECK_THROWS_AS(reader.next(line), Ended);

  const TempDir folder;
  const FileDescriptor unreadable(
      open((folder / "x").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666));
  LineReader failing(unreadable.get(), "the file", {.blame = ExitCode::kRuntime});
  try {
    failing.next(line);
    FAIL("nothing was thrown");
  } catch (const Error& error) {
    CHECK(error.code() == ExitCode::kRuntime);
    CHECK(std::string(error.what()) == "cannot read the file: Bad file descriptor");
  }
}

}  // namespace
}  // namespace edgellm::test
