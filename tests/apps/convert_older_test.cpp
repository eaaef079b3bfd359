// edgellm convert with older files: a model exported in each of the older forms and converted gives
// the logits of the original.
#include <catch2/catch.hpp>
#include <filesystem>

#include "tests/apps/program.h"
#include "tests/support/fixtures.h"
#include "tests/support/older_writer.h"

namespace edgellm::test {
namespace {

namespace fs = std::filesystem;

bool is_bitnet_folder(const fs::path& path) {
  return is_model_folder(path) && fs::file_size(path / "config.json") > 0 &&
         read_file(path / "config.json").find("\"BitNetForCausalLM\"") != std::string::npos &&
         !fs::exists(path / "model.safetensors.index.json");
}

Result run_well(const std::vector<std::string>& args) {
  Result result = run(args);
  INFO(Catch::StringMaker<std::vector<std::string>>::convert(args) << result.err);
  REQUIRE(result.exit_code == 0);
  return result;
}

// A fixture, converted from its own folder.
struct Original {
  TempDir folder;
  fs::path source;
  std::string path = folder / "original.tmac2";
  std::string ids = write_file(folder, "ids.json", "[1, 7, 300, 12, 7, 7, 41, 5]");

  explicit Original(fs::path from) : source(std::move(from)) {
    run_well({"convert", source.string(), "-o", path});
  }
  std::string config() const { return (source / "config.json").string(); }
  OlderModel model() const { return older_model(ModelFile::open(path)); }
  std::string logits_hash(const std::string& model_path) const {
    return json_of(
        run_well({"logits", model_path, "--ids-file", ids, "--all", "--json"}))["logits_xxh3"];
  }
  // The same of a file of these bytes, converted.
  std::string converted_hash(const std::string& bytes) const {
    const std::string old = write_file(folder, "old.tmac2.bin", bytes);
    const std::string out = folder / "new.tmac2";
    run_well({"convert", old, "--config", config(), "-o", out});
    run_well({"verify", out});
    return logits_hash(out);
  }
};

TEST_CASE("older forms of a model give the logits of the original") {
  const std::vector<fs::path> folders = fixtures_where(is_bitnet_folder);
  REQUIRE(!folders.empty());
  for (const fs::path& source : folders) {
    INFO(source.string());
    const Original original(source);
    // Scales of a checkpoint are bf16, which float16 holds here; tables stay float32.
    const OlderModel model = original.model();
    for (const OlderLayer& layer : model.layers) {
      REQUIRE(from_half(to_half(layer.q.scales[0])) == layer.q.scales[0]);
    }
    CHECK(original.converted_hash(tm2_bytes(model)) == original.logits_hash(original.path));

    // TMAC's tables are int8: a TM2 file with the numbers that these stand for is the same model.
    OlderModel int8 = model;
    const bool tied = ModelFile::open(original.path).config().tied_head;
    for (OlderTable* table : {&int8.embedding, &int8.head}) {
      *table = int8_table(table->values, model.vocab, model.dim);
    }
    OlderModel plain = model;
    plain.embedding.values = decoded(int8.embedding);
    plain.head.values = decoded(int8.head);
    for (OlderLayer& layer : plain.layers) {
      for (auto* norm :
           {&layer.attn_norm, &layer.attn_sub_norm, &layer.ffn_norm, &layer.ffn_sub_norm}) {
        for (float& value : *norm) value = from_half(to_half(value));
      }
    }
    for (float& value : plain.final_norm) value = from_half(to_half(value));
    CHECK(original.converted_hash(tmac_bytes(int8, !tied)) ==
          original.converted_hash(tm2_bytes(plain)));
  }
}

TEST_CASE("scales that differ by row are used row by row") {
  const Original original(fixtures_where(is_bitnet_folder).front());
  OlderModel model = original.model();
  // Doubled queries and halved keys of one group of heads have the same scores, to the bit.
  const int head_dim = model.dim / model.heads;
  for (OlderLayer& layer : model.layers) {
    for (int row = 0; row < head_dim * model.heads / model.kv_heads; ++row) {
      layer.q.scales[static_cast<size_t>(row)] *= 2;
    }
    for (int row = 0; row < head_dim; ++row) layer.k.scales[static_cast<size_t>(row)] /= 2;
    // Squares of gates that are off by 4 and ups by 1/16 in some rows only.
    for (size_t row = 0; row < layer.gate.scales.size(); row += 3) {
      layer.gate.scales[row] *= 4;
      layer.up.scales[row] /= 16;
    }
  }
  CHECK(original.converted_hash(tm2_bytes(model)) == original.logits_hash(original.path));
  model.layers[0].down.scales[1] *= 2;
  CHECK(original.converted_hash(tm2_bytes(model)) != original.logits_hash(original.path));
}

TEST_CASE("convert tells of older files what it assumed and what they lack") {
  const Original original(fixtures_where(is_bitnet_folder).front());
  const std::string bytes = tm2_bytes(original.model());
  const std::string old = write_file(original.folder, "old.tmac2.bin", bytes);
  const std::string out = original.folder / "new.tmac2";
  const Result alone = run_well({"convert", old, "-o", out});
  CHECK(alone.err.find("taken as BitNet-b1.58-2B-4T does: ReLU^2, eps 1e-05, RoPE theta 500000; "
                       "for any other model add --config config.json") != std::string::npos);
  CHECK(alone.err.find("add --tokenizer tokenizer.json for text") != std::string::npos);
  CHECK(run_well({"convert", old, "--config", original.config(), "-o", out}).err.find("taken as") ==
        std::string::npos);

  const auto refused = [&](const std::vector<std::string>& args, int exit_code,
                           const std::string& part) {
    const Result result = run(args);
    INFO(result.err);
    CHECK(result.exit_code == exit_code);
    CHECK(result.err.find(part) != std::string::npos);
    CHECK(result.err.find('\n') == result.err.size() - 1);
  };
  refused({"convert", original.source.string(), "--config", original.config(), "-o", out}, 2,
          "--config and --tokenizer are for older files");
  refused({"convert", old, "--config", "/nowhere/config.json", "-o", out}, 3,
          "/nowhere/config.json");
  refused({"convert", old, "--tokenizer", original.config(), "-o", out}, 3, "config.json");
  refused({"run", old, "--ids-file", original.ids}, 3, "convert");
  const std::string tmac = write_file(original.folder, "tmac", tmac_header(original.model()));
  refused({"convert", tmac, "-o", out}, 2, "add --config");
}

TEST_CASE("an older file with a tokenizer takes text") {
  const TempDir folder;
  const ModelFile demo = ModelFile::open(demo_model());
  OlderModel model = older_model(demo);
  const std::string old = write_file(folder, "old.tmac2.bin", tm2_bytes(model));
  const std::string tokenizer =
      write_file(folder, "tokenizer.json", std::string(demo.tokenizer_json()));
  const std::string out = folder / "new.tmac2";
  run_well({"convert", old, "--tokenizer", tokenizer, "-o", out});
  CHECK(run_well({"tokenize", out, "Once upon a time"}).out ==
        run_well({"tokenize", tokenizer, "Once upon a time"}).out);
  CHECK(!run_well({"run", out, "Once upon a time", "-n", "3"}).out.empty());
}

TEST_CASE("convert --dry-run says what would be written and writes nothing") {
  const Original original(fixtures_where(is_bitnet_folder).front());
  const std::string out = original.folder / "out.tmac2";
  const std::vector<std::string> args = {"convert", original.source.string(), "-o", out,
                                         "--dry-run"};
  const std::vector<std::string> before = names_in(original.folder);
  Result result = run_well(args);
  CHECK(names_in(original.folder) == before);
  const std::string size = std::to_string(fs::file_size(original.path));
  CHECK(result.out.find("would write") != std::string::npos);
  CHECK(result.out.find("(" + size + " bytes in ") != std::string::npos);
  CHECK(result.out.find("replacing") == std::string::npos);
  CHECK(result.err.empty());

  write_file(original.folder, "out.tmac2", "precious");
  result = run_well(args);
  CHECK(result.out.find("replacing a file of 8 bytes") != std::string::npos);
  CHECK(read_file(out) == "precious");

  const Result refused =
      run({"convert", original.source.string(), "-o", "/nowhere/out.tmac2", "--dry-run"});
  CHECK(refused.exit_code == 1);
  CHECK(refused.out.empty());
}

}  // namespace
}  // namespace edgellm::test
