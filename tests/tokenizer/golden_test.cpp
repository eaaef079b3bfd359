// Exact equality with what Hugging Face's tokenizers and llama.cpp made of the same texts: every
// NAME_cases.json in the fixtures beside a NAME_tokenizer.json(.gz), and the same, compressed, in
// tests/data/tokenizers, made by train_tokenizers.py.
#include <zlib.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "tests/support/fixtures.h"
#include "tests/support/skip.h"
#include "tokenizer/text_stream.h"
#include "tokenizer/tokenizer.h"

namespace edgellm {
namespace {

namespace fs = std::filesystem;

// Reads plain files, too: gzread passes through what is not compressed.
std::string read_file(const fs::path& path) {
  const gzFile file = gzopen(path.c_str(), "rb");
  REQUIRE(file != nullptr);
  std::string text, block(1 << 20, '\0');
  int n = 0;
  while ((n = gzread(file, block.data(), static_cast<unsigned>(block.size()))) > 0) {
    text.append(block, 0, static_cast<size_t>(n));
  }
  REQUIRE(n == 0);
  REQUIRE(gzclose(file) == Z_OK);
  return text;
}

std::string to_hex(const std::string& bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string hex;
  for (const char c : bytes) {
    hex += kDigits[static_cast<uint8_t>(c) >> 4];
    hex += kDigits[static_cast<uint8_t>(c) & 15];
  }
  return hex;
}

// "llama3_cases.json" and "llama3_llamacpp_cases.json" both go with "llama3_tokenizer.json.gz".
std::optional<fs::path> tokenizer_for(const fs::path& cases) {
  const std::string name = cases.filename().string();
  for (const char* suffix : {"_tokenizer.json.gz", "_tokenizer.json"}) {
    const fs::path path = cases.parent_path() / (name.substr(0, name.find('_')) + suffix);
    if (fs::exists(path)) return path;
  }
  return std::nullopt;
}

TEST_CASE("ids and bytes equal the golden cases") {
  if (!fs::is_directory(test::fixtures())) {
    test::skip("no fixtures at " + test::fixtures().string() + "; set EDGELLM_FIXTURES");
    return;
  }
  size_t n_cases = 0;
  for (const auto& entry : fs::recursive_directory_iterator(test::fixtures())) {
    if (!entry.path().string().ends_with("_cases.json")) continue;
    const auto tokenizer_path = tokenizer_for(entry.path());
    if (!tokenizer_path) continue;
    INFO(entry.path().string());
    const Tokenizer tokenizer =
        Tokenizer::from_json(read_file(*tokenizer_path), tokenizer_path->filename().string());
    const nlohmann::json file = nlohmann::json::parse(read_file(entry.path()));
    const bool add_special = file.value("add_special_tokens", false);
    for (const nlohmann::json& item : file.at("cases")) {
      const auto text = item.at("text").get<std::string>();
      INFO(text);
      const auto ids = tokenizer.encode(text, add_special);
      CHECK(ids == item.at("ids").get<std::vector<int32_t>>());
      if (item.contains("decoded_hex")) {
        CHECK(to_hex(tokenizer.decode(ids, false)) == item.at("decoded_hex").get<std::string>());
      } else {
        CHECK(tokenizer.decode(ids, false) == text);
      }
      ++n_cases;
    }
  }
  if (n_cases == 0) test::skip("no *_cases.json in " + test::fixtures().string());
}

// As run shows ids while they come; invalid bytes as U+FFFD, special tokens not at all.
std::string shown(const Tokenizer& tokenizer, const std::vector<int32_t>& ids) {
  TextStream stream(tokenizer, {});
  std::string text;
  for (const int32_t id : ids) text += stream.push(id);
  return text + stream.finish();
}

// With U+FFFD for what is not UTF-8, which nlohmann::json does as the Unicode standard has it.
std::string valid_utf8(const std::string& bytes) {
  const std::string dumped =
      nlohmann::json(bytes).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  return nlohmann::json::parse(dumped).get<std::string>();
}

TEST_CASE("small tokenizers with the pipelines of well-known models") {
  size_t n_cases = 0;
  for (const auto& entry : fs::directory_iterator(EDGELLM_SOURCE_DIR "/tests/data/tokenizers")) {
    if (!entry.path().string().ends_with("_cases.json.gz")) continue;
    INFO(entry.path().string());
    const auto tokenizer_path = tokenizer_for(entry.path());
    REQUIRE(tokenizer_path);
    const Tokenizer tokenizer =
        Tokenizer::from_json(read_file(*tokenizer_path), tokenizer_path->filename().string());
    const nlohmann::json file = nlohmann::json::parse(read_file(entry.path()));
    for (const nlohmann::json& item : file.at("cases")) {
      INFO(item.dump());
      const auto ids = item.at("ids").get<std::vector<int32_t>>();
      if (item.contains("text")) {
        const auto text = item.at("text").get<std::string>();
        CHECK(tokenizer.encode(text, false) == ids);
        CHECK(tokenizer.encode(text, true) == item.at("special_ids").get<std::vector<int32_t>>());
      }
      CHECK(valid_utf8(tokenizer.decode(ids, false)) == item.at("decoded").get<std::string>());
      CHECK(shown(tokenizer, ids) == item.at("shown").get<std::string>());
      ++n_cases;
    }
  }
  CHECK(n_cases > 500);
}

TEST_CASE("every model folder's tokenizer.json reads its own bytes back") {
  if (!fs::is_directory(test::fixtures())) {
    test::skip("no fixtures at " + test::fixtures().string() + "; set EDGELLM_FIXTURES");
    return;
  }
  const std::string text = "Once upon a time, 1234567 \t\r\n\n  caf\u00e9 \u4e2d\u6587 \U0001F600!";
  bool found = false;
  for (const auto& entry : fs::recursive_directory_iterator(test::fixtures())) {
    if (entry.path().filename() != "tokenizer.json") continue;
    INFO(entry.path().string());
    found = true;
    const Tokenizer tokenizer = Tokenizer::from_json(read_file(entry.path()), "tokenizer.json");
    const auto plain = tokenizer.encode(text, false);
    const auto with_template = tokenizer.encode(text, true);
    CHECK(tokenizer.decode(plain, false) == text);
    CHECK(tokenizer.decode(with_template, true) == text);
    CHECK(with_template.size() >= plain.size());
  }
  if (!found) test::skip("no tokenizer.json in " + test::fixtures().string());
}

}  // namespace
}  // namespace edgellm
