// Hugging Face folders whose files are damaged everywhere, one place at a time.
#include <catch2/catch.hpp>

#include "model/import/safetensors.h"
#include "tests/model/test_model.h"

using namespace edgellm;
using namespace edgellm::test;

namespace {

// Converts `folder`; whether that was refused. What is written, if anything, is a good file, and no
// other is left.
bool is_refused(const TempDir& folder) {
  const std::string out = folder / "out.tmac2";
  bool refused = false;
  try {
    convert_hf((folder.path() / "hf").string(), out, {});
  } catch (const Error& error) {
    CHECK(std::string(error.what()).find('\n') == std::string::npos);
    refused = true;
  }
  if (!refused) ModelFile::open(out).verify_contents();
  std::filesystem::remove(out);
  CHECK(std::distance(std::filesystem::directory_iterator(folder.path()),
                      std::filesystem::directory_iterator()) == 1);
  return refused;
}

}  // namespace

TEST_CASE("convert: config.json cut anywhere is refused, and damaged anywhere never crashes") {
  const TempDir folder;
  const HfFolder hf = tiny_bitnet();
  hf.write(folder.path() / "hf");
  const std::string path = folder / "hf/config.json";
  const std::string good = read_file(path);
  CHECK_FALSE(is_refused(folder));
  for (size_t length = 0; length < good.size(); ++length) {
    INFO("length " << length);
    write_file(path, good.substr(0, length));
    CHECK(is_refused(folder));
  }
  size_t n_refused = 0;
  for (size_t at = 0; at < good.size(); ++at) {
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ (1 << (at % 8)));
    write_file(path, bad);
    n_refused += is_refused(folder) ? 1 : 0;
  }
  // Digits become other digits now and then, and some of those make sense.
  CHECK(n_refused > good.size() * 8 / 10);
}

TEST_CASE("convert: safetensors cut anywhere or with a damaged header") {
  const TempDir folder;
  const HfFolder hf = tiny_bitnet();
  hf.write(folder.path() / "hf");
  const std::string path = folder / "hf/model.safetensors";
  const std::string good = read_file(path);
  for (size_t length = 0; length < good.size(); length += 3) {
    INFO("length " << length);
    write_file(path, good.substr(0, length));
    CHECK(is_refused(folder));
  }
  uint64_t header_bytes = 0;
  std::copy_n(good.data(), 8, reinterpret_cast<char*>(&header_bytes));
  const auto data_start = static_cast<size_t>(8 + header_bytes);
  size_t n_refused = 0;
  for (size_t at = 0; at < data_start; ++at) {
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ (1 << (at % 8)));
    write_file(path, bad);
    n_refused += is_refused(folder) ? 1 : 0;
  }
  // Not what stands in __metadata__, which nobody reads.
  CHECK(n_refused > data_start * 9 / 10);
}

TEST_CASE("a checkpoint that shrinks while it is read") {
  const TempDir folder;
  tiny_bitnet().write(folder.path());
  const model_io::Checkpoint checkpoint(folder.path().string());
  std::filesystem::resize_file(folder / "model.safetensors", 100);
  const model_io::CheckpointTensor& tensor = checkpoint.tensors().begin()->second;
  std::vector<char> bytes(static_cast<size_t>(tensor.bytes));
  expect_error(ExitCode::kModelFile, {"model.safetensors", "ends at byte", "more was expected"},
               [&] { checkpoint.read(tensor, 0, bytes.data(), bytes.size()); });
}
