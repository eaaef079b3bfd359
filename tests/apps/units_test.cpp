// The small parts of the program that can be looked at without running it.
#include <catch2/catch.hpp>

#include "apps/common/files.h"
#include "apps/common/text_format.h"
#include "apps/common/timings.h"
#include "apps/inspect/npy.h"
#include "base/error.h"
#include "tests/apps/program.h"
#include "tests/support/npy.h"

namespace edgellm::test {
namespace {

// Values of Go's own time.Duration.String().
TEST_CASE("durations are printed as Go prints them") {
  CHECK(go_duration(0) == "0s");
  CHECK(go_duration(1) == "1ns");
  CHECK(go_duration(1100) == "1.1\u00b5s");
  CHECK(go_duration(2'200'000) == "2.2ms");
  CHECK(go_duration(12'345'678) == "12.345678ms");
  CHECK(go_duration(1'000'000'000) == "1s");
  CHECK(go_duration(3'300'000'000) == "3.3s");
  CHECK(go_duration(1'234'567'891) == "1.234567891s");
  CHECK(go_duration(245'000'000'000) == "4m5s");
  CHECK(go_duration(245'001'000'000) == "4m5.001s");
  CHECK(go_duration(18'367'001'000'000) == "5h6m7.001s");
  CHECK(go_duration(480'000'000'001) == "8m0.000000001s");
  CHECK(go_duration(3'600'000'000'000) == "1h0m0s");
}

TEST_CASE("percentiles are nearest-rank") {
  std::vector<int64_t> values;
  for (int64_t i = 100; i >= 1; --i) values.push_back(i);
  const Percentiles of_hundred = percentiles(values);
  CHECK(of_hundred.p50 == 50);
  CHECK(of_hundred.p90 == 90);
  CHECK(of_hundred.p99 == 99);
  CHECK(of_hundred.max == 100);
  const std::vector<int64_t> one = {7};
  CHECK(percentiles(one).p50 == 7);
  CHECK(percentiles(one).p99 == 7);
  CHECK(percentiles({}).max == 0);
}

TEST_CASE("sizes and counts are short") {
  CHECK(human_bytes(0) == "0 bytes");
  CHECK(human_bytes(999) == "999 bytes");
  CHECK(human_bytes(1000) == "1.0 kB");
  CHECK(human_bytes(7'477'760) == "7.5 MB");
  CHECK(human_bytes(999'960) == "1.0 MB");
  CHECK(human_count(2'412'820'480) == "2.4 B");
}

TEST_CASE("an .npy file holds its shape and values") {
  const TempDir folder;
  const std::vector<float> values = {1.5f, -2.0f, 0.0f, 1e-40f, 3e38f, 7.0f};
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{6}, {2, 3}, {1, 3, 2}}) {
    NpyFile file((folder / "x.npy"));
    file.write_header(shape);
    file.write(std::span(values).first(2));
    file.write(std::span(values).subspan(2));
    file.commit();
    const Npy read = read_npy((folder / "x.npy"));
    CHECK(std::vector<int64_t>(read.shape.begin(), read.shape.end()) == shape);
    CHECK(read.values == values);
    // NumPy aligns the data to 64 bytes.
    CHECK((read_file((folder / "x.npy")).size() - 4 * values.size()) % 64 == 0);
  }
}

TEST_CASE("a file that is not committed leaves the old one") {
  const TempDir folder;
  const std::string path = write_file(folder, "out", "old");
  {
    OutputFile file(path);
    file.write("new", 3);
  }
  CHECK(read_file(path) == "old");
  CHECK(names_in(folder) == std::vector<std::string>{"out"});
  {
    OutputFile file(path);
    file.write("new", 3);
    file.commit();
  }
  CHECK(read_file(path) == "new");
  CHECK(names_in(folder) == std::vector<std::string>{"out"});
}

}  // namespace
}  // namespace edgellm::test
