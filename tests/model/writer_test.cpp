#include <sys/resource.h>
#include <sys/stat.h>

#include <catch2/catch.hpp>
#include <csignal>
#include <fstream>

#include "tests/model/test_model.h"

using namespace edgellm;
using namespace edgellm::test;

namespace fs = std::filesystem;

namespace {

SynthOptions small_synth() {
  SynthOptions options;
  options.shape = "smollm-135m";
  options.layers = 1;
  options.vocab = 100;
  return options;
}

size_t n_files(const fs::path& folder) {
  return static_cast<size_t>(
      std::distance(fs::directory_iterator(folder), fs::directory_iterator()));
}

// While this lives, files of this process cannot grow beyond `bytes`.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) {
    ::getrlimit(RLIMIT_FSIZE, &old_);
    old_handler_ = std::signal(SIGXFSZ, SIG_IGN);
    rlimit limit = old_;
    limit.rlim_cur = bytes;
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &old_);
    std::signal(SIGXFSZ, old_handler_);
  }

 private:
  rlimit old_{};
  void (*old_handler_)(int) = nullptr;
};

}  // namespace

TEST_CASE("writer: places that cannot be written") {
  const TempDir temp;
  const auto write = [](const std::string& path) {
    return [path] { write_synth(small_synth(), path); };
  };
  expect_error(ExitCode::kRuntime, {"absent/out.tmac2"}, write(temp / "absent/out.tmac2"));
  write_file(temp / "file", "x");
  expect_error(ExitCode::kRuntime, {"file/out.tmac2"}, write(temp / "file/out.tmac2"));
  expect_error(ExitCode::kRuntime, {"is a folder"}, write(temp.path().string()));
  expect_error(ExitCode::kRuntime, {"is not the name of a file"}, write(temp / "x/"));
  // A device, reached through a link of our own: were it not refused, only the link would go.
  fs::create_symlink("/dev/full", temp.path() / "full");
  expect_error(ExitCode::kRuntime, {"full", "not a regular file"}, write(temp / "full"));
  CHECK(fs::is_symlink(temp.path() / "full"));
  expect_error(ExitCode::kRuntime, {"/proc/out.tmac2"}, write("/proc/out.tmac2"));
  CHECK(n_files(temp.path()) == 2);
}

TEST_CASE("writer: too little room is said before anything is written") {
  const TempDir temp;
  HfFolder hf = tiny_llama();
  hf.tensors.clear();
  hf.config["vocab_size"] = 1 << 24;  // embedding and head of half a petabyte each
  hf.config["hidden_size"] = 1 << 24;
  hf.write(temp.path() / "hf");
  SynthOptions options;
  options.shape = temp / "hf/config.json";
  const FileSizeLimit limit(100000);  // so that a writer that does not look fills no disk
  expect_error(ExitCode::kRuntime, {"free", "out.tmac2"},
               [&] { write_synth(options, temp / "out.tmac2"); });
  CHECK(n_files(temp.path()) == 1);
}

TEST_CASE("writer: more layers than the metadata can list") {
  const TempDir temp;
  SynthOptions options = small_synth();
  options.layers = 12000;
  expect_error(ExitCode::kRuntime, {"metadata", "out.tmac2"},
               [&] { write_synth(options, temp / "out.tmac2"); });
  CHECK(n_files(temp.path()) == 0);
}

TEST_CASE("writer: a write that fails leaves nothing behind") {
  const TempDir temp;
  {
    const FileSizeLimit limit(100000);
    expect_error(ExitCode::kRuntime, {"out.tmac2", "cannot be written"},
                 [&] { write_synth(small_synth(), temp / "out.tmac2"); });
  }
  CHECK(n_files(temp.path()) == 0);
  write_file(temp / "out.tmac2", "the old one");
  {
    const FileSizeLimit limit(100000);
    expect_error(ExitCode::kRuntime, {"cannot be written"},
                 [&] { write_synth(small_synth(), temp / "out.tmac2"); });
  }
  CHECK(read_file(temp / "out.tmac2") == "the old one");
  CHECK(n_files(temp.path()) == 1);
  write_synth(small_synth(), temp / "out.tmac2");  // and a good one takes its place
  ModelFile::open(temp / "out.tmac2").verify_contents();
  CHECK(n_files(temp.path()) == 1);
}

TEST_CASE("writer: an input is never the output") {
  const TempDir temp;
  const HfFolder hf = tiny_bitnet();
  hf.write(temp.path() / "hf");
  fs::create_hard_link(temp.path() / "hf/model.safetensors", temp.path() / "alias");
  for (const char* name : {"hf/model.safetensors", "hf/config.json", "alias"}) {
    const std::string before = read_file(temp / name);
    expect_error(ExitCode::kRuntime, {"one of the files to convert"},
                 [&] { convert_hf(temp / "hf", temp / name, {}); });
    CHECK(read_file(temp / name) == before);
  }
}

TEST_CASE("writer: the layout is that of format.md") {
  const std::string file = tiny_model_bytes();
  const Json metadata = metadata_of(file);
  const Json& sections = metadata["sections"];
  CHECK(sections[0]["offset"].get<uint64_t>() % 4096 == 0);
  uint64_t end = 0;
  bool weights_began = false;
  for (const Json& section : sections) {
    const auto offset = section["offset"].get<uint64_t>();
    CHECK(offset % 256 == 0);
    CHECK(offset >= end);
    CHECK((end == 0 || offset < end + 256));
    end = offset + section["bytes"].get<uint64_t>();
    // Small sections stand together before the weights.
    const bool is_weight = section["dtype"] == "t2" || section["name"] == "embedding";
    CHECK((is_weight || !weights_began));
    weights_began = weights_began || is_weight;
  }
  CHECK(end == file.size());
  CHECK(metadata["golden"]["prompt_ids"] == Json({1, 2, 3}));
}

TEST_CASE("writer: the golden is made from the finished file and changes its id") {
  const TempDir temp;
  const HfFolder hf = tiny_bitnet();
  hf.write(temp.path() / "hf");
  convert_hf(temp / "hf", temp / "plain.tmac2", {});
  uint64_t id_seen = 0;
  ConvertOptions options;
  options.make_golden = [&](const std::string& path) {
    const ModelFile file = ModelFile::open(path);
    file.verify_contents();
    id_seen = file.id();
    return Golden{std::vector<int32_t>(32, 10), std::vector<int32_t>(32, 10)};
  };
  convert_hf(temp / "hf", temp / "golden.tmac2", options);
  const ModelFile plain = ModelFile::open(temp / "plain.tmac2");
  const ModelFile golden = ModelFile::open(temp / "golden.tmac2");
  golden.verify_contents();
  CHECK_FALSE(plain.golden());
  CHECK(plain.id() == id_seen);
  CHECK(golden.id() != id_seen);
  REQUIRE(golden.golden());
  CHECK(golden.golden()->prompt_ids == std::vector<int32_t>(32, 10));
  CHECK(golden.golden()->greedy_ids.size() == 32);

  // A golden run that fails leaves no file.
  options.make_golden = [](const std::string&) -> Golden {
    throw Error(ExitCode::kRuntime, "the run failed");
  };
  expect_error(ExitCode::kRuntime, {"the run failed"},
               [&] { convert_hf(temp / "hf", temp / "failed.tmac2", options); });
  CHECK(n_files(temp.path()) == 3);
}
