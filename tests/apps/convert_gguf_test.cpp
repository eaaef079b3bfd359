// edgellm convert with GGUF files: a model exported to GGUF and converted gives the logits and the
// ids of the original.
#include <catch2/catch.hpp>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "tests/apps/program.h"
#include "tests/support/environment.h"
#include "tests/support/fixtures.h"
#include "tests/support/gguf_writer.h"

namespace edgellm::test {
namespace {

namespace fs = std::filesystem;

Result run_well(const std::vector<std::string>& args) {
  Result result = run(args);
  INFO(Catch::StringMaker<std::vector<std::string>>::convert(args) << result.err);
  REQUIRE(result.exit_code == 0);
  return result;
}

std::string logits_hash(const TempDir& folder, const std::string& model) {
  const std::string ids = write_file(folder, "ids.json", "[1, 7, 300, 12, 7, 7, 41, 5]");
  return json_of(run_well({"logits", model, "--ids-file", ids, "--all", "--json"}))["logits_xxh3"];
}

TEST_CASE("GGUF forms of a model give the logits of the Hugging Face folder") {
  const std::vector<fs::path> folders = fixtures_where([](const fs::path& path) {
    return is_model_folder(path) && !fs::exists(path / "model.safetensors.index.json");
  });
  REQUIRE(!folders.empty());
  for (const fs::path& source : folders) {
    INFO(source.string());
    const TempDir folder;
    const std::string original = folder / "original.tmac2";
    run_well({"convert", source.string(), "-o", original});
    const ModelFile file = ModelFile::open(original);
    // Their frequencies are another tensor, which tests/model/gguf_test.cpp has.
    if (file.config().rope_scaling) continue;
    const bool llama = !file.config().attn_sub_norm;
    const bool windows = file.config().dim % 128 == 0 && file.config().ffn % 128 == 0;
    for (const char* type : {"F32", "I2_S/rows", "I2_S/x86"}) {
      if (!windows && std::string(type) == "I2_S/x86") continue;
      INFO(type);
      const GgufWriter gguf = gguf_model(older_model(file), file.config(),
                                         {llama ? "llama" : "bitnet-b1.58", type, "F32"});
      const std::string path = write_file(folder, "in.gguf", gguf.bytes());
      const std::string out = folder / "new.tmac2";
      std::vector<std::string> args = {"convert", path, "-o", out};
      if (std::string(type) != "F32") {
        args.insert(args.end(), {"--i2s-layout", std::string(type).substr(5)});
      }
      const Result result = run_well(args);
      CHECK(result.err.find("takes ids only (--ids-file); add --tokenizer") != std::string::npos);
      CHECK((result.err.find("ReLU^2") != std::string::npos) == !llama);
      run_well({"verify", out});
      CHECK(logits_hash(folder, out) == logits_hash(folder, original));
    }
  }
}

TEST_CASE("a GGUF file brings its tokenizer, or takes another") {
  const TempDir folder;
  const ModelFile demo = ModelFile::open(demo_model());
  GgufWriter gguf = gguf_model(older_model(demo), demo.config(), {"bitnet", "F16", "F32"});
  const std::string without = write_file(folder, "without.gguf", gguf.bytes());
  set_byte_level_tokenizer(gguf, nlohmann::json::parse(demo.tokenizer_json()), "llama-bpe");
  gguf.set("tokenizer.ggml.bos_token_id", static_cast<uint32_t>(*demo.tokenizer().bos));
  gguf.set("tokenizer.ggml.eos_token_id", static_cast<uint32_t>(demo.tokenizer().stop_ids.at(0)));
  gguf.set("tokenizer.chat_template", demo.tokenizer().chat_template);
  const std::string with = write_file(folder, "with.gguf", gguf.bytes());
  const std::string tokenizer =
      write_file(folder, "tokenizer.json", std::string(demo.tokenizer_json()));
  const std::string out = folder / "new.tmac2";
  const std::string text = "Once upon a time, 12345 wolves\n\n  said: <|eot_id|> \u00e9t\u00e9!";
  for (const auto& args : std::vector<std::vector<std::string>>{
           {"convert", with, "-o", out},
           {"convert", without, "--tokenizer", tokenizer, "-o", out}}) {
    run_well(args);
    CHECK(run_well({"tokenize", out, text, "--json"}).out ==
          run_well({"tokenize", demo_model(), text, "--json"}).out);
    CHECK(run_well({"run", out, "Once upon a time", "-n", "8"}).out ==
          run_well({"run", demo_model(), "Once upon a time", "-n", "8"}).out);
  }
  CHECK(ModelFile::open(out).tokenizer().present);
  run_well({"convert", with, "-o", out});
  CHECK(ModelFile::open(out).tokenizer().stop_ids == demo.tokenizer().stop_ids);
  CHECK(ModelFile::open(out).tokenizer().chat_template == demo.tokenizer().chat_template);
}

TEST_CASE("a GGUF file in a model folder runs by its name, and rm deletes what was made from it") {
  const TempDir folder;
  const WithVariable models("EDGELLM_MODELS", folder / "models");
  const WithVariable data("XDG_DATA_HOME", folder / "data");
  const WithVariable cache("EDGELLM_CACHE", folder / "cache");
  fs::create_directories(folder.path() / "models");
  const ModelFile demo = ModelFile::open(demo_model());
  const GgufWriter gguf = gguf_model(older_model(demo), demo.config(), {"bitnet", "F16", "F32"});
  write_file(folder, "models/story.gguf", gguf.bytes());
  const auto list = [] { return json_of(run_well({"list", "--json"})); };
  CHECK(logits_hash(folder, "story.gguf") == logits_hash(folder, demo_model()));
  CHECK(list()["models"][0]["name"] == "story.gguf");
  CHECK(list()["cached"].size() == 1);
  // Of the same contents under another name there is one conversion.
  const std::string twin = write_file(folder, "twin.gguf", gguf.bytes());
  logits_hash(folder, twin);
  REQUIRE(list()["cached"].size() == 1);
  CHECK(list()["cached"][0]["source"] == fs::canonical(twin).string());
  logits_hash(folder, "story.gguf");
  const Result removed = run_well({"rm", "story.gguf"});
  CHECK_THAT(removed.err,
             Catch::Contains("edgellm: deleted " + fs::canonical(folder / "models").string() +
                             "/story.gguf\n"));
  CHECK(list()["models"].empty());
  // Another source has it still.
  CHECK(list()["cached"].size() == 1);
  write_file(folder, "models/story.gguf", gguf.bytes());
  fs::remove_all(folder / "cache");
  logits_hash(folder, "story.gguf");
  CHECK_THAT(run_well({"rm", "story.gguf"}).err, Catch::Contains("in the cache, made from it"));
  CHECK(list()["cached"].empty());
  CHECK(fs::is_empty(folder / "cache/models"));
  CHECK(fs::is_empty(folder / "cache/stamps"));
}

TEST_CASE("options that a GGUF file does not take, and those of others") {
  const TempDir folder;
  const std::string gguf = write_file(folder, "in.gguf", "GGUF");
  const std::string out = folder / "out.tmac2";
  const auto refused = [&](const std::vector<std::string>& args, const std::string& part) {
    const Result result = run(args);
    INFO(result.err);
    CHECK(result.exit_code == 2);
    CHECK(result.err.find(part) != std::string::npos);
  };
  refused({"convert", gguf, "--config", "config.json", "-o", out}, "--config is for older files");
  refused({"convert", folder.path().string(), "--i2s-layout", "x86", "-o", out},
          "--i2s-layout is for GGUF files");
}

}  // namespace
}  // namespace edgellm::test
