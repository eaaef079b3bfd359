#include "model/ternary.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <random>

#include "tests/model/test_model.h"
#include "tests/support/fixtures.h"
#include "tests/support/safetensors_file.h"
#include "tests/support/skip.h"

using namespace edgellm;
using namespace edgellm::model_io;
using namespace edgellm::test;

namespace {

int code_at(const std::vector<uint8_t>& codes, int64_t cols, int64_t row, int64_t col) {
  const int64_t row_bytes = (cols + 3) / 4;
  const int code = (codes[static_cast<size_t>(row * row_bytes + col / 4)] >> (2 * (col % 4))) & 3;
  return code == 3 ? -1 : code;
}

TernaryTensor view(const std::vector<uint8_t>& codes, int rows, int cols) {
  TernaryTensor tensor;
  tensor.codes = codes.data();
  tensor.rows = rows;
  tensor.cols = cols;
  return tensor;
}

}  // namespace

TEST_CASE("repack turns four rows of a packed byte into canonical rows") {
  const uint32_t seed = 7;
  INFO("seed " << seed);
  std::mt19937 generator(seed);
  for (const int64_t cols : {1, 2, 3, 4, 5, 31, 32, 33, 67, 128}) {
    for (const int64_t rows : {4, 8, 12}) {
      const int64_t quarter = rows / 4;
      std::vector<int> values(static_cast<size_t>(rows * cols));
      for (int& value : values) value = static_cast<int>(generator() % 3) - 1;
      std::vector<uint8_t> packed(static_cast<size_t>(quarter * cols), 0);
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t c = 0; c < cols; ++c) {
          const int value = values[static_cast<size_t>(r * cols + c)];
          packed[static_cast<size_t>((r % quarter) * cols + c)] |=
              static_cast<uint8_t>((value + 1) << (2 * (r / quarter)));
        }
      }
      const auto bytes = static_cast<size_t>(rows * ((cols + 3) / 4));
      std::vector<uint8_t> codes(bytes + 1, 0xEE);  // one more, which must stay as it is
      for (int64_t r = 0; r < quarter; ++r) {
        REQUIRE(repack_row(packed.data() + r * cols, r, rows, cols, codes.data()));
      }
      INFO("rows " << rows << " cols " << cols);
      CHECK(codes_of(view(codes, static_cast<int>(rows), static_cast<int>(cols))) == values);
      CHECK(codes.back() == 0xEE);
      for (int64_t r = 0; cols % 4 != 0 && r < rows; ++r) {
        const uint8_t last = codes[static_cast<size_t>((r + 1) * ((cols + 3) / 4) - 1)];
        CHECK(last >> (2 * (cols % 4)) == 0);
      }
    }
  }
}

TEST_CASE("repack finds a code 3 wherever it stands") {
  for (const int64_t cols : {5, 16}) {
    for (int64_t c = 0; c < cols; ++c) {
      for (int k = 0; k < 4; ++k) {
        std::vector<uint8_t> packed(static_cast<size_t>(cols), 0x55);
        packed[static_cast<size_t>(c)] |= static_cast<uint8_t>(3 << (2 * k));
        std::vector<uint8_t> codes(static_cast<size_t>(4 * ((cols + 3) / 4)));
        CHECK_FALSE(repack_row(packed.data(), 0, 4, cols, codes.data()));
        const auto invalid = find_invalid_code(packed.data(), cols);
        REQUIRE(invalid);
        CHECK(invalid->column == c);
        CHECK(invalid->quarter == k);
      }
    }
  }
}

TEST_CASE("quantise rounds half to even and clamps") {
  const std::vector<float> values = {
      0.5f,  -0.5f, std::nextafter(0.5f, 1.0f), std::nextafter(-0.5f, -1.0f), 1.5f, -2.5f, 0.0f,
      -0.0f, 1e9f};
  const std::vector<int> expected = {0, 0, 1, -1, 1, -1, 0, 0, 1};
  std::vector<uint8_t> codes(3, 0xFF);
  quantise_row(values.data(), 9, 1.0f, codes.data());
  for (int64_t c = 0; c < 9; ++c)
    CHECK(code_at(codes, 9, 0, c) == expected[static_cast<size_t>(c)]);
  CHECK(codes[2] >> 2 == 0);  // padding
}

