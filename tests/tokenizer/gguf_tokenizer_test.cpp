// Tokenizers rebuilt from the metadata of GGUF files. The metadata is made from a tokenizer.json by
// llama.cpp's published rules, and must give the ids of that tokenizer.json; SentencePiece's own
// ids are those of tests/data/gguf/sentencepiece.json.
#include <zlib.h>

#include <catch2/catch.hpp>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "model/import/gguf/file.h"
#include "model/import/gguf/tokenizer.h"
#include "tests/support/fixtures.h"
#include "tests/support/gguf_writer.h"
#include "tests/support/temp_dir.h"
#include "tokenizer/tokenizer.h"

namespace edgellm {
namespace {

namespace fs = std::filesystem;
using model_io::HfTokenizer;
using nlohmann::json;
using test::GgufWriter;

std::string read_file(const fs::path& path) {
  const gzFile file = gzopen(path.c_str(), "rb");
  REQUIRE(file != nullptr);
  std::string text, block(1 << 20, '\0');
  int n = 0;
  while ((n = gzread(file, block.data(), static_cast<unsigned>(block.size()))) > 0) {
    text.append(block, 0, static_cast<size_t>(n));
  }
  REQUIRE(gzclose(file) == Z_OK);
  return text;
}

struct Rebuilt {
  HfTokenizer tokenizer;
  std::vector<std::string> notes;
};

Rebuilt rebuild(const GgufWriter& file, int vocab = 1 << 18) {
  const test::TempDir temp;
  std::ofstream(temp / "in.gguf", std::ios::binary) << file.bytes();
  const auto gguf = model_io::gguf::read_gguf(temp / "in.gguf");
  ModelConfig config;
  config.vocab = vocab;
  Rebuilt result;
  result.tokenizer = model_io::gguf::read_tokenizer(gguf.metadata, config, result.notes);
  return result;
}

GgufWriter gguf_of(const json& tokenizer, const std::string& pre) {
  GgufWriter file;
  test::set_byte_level_tokenizer(file, tokenizer, pre);
  return file;
}

// A vocabulary of letters, with what a test adds.
GgufWriter letters(const std::vector<std::string>& more, const std::vector<int32_t>& more_types) {
  GgufWriter file;
  std::vector<std::string> tokens = {"a", "b", "c", "ab", "\xC4\xA0"};  // the last is a space
  std::vector<int32_t> types(tokens.size(), 1);
  tokens.insert(tokens.end(), more.begin(), more.end());
  types.insert(types.end(), more_types.begin(), more_types.end());
  file.set("tokenizer.ggml.model", "gpt2");
  file.set("tokenizer.ggml.pre", "gpt-2");
  file.set("tokenizer.ggml.tokens", tokens);
  file.set("tokenizer.ggml.token_type", types);
  file.set("tokenizer.ggml.merges", std::vector<std::string>{"a b"});
  return file;
}

void refused(const GgufWriter& file, ExitCode code, const std::string& text) {
  try {
    rebuild(file, 64);
  } catch (const Error& error) {
    CHECK(error.code() == code);
    CHECK_THAT(error.what(), Catch::Contains(text));
    return;
  }
  FAIL("expected an error with: " << text);
}

}  // namespace

TEST_CASE("GGUF tokenizer: byte-level ones give the ids of their tokenizer.json") {
  const fs::path folder = EDGELLM_SOURCE_DIR "/tests/data/tokenizers";
  size_t n_cases = 0;
  const auto check = [&](const fs::path& tokenizer_path, const fs::path& cases_path,
                         const std::string& pre) {
    INFO(tokenizer_path.filename() << " as " << pre);
    const Rebuilt rebuilt = rebuild(gguf_of(json::parse(read_file(tokenizer_path)), pre));
    const Tokenizer tokenizer = Tokenizer::from_json(rebuilt.tokenizer.tokenizer_json, "rebuilt");
    const json cases = json::parse(read_file(cases_path));
    if (cases.value("add_special_tokens", false)) return;
    for (const json& item : cases.at("cases")) {
      if (!item.contains("text")) continue;  // ids to decode only
      const auto text = item.at("text").get<std::string>();
      INFO(text);
      const auto expected = item.at("ids").get<std::vector<int32_t>>();
      CHECK(tokenizer.encode(text, false) == expected);
      if (item.contains("decoded")) {
        CHECK(tokenizer.decode(expected, false) == item.at("decoded").get<std::string>());
      }
      ++n_cases;
    }
  };
  // falcon3_tokenizer.json.gz cuts words as Falcon-7B does; see docs/gguf.md.
  for (const auto& [name, pre] :
       {std::pair{"gpt2", "gpt-2"}, std::pair{"llama3", "llama-bpe"}, std::pair{"qwen2", "qwen2"},
        std::pair{"falcon3", "falcon"}, std::pair{"neox", "olmo"}}) {
    const std::string base = (folder / name).string();
    check(base + "_tokenizer.json.gz", base + "_cases.json.gz", pre);
  }
  CHECK(n_cases > 200);
  for (const auto& [name, pre] : {std::pair{"gpt2", "gpt-2"}, std::pair{"llama3", "llama-bpe"}}) {
    const std::string base = (test::fixtures() / "g4" / name).string();
    if (fs::exists(base + "_cases.json"))
      check(base + "_tokenizer.json.gz", base + "_cases.json", pre);
  }
}

TEST_CASE("GGUF tokenizer: a name decides how words are cut") {
  // Digits and letters are tokens; so are some of two and three digits.
  GgufWriter file = letters({"1", "2", "3", "12", "123", "<s>"}, {1, 1, 1, 1, 1, 3});
  file.set("tokenizer.ggml.merges", std::vector<std::string>{"a b", "1 2", "12 3"});
  const auto ids = [&](const std::string& pre, const std::string& text) {
    file.set("tokenizer.ggml.pre", pre);
    return Tokenizer::from_json(rebuild(file).tokenizer.tokenizer_json, "rebuilt")
        .encode(text, false);
  };
  using Ids = std::vector<int32_t>;
  for (const char* whole :
       {"gpt-2", "llama-bpe", "falcon", "falcon3", "llama3", "default", "dbrx"}) {
    INFO(whole);
    CHECK(ids(whole, "ab123") == Ids{3, 9});
  }
  for (const char* single : {"qwen2", "smollm", "starcoder", "tekken", "deepseek-r1-qwen"}) {
    INFO(single);
    CHECK(ids(single, "ab123") == Ids{3, 5, 6, 7});
  }
  // Three digits at once, from the left.
  CHECK(ids("gpt-2", "12312") == Ids{9, 8});
  CHECK(ids("llama-bpe", "12312") == Ids{9, 8});
  CHECK(ids("falcon", "3123") == Ids{7, 8, 7});
}

TEST_CASE("GGUF tokenizer: SentencePiece's ids") {
  const json model =
      json::parse(read_file(EDGELLM_SOURCE_DIR "/tests/data/gguf/sentencepiece.json"));
  GgufWriter file;
  const auto pieces = model["pieces"].get<std::vector<std::string>>();
  file.set("tokenizer.ggml.model", "llama");
  file.set("tokenizer.ggml.tokens", pieces);
  file.set("tokenizer.ggml.scores", model["scores"].get<std::vector<float>>());
  file.set("tokenizer.ggml.token_type", model["types"].get<std::vector<int32_t>>());
  file.set("tokenizer.ggml.bos_token_id", model["bos"].get<uint32_t>());
  file.set("tokenizer.ggml.eos_token_id", model["eos"].get<uint32_t>());
  file.set("tokenizer.ggml.unknown_token_id", model["unk"].get<uint32_t>());
  for (const bool has_scores : {true, false}) {
    INFO("scores " << has_scores);
    // Without scores of their own the order of the pieces is that of the scores.
    if (!has_scores) {
      file.set("tokenizer.ggml.scores", std::vector<float>(pieces.size(), -1000.0f));
    }
    const Rebuilt rebuilt = rebuild(file);
    const TokenizerInfo& info = rebuilt.tokenizer.info;
    CHECK(info.add_bos);
    CHECK(info.bos == 1);
    CHECK(info.stop_ids == std::vector<int32_t>{2});
    const Tokenizer tokenizer = Tokenizer::from_json(rebuilt.tokenizer.tokenizer_json, "rebuilt");
    for (const json& item : model["cases"]) {
      const auto text = item["text"].get<std::string>();
      INFO(text);
      auto expected = item["ids"].get<std::vector<int32_t>>();
      CHECK(tokenizer.encode(text, false) == expected);
      // The piece of a space, written out, is a space again.
      if (text != "\xE2\x96\x81x") CHECK(tokenizer.decode(expected, false) == text);
      expected.insert(expected.begin(), 1);
      CHECK(tokenizer.encode(text, true) == expected);
    }
    CHECK(tokenizer.encode("<s>the</s>", false).front() == 1);
    CHECK(tokenizer.encode("<s>the</s>", false).back() == 2);
  }
  file.set("tokenizer.ggml.add_space_prefix", false);
  const Tokenizer bare = Tokenizer::from_json(rebuild(file).tokenizer.tokenizer_json, "rebuilt");
  CHECK(bare.encode("the", false) != bare.encode(" the", false));
  CHECK(bare.decode(bare.encode(" the", false), false) == " the");
}

TEST_CASE("GGUF tokenizer: padding behind the last token is no token, before it one") {
  const GgufWriter file = letters({"[PAD5]", "<s>", "[PAD7]", "[PAD8]"}, {5, 3, 5, 5});
  const Tokenizer tokenizer =
      Tokenizer::from_json(rebuild(file).tokenizer.tokenizer_json, "rebuilt");
  CHECK(tokenizer.max_id() == 6);
  CHECK(tokenizer.encode("ab<s>", false) == std::vector<int32_t>{3, 6});
}

TEST_CASE("GGUF tokenizer: special tokens, stop ids, template and sampling") {
  GgufWriter file =
      letters({"<|bos|>", "<|eos|>", "<|eot_id|>", "<tool>", "<|im_end|>"}, {3, 3, 3, 4, 3});
  file.set("tokenizer.ggml.bos_token_id", 5u);
  file.set("tokenizer.ggml.eos_token_id", 6u);
  file.set("tokenizer.ggml.padding_token_id", 0xFFFFFFFFu);
  file.set("tokenizer.chat_template", "{{ messages }}<|eot_id|>");
  file.set("general.sampling.temp", 0.6f);
  file.set("general.sampling.top_k", 20);
  const HfTokenizer rebuilt = rebuild(file, 64).tokenizer;
  const TokenizerInfo& info = rebuilt.info;
  CHECK(info.present);
  CHECK(info.bos == 5);
  CHECK_FALSE(info.add_bos);
  // The turn's end that the template writes, and not the one that it does not.
  CHECK(info.stop_ids == std::vector<int32_t>{6, 7});
  CHECK(info.chat_template == "{{ messages }}<|eot_id|>");
  CHECK(info.sampling_json == R"({"temperature":0.6,"top_k":20})");
  CHECK(info.special_tokens->at("bos_token") == "<|bos|>");
  CHECK(info.special_tokens->at("eos_token") == "<|eos|>");
  CHECK_FALSE(info.special_tokens->contains("pad_token"));
  const Tokenizer tokenizer = Tokenizer::from_json(rebuilt.tokenizer_json, "rebuilt");
  CHECK(tokenizer.encode("ab<|eos|><tool>c", true) == std::vector<int32_t>{3, 6, 8, 2});
  CHECK(tokenizer.is_special(6));
  CHECK_FALSE(tokenizer.is_special(8));

  file.set("tokenizer.ggml.eot_token_id", 9u);
  file.set("tokenizer.ggml.add_bos_token", true);
  const HfTokenizer with_bos = rebuild(file, 64).tokenizer;
  CHECK(with_bos.info.add_bos);
  CHECK(with_bos.info.stop_ids == std::vector<int32_t>{6, 7, 9});
  CHECK(Tokenizer::from_json(with_bos.tokenizer_json, "rebuilt").encode("a", true) ==
        std::vector<int32_t>{5, 0});
}

TEST_CASE("GGUF tokenizer: what old files leave out") {
  // LLaMA-3's vocabulary shows in its special tokens.
  std::vector<std::string> tokens(128256);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = "t" + std::to_string(i);
  tokens[128000] = "<|begin_of_text|>";
  tokens[128001] = "<|end_of_text|>";
  tokens[128009] = "<|eot_id|>";
  GgufWriter file = letters({}, {});
  file.erase("tokenizer.ggml.pre");
  file.erase("tokenizer.ggml.token_type");
  const Rebuilt unknown = rebuild(file);
  REQUIRE(unknown.notes.size() == 1);
  CHECK_THAT(unknown.notes[0], Catch::Contains("--tokenizer"));
  CHECK_THAT(unknown.tokenizer.tokenizer_json, Catch::Contains(R"(\\p{N}+)"));
  file.set("tokenizer.ggml.tokens", tokens);
  file.set("tokenizer.ggml.merges", std::vector<std::string>{});
  const Rebuilt llama3 = rebuild(file);
  REQUIRE(llama3.notes.size() == 1);
  CHECK_THAT(llama3.notes[0], Catch::Contains("'llama-bpe'"));
  CHECK_THAT(llama3.tokenizer.tokenizer_json, Catch::Contains(R"(\\p{N}{1,3})"));
  // Without types, tokens between <| and |> are special.
  CHECK_THAT(llama3.tokenizer.tokenizer_json,
             Catch::Contains(R"("content":"<|eot_id|>","id":128009)"));

  GgufWriter none;
  CHECK_FALSE(rebuild(none).tokenizer.info.present);
}

TEST_CASE("GGUF tokenizer: damaged and unknown ones are refused") {
  const GgufWriter good = letters({"<|eos|>"}, {3});
  rebuild(good, 64);
  const auto with = [&](const std::string& key, const auto& value) {
    GgufWriter file = good;
    file.set("tokenizer.ggml." + key, value);
    return file;
  };
  constexpr ExitCode kModelFile = ExitCode::kModelFile;
  constexpr ExitCode kUnsupported = ExitCode::kUnsupported;
  refused(with("model", "t5"), kUnsupported, "kind 't5'");
  refused(with("pre", "no-such"), kUnsupported, "'no-such'");
  refused(with("tokens", std::vector<std::string>(65, "x")), kModelFile, "65 tokens");
  refused(with("tokens", std::vector<std::string>{"a", "a"}), kModelFile, "was there before");
  refused(with("tokens", std::vector<std::string>{"\xFF"}), kModelFile, "token 0 is not UTF-8");
  refused(with("token_type", std::vector<int32_t>{1}), kModelFile, "1 token types");
  refused(with("merges", std::vector<std::string>{"ab"}), kModelFile, "merge 0 is 'ab'");
  refused(with("add_bos_token", true), kModelFile, "names no bos_token_id");
  refused(with("tokens", 7), kModelFile, "of another type");
  GgufWriter pieces = with("model", "llama");
  pieces.set("tokenizer.ggml.scores", std::vector<float>{0, 0});
  refused(pieces, kModelFile, "2 scores");
  pieces.set("tokenizer.ggml.scores",
             std::vector<float>{0, 0, 0, 0, 0, std::numeric_limits<float>::quiet_NaN()});
  refused(pieces, kModelFile, "finite");
}

}  // namespace edgellm
