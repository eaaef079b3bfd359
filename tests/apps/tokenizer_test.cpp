// A tokenizer of another kind than the demo model's, from its tokenizer.json to the text of an
// answer.
#include <catch2/catch.hpp>

#include "tests/apps/program.h"
#include "tests/tokenizer/tiny_tokenizer.h"

namespace edgellm::test {
namespace {

TEST_CASE("a SentencePiece-style tokenizer from convert to run") {
  const json tree = tiny_sentencepiece({"\u2581", "a", "b", "\u2581a", "ab", "\u2581ab"},
                                       {{"a", "b"}, {"\u2581", "ab"}, {"\u2581", "a"}});
  const Tokenizer tokenizer = load(tree);
  const TempDir folder;
  const std::string source = copy_model(folder);
  write_file(folder, "hf/tokenizer.json", tree.dump());
  write_file(folder, "hf/tokenizer_config.json", R"({"add_bos_token": true, "bos_token": "<s>"})");
  const std::string model = (folder / "model.tmac2");
  const auto run_well = [](const std::vector<std::string>& args) {
    const Result result = run(args);
    INFO(result.err);
    REQUIRE(result.exit_code == 0);
    return result;
  };
  (void)run_well({"convert", source, "-o", model});
  CHECK(run_well({"verify", model}).out.find("tokenizer: OK (7 texts came back unchanged)") !=
        std::string::npos);
  CHECK(json_of(run_well({"tokenize", model, "ab a", "--json"}))["ids"] == Ids{1, 264, 262});
  CHECK(json_of(run_well({"tokenize", model, "ab", "--json", "--no-special"}))["ids"] == Ids{264});

  // The prompt and the answer together are what the ids of both decode to, a space between them
  // included: where an answer of batch begins with one, and where that of run does.
  std::string requests;
  for (int seed = 0; seed < 600; ++seed) {
    requests += nlohmann::json({{"prompt", "ab"}, {"seed", seed}}).dump() + "\n";
  }
  const std::string in = write_file(folder, "in.jsonl", requests);
  std::istringstream answers(run_well({"batch", model, "-i", in, "-o", "-", "--ordered", "-n", "4",
                                       "--ignore-eos", "--temp", "2"})
                                 .out);
  int seed = -1;
  std::string text;
  for (std::string line; !text.starts_with(' ') && std::getline(answers, line); ++seed) {
    text = nlohmann::json::parse(line)["response"]["body"]["choices"][0]["text"];
  }
  REQUIRE(text.starts_with(' '));

  const std::vector<std::string> args = {"run",
                                         model,
                                         "-p",
                                         "ab",
                                         "-n",
                                         "4",
                                         "--ignore-eos",
                                         "--temp",
                                         "2",
                                         "--seed",
                                         std::to_string(seed)};
  auto with_json = args;
  with_json.push_back("--json");
  const auto answer = json_of(run_well(with_json));
  CHECK(answer["text"] == text);
  Ids all = {264};
  for (const int32_t id : answer["token_ids"].get<Ids>()) all.push_back(id);
  std::string expected = tokenizer.decode(all, /*skip_special=*/true);
  CHECK("ab" + text == expected);
  auto with_prompt = args;
  with_prompt.push_back("--print-prompt");
  if (!expected.ends_with('\n')) expected += '\n';
  CHECK(run_well(with_prompt).out == expected);
}

TEST_CASE("perplexity puts a BOS before a text only where tokenizing adds one") {
  const json tree = tiny_sentencepiece({"\u2581", "a", "b"});
  const TempDir folder;
  const std::string source = copy_model(folder);
  write_file(folder, "hf/tokenizer.json", tree.dump());
  const std::string text = write_file(folder, "text", "ab ba abba baab bab");
  for (const bool adds : {true, false}) {
    INFO(adds);
    const json config = {{"add_bos_token", adds}, {"bos_token", "<s>"}};
    write_file(folder, "hf/tokenizer_config.json", config.dump());
    const std::string model = folder / (adds ? "with.tmac2" : "without.tmac2");
    REQUIRE(run({"convert", source, "-o", model}).exit_code == 0);
    CHECK(json_of(run({"info", model, "--json"}))["tokenizer"]["bos"] == 1);
    const size_t n =
        json_of(run({"tokenize", model, "-f", text, "--json", "--no-special"}))["ids"].size();
    const auto tokens = [&](std::vector<std::string> more) {
      std::vector<std::string> args = {"perplexity", model, "-f", text, "--json"};
      args.insert(args.end(), more.begin(), more.end());
      const Result result = run(args);
      INFO(result.err);
      return json_of(result)["tokens"].get<size_t>();
    };
    CHECK(tokens({}) == (adds ? n : n - 1));
    CHECK(tokens({"--stride", "4", "--window", "8"}) == (adds ? n : n - 1));
    CHECK(tokens({"--method", "llama.cpp", "--window", "8"}) == (n + (adds ? 1 : 0)) / 8 * 3);
  }
}

}  // namespace
}  // namespace edgellm::test