TEST_CASE("the scale of masters is the mean magnitude as numerics.md defines it") {
  const std::vector<float> values = random_floats(1001, 3);
  double sum = 0;
  for (const float value : values) sum += std::fabs(static_cast<double>(value));
  const float s = 1.0f / static_cast<float>(sum / 1001);
  MasterStatistics whole;
  whole.add(values.data(), values.size());
  MasterStatistics pieces;  // the order of additions does not depend on the pieces
  pieces.add(values.data(), 400);
  pieces.add(values.data() + 400, 601);
  for (const MasterStatistics* statistics : {&whole, &pieces}) {
    CHECK(statistics->inverse_scale() == s);
    CHECK(statistics->multiplier() == 1.0f / s);
    CHECK_FALSE(statistics->single_magnitude());
    CHECK(statistics->all_finite());
  }
}

TEST_CASE("masters with one magnitude are ternary times a constant") {
  for (const float magnitude : {0.75f, 1e-7f, 1e-40f, 1e38f}) {
    const std::vector<float> values = {magnitude, 0, -magnitude, -0.0f, 0, 0, 0, magnitude};
    MasterStatistics statistics;
    statistics.add(values.data(), values.size());
    REQUIRE(statistics.single_magnitude());
    CHECK(statistics.multiplier() == magnitude);
    std::vector<uint8_t> codes(2);
    quantise_row(values.data(), 8, statistics.inverse_scale(), codes.data());
    CHECK(codes_of(view(codes, 1, 8)) == std::vector<int>{1, 0, -1, 0, 0, 0, 0, 1});
  }
  MasterStatistics zeros;
  const std::vector<float> none(8, 0.0f);
  zeros.add(none.data(), none.size());
  CHECK_FALSE(zeros.single_magnitude());
  CHECK(zeros.multiplier() == 1.0f / (1.0f / 1e-5f));
}

TEST_CASE("values that are not finite are seen") {
  for (const float bad :
       {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
        std::numeric_limits<float>::quiet_NaN()}) {
    std::vector<float> values = random_floats(33, 5);
    values[31] = bad;
    MasterStatistics statistics;
    statistics.add(values.data(), values.size());
    CHECK_FALSE(statistics.all_finite());
  }
}

TEST_CASE("recorded masters give transformers' codes") {
  const std::string suffix = ".weight_master_bf16";
  int n_found = 0;
  for (const auto& path : fixtures_where(is_recorded_operations)) {
    const auto tensors = read_safetensors(path);
    for (const auto& [name, master] : tensors) {
      if (!name.ends_with(suffix)) continue;
      ++n_found;
      INFO(path.string() << ": " << name);
      const std::string op = name.substr(0, name.size() - suffix.size());
      const std::vector<int8_t> expected = tensors.at(op + ".expected_ternary").as<int8_t>();
      const std::vector<float> values = master.floats();
      MasterStatistics statistics;
      statistics.add(values.data(), values.size());
      const int rows = master.dim(0);
      const int cols = master.dim(1);
      const auto row_bytes = static_cast<size_t>((cols + 3) / 4);
      std::vector<uint8_t> codes(static_cast<size_t>(rows) * row_bytes);
      for (int r = 0; r < rows; ++r) {
        quantise_row(values.data() + static_cast<size_t>(r) * static_cast<size_t>(cols), cols,
                     statistics.inverse_scale(), codes.data() + static_cast<size_t>(r) * row_bytes);
      }
      CHECK(codes_of(view(codes, rows, cols)) ==
            std::vector<int>(expected.begin(), expected.end()));
    }
  }
  if (n_found == 0) skip("no recorded masters below " + fixtures().string());
}
