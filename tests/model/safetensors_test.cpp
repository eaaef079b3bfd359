#include "model/import/safetensors.h"

#include <catch2/catch.hpp>
#include <cstring>

#include "tests/model/test_model.h"

using namespace edgellm;
using namespace edgellm::model_io;
using namespace edgellm::test;

namespace {

std::string with_header(const std::string& header, const std::string& data) {
  const uint64_t length = header.size();
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &length, 8);
  return bytes + header + data;
}

void expect_bad(const std::string& bytes, const std::string& text,
                ExitCode code = ExitCode::kModelFile) {
  const TempDir temp;
  write_file(temp / "model.safetensors", bytes);
  expect_error(code, {text, "model.safetensors"}, [&] { Checkpoint{temp.path().string()}; });
}

std::string entry(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return R"({"a":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets +
         "}}";
}

}  // namespace

TEST_CASE("safetensors: names, shapes and bytes arrive as written") {
  const TempDir temp;
  write_file(temp / "model.safetensors",
             safetensors_bytes(
                 {{"a", f32_tensor({2, 3}, {1, 2, 3, 4, 5, 6})}, {"b", bf16_tensor({1}, {0.5f})}}));
  const Checkpoint checkpoint(temp.path().string());
  REQUIRE(checkpoint.tensors().size() == 2);
  const CheckpointTensor* a = checkpoint.find("a");
  REQUIRE(a != nullptr);
  CHECK(a->dtype == "F32");
  CHECK(a->shape == std::vector<int64_t>{2, 3});
  float value = 0;
  checkpoint.read(*a, 16, &value, 4);
  CHECK(value == 5);
  CHECK(checkpoint.find("c") == nullptr);
}

TEST_CASE("safetensors: a hostile header is refused") {
  const std::string good = with_header(entry("F32", "[2]", "[0,8]"), std::string(8, 'x'));
  const TempDir temp;
  write_file(temp / "model.safetensors", good);
  CHECK(Checkpoint(temp.path().string()).tensors().size() == 1);

  expect_bad("", "at least 8 bytes");
  expect_bad("1234567", "at least 8 bytes");
  expect_bad(std::string(8, '\xFF') + "{}", "header claims");
  expect_bad(std::string("\xE8\x03\0\0\0\0\0\0", 8) + "{}", "header claims 1000");
  expect_bad(with_header("not json", ""), "not valid JSON");
  expect_bad(with_header("[1]", ""), "not a JSON object");
  expect_bad(with_header("{\"a\xFF\": 1}", ""), "not valid JSON");
  expect_bad(with_header(std::string(100000, '['), ""), "nested deeper");
  expect_bad(with_header("{\"a\":" + std::string(100000, '['), ""), "nested deeper");
  expect_bad(with_header(R"({"a":1})", ""), "not an object");
  expect_bad(with_header(R"({"a":{"dtype":"F32","shape":[2]}})", "12345678"), "data_offsets");
  expect_bad(with_header(entry("F31", "[2]", "[0,8]"), "12345678"), "'F31'",
             ExitCode::kUnsupported);
  expect_bad(with_header(entry("F32", "[3]", "[0,8]"), "12345678"), "not the size");
  expect_bad(with_header(entry("F32", "[-2]", "[0,8]"), "12345678"), "shape holds -2");
  expect_bad(with_header(entry("F32", "[2.0]", "[0,8]"), "12345678"), "shape holds 2.0");
  expect_bad(with_header(entry("F32", "[4294967296,4294967296]", "[0,8]"), "12345678"),
             "not the size");
  expect_bad(
      with_header(entry("F32", "[9223372036854775807,9223372036854775807]", "[0,8]"), "12345678"),
      "not the size");
  expect_bad(with_header(entry("F32", "[2]", "[0,8]"), "1234567"), "cut off");
  expect_bad(with_header(entry("F32", "[2]", "[0,8]"), "123456789"), "its tensors end at");
  expect_bad(with_header(entry("F32", "[2]", "[1,9]"), "123456789"), "starts at byte");
  expect_bad(with_header(entry("F32", "[2]", "[8,0]"), "12345678"), "[begin, end]");
  expect_bad(with_header(entry("F32", "[2]", "[0,18446744073709551615]"), "12345678"),
             "[begin, end]");
  expect_bad(with_header(entry("F32", "[2]", "[0]"), "12345678"), "[begin, end]");
  expect_bad(with_header(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
                         R"("b":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})",
                         "12345678"),
             "overlap");
  expect_bad(with_header(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
                         R"("a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
                         "12345678"),
             "twice");
}

TEST_CASE("safetensors: every truncation of a file is refused") {
  const std::string good = safetensors_bytes({{"a", f32_tensor({2}, {1, 2})}});
  for (size_t length = 0; length < good.size(); ++length) {
    const TempDir temp;
    write_file(temp / "model.safetensors", good.substr(0, length));
    expect_error(ExitCode::kModelFile, {}, [&] { Checkpoint{temp.path().string()}; });
  }
}

TEST_CASE("safetensors: shards are found through the index") {
  const TempDir temp;
  const std::string index_path = temp / "model.safetensors.index.json";
  const auto write_index = [&](const Json& map) {
    write_file(index_path, Json({{"weight_map", map}}).dump());
  };
  const auto open = [&] { Checkpoint{temp.path().string()}; };
  write_file(temp / "1.safetensors", safetensors_bytes({{"a", f32_tensor({1}, {1})}}));
  write_file(temp / "2.safetensors", safetensors_bytes({{"b", f32_tensor({1}, {2})}}));
  write_file(temp / "3.safetensors", safetensors_bytes({{"a", f32_tensor({1}, {3})}}));

  write_index({{"a", "1.safetensors"}, {"b", "2.safetensors"}});
  const Checkpoint checkpoint(temp.path().string());
  float value = 0;
  checkpoint.read(*checkpoint.find("b"), 0, &value, 4);
  CHECK(value == 2);

  write_index({{"a", "1.safetensors"}, {"b", "3.safetensors"}});
  expect_error(ExitCode::kModelFile, {"'a'", "too"}, open);
  write_index({{"a", "2.safetensors"}, {"b", "1.safetensors"}});
  expect_error(ExitCode::kModelFile, {"where the index says"}, open);
  write_index({{"a", "1.safetensors"}, {"c", "2.safetensors"}});
  expect_error(ExitCode::kModelFile, {"'c'", "where the index says"}, open);
  write_index({{"a", "absent.safetensors"}});
  expect_error(ExitCode::kModelFile, {"absent.safetensors", "no such file"}, open);
  const std::string outside = "../" + temp.path().filename().string() + "/1.safetensors";
  for (const std::string& name : {outside, temp / "1.safetensors", std::string(".."),
                                  std::string("./1.safetensors"), std::string()}) {
    write_index({{"a", name}});
    expect_error(ExitCode::kModelFile, {"not a file beside the index"}, open);
  }
  write_index({{"a", 5}});
  expect_error(ExitCode::kModelFile, {"expected a string"}, open);
  write_index(Json::object());
  expect_error(ExitCode::kModelFile, {"empty"}, open);
  write_file(index_path, "{}");
  expect_error(ExitCode::kModelFile, {"weight_map"}, open);
  std::filesystem::remove(index_path);
  expect_error(ExitCode::kModelFile, {"neither model.safetensors nor"}, open);
}
