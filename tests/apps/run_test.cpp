// edgellm run: prompts, ids, stops, JSON.
#include <catch2/catch.hpp>

#include "apps/generate/repetition.h"
#include "base/hash.h"
#include "base/text.h"
#include "tests/apps/program.h"

namespace edgellm::test {
namespace {

const std::string kPrompt = "Once upon a time";

nlohmann::json run_json(std::vector<std::string> args) {
  args.insert(args.begin(), {"run", demo_model(), "--json"});
  const Result result = run(args);
  INFO(result.err);
  REQUIRE(result.exit_code == 0);
  return json_of(result);
}

std::string text_of(const Result& result) {
  INFO(result.err);
  REQUIRE(result.exit_code == 0);
  CHECK(result.err.empty());
  return result.out;
}

TEST_CASE("run prints the text and nothing else") {
  const std::string text = run_json({kPrompt, "-n", "40"})["text"];
  CHECK(text.size() > 40);
  CHECK(text.find(kPrompt) == std::string::npos);
  CHECK(text_of(run({"run", demo_model(), kPrompt, "-n", "40"})) == text + "\n");
  CHECK(text_of(run({"run", demo_model(), "-p", kPrompt, "-n", "40", "--no-stream"})) ==
        text + "\n");
}

TEST_CASE("every way to give a prompt gives the same prompt") {
  const TempDir folder;
  const std::string model = demo_model();
  const std::string file = write_file(folder, "prompt.txt", kPrompt);
  const std::string expected = text_of(run({"run", model, kPrompt, "-n", "8"}));
  CHECK(text_of(run({"run", model, "-p", kPrompt, "-n", "8"})) == expected);
  CHECK(text_of(run({"run", model, "-f", file, "-n", "8"})) == expected);
  CHECK(text_of(run_with_input({"run", model, "-n", "8"}, kPrompt)) == expected);
  CHECK(text_of(run_with_input({"run", model, "-", "-n", "8"}, kPrompt)) == expected);
  CHECK(text_of(run_with_input({"run", model, "-p", "-", "-n", "8"}, kPrompt)) == expected);
  CHECK(text_of(run_with_input({"run", model, "-f", "-", "-n", "8"}, kPrompt)) == expected);
  CHECK(text_of(Program({"run", model, "-n", "8"}, {.in_path = file}).wait()) == expected);
}

TEST_CASE("piped text stands before the prompt, in a line of its own") {
  const std::vector<std::string> args = {"run", demo_model(), "-p", "the end", "-n", "1", "--json"};
  const auto prompt_ids = [](const Result& result) { return json_of(result)["prompt_ids"]; };
  const auto expected = run_json({"-p", "A king\nthe end", "-n", "1"})["prompt_ids"];
  CHECK(prompt_ids(run_with_input(args, "A king")) == expected);
  CHECK(prompt_ids(run_with_input(args, "A king\n")) == expected);
  const auto alone = run_json({"-p", "the end", "-n", "1"})["prompt_ids"];
  CHECK(alone != expected);
  CHECK(prompt_ids(run_with_input(args, "")) == alone);
  // /dev/null is a device, and a terminal is nothing to wait for.
  CHECK(prompt_ids(run(args)) == alone);
  CHECK(prompt_ids(Program(args, {.in_is_terminal = true}).wait()) == alone);
}

TEST_CASE("a text that looks like an option or a list is taken as it is") {
  const TempDir folder;
  for (const std::string text : {"[a, b]", "-x", "--json", "%s\\n", "a=b;c"}) {
    INFO(text);
    const std::string file = write_file(folder, "text", text);
    const auto tokens = json_of(run({"tokenize", demo_model(), "--json", "-f", file}))["ids"];
    CHECK(run_json({"-n", "1", "-p", text})["prompt_ids"] == tokens);
    CHECK(run_json({"-n", "1", "--", text})["prompt_ids"] == tokens);
  }
}

TEST_CASE("run --json is one object with everything in it") {
  const auto json = run_json({kPrompt, "-n", "12", "-c", "64", "--threads", "1"});
  CHECK(json["schema"] == "edgellm.run/1");
  CHECK(json["model"]["path"] == demo_model());
  CHECK(json["model"]["id"].get<std::string>().size() == 16);
  CHECK(json["model"]["architecture"] == "BitNetForCausalLM");
  CHECK(json["model"]["params"] == 17'323'648);
  CHECK(json["model"]["bytes"] == std::filesystem::file_size(demo_model()));
  CHECK(json["finish_reason"] == "length");
  CHECK(json["threads"] == 1);
  CHECK(json["kv_type"] == "i16");
  CHECK(json["context"] == 64);
  CHECK(json["device"].get<std::string>().starts_with("cpu"));
  const auto& timings = json["timings"];
  CHECK(timings["prompt_eval_count"] == json["prompt_ids"].size());
  CHECK(timings["eval_count"] == 12);
  for (const char* name : {"total_ns", "load_ns", "prompt_eval_ns", "eval_ns", "ttft_ns"}) {
    INFO(name);
    CHECK(timings[name].is_number_integer());
    CHECK(timings[name] > 0);
  }
  CHECK(timings["itl_ns"]["p50"] <= timings["itl_ns"]["max"]);
  CHECK(timings["eval_tps"].get<double>() ==
        Approx(11e9 / timings["eval_ns"].get<double>()).epsilon(1e-6));

  const auto ids = json["token_ids"].get<std::vector<int32_t>>();
  REQUIRE(ids.size() == 12);
  CHECK(json["output_hash"] == hex64(xxh3(ids.data(), 4 * ids.size())));
}

TEST_CASE("the answer does not depend on threads or prefill chunks") {
  const auto expected = run_json({kPrompt, "-n", "30"})["output_hash"];
  CHECK(run_json({kPrompt, "-n", "30", "--threads", "1"})["output_hash"] == expected);
  CHECK(run_json({kPrompt, "-n", "30", "--threads", "3"})["output_hash"] == expected);
  CHECK(run_json({kPrompt, "-n", "30", "--prefill-chunk", "2"})["output_hash"] == expected);
}

TEST_CASE("a stop string ends the text before it") {
  const std::string whole = run_json({kPrompt, "-n", "60"})["text"];
  const std::string stop = whole.substr(20, 7);  // begins and ends anywhere in the tokens
  const auto json = run_json({kPrompt, "-n", "60", "--stop", "[never]", "--stop", stop});
  CHECK(json["finish_reason"] == "stop_string");
  CHECK(json["text"] == whole.substr(0, whole.find(stop)));
  CHECK(text_of(run({"run", demo_model(), kPrompt, "-n", "60", "--stop", stop})) ==
        whole.substr(0, whole.find(stop)) + "\n");
}

TEST_CASE("run says when the context or the default limit ended the answer") {
  const auto notes = [](std::vector<std::string> args) {
    args.insert(args.begin(), {"run", demo_model(), kPrompt, "--ignore-eos"});
    const Result result = run(args);
    CHECK(result.exit_code == 0);
    return result.err;
  };
  CHECK(notes({"-c", "20"}) ==
        "edgellm: the context of 20 tokens is full, so the answer ends here; -c allows more, up to "
        "2048\n");
  CHECK(notes({"-n", "20"}).empty());
  const std::string limit = notes({"--sample", "--seed", "1"});
  CHECK(limit ==
        "edgellm: the answer ends at the default limit of 512 tokens; -n N sets another, -n -1 "
        "none\n");
  CHECK(run_json({kPrompt, "--ignore-eos"})["token_ids"].size() == 512);
  CHECK(run_json({kPrompt, "--ignore-eos", "-n", "-1", "-c", "600"})["finish_reason"] == "context");
}

TEST_CASE("run says when the answer repeats itself, and what helps") {
  const auto notes = [](std::vector<std::string> args) {
    args.insert(args.begin(), {"run", demo_model(), kPrompt, "-n", "200"});
    return run(args).err;
  };
  CHECK(notes({}) == "edgellm: the answer repeats itself; try --sample\n");
  CHECK(notes({"--sample", "--seed", "1"}).empty());
  CHECK(notes({"--temp", "0.01", "--top-k", "1"}) ==
        "edgellm: the answer repeats itself; try a higher --temp, or --repeat-penalty 1.2\n");
  CHECK(notes({"--log-level", "warn"}).empty());
  const TempDir folder;
  const std::string ids = write_file(folder, "ids.json", "[1]");
  const Result random = run({"run", tiny_model(folder), "--ids-file", ids, "-n", "100"});
  CHECK(
      (random.err.empty() || random.err == "edgellm: the answer repeats itself; try --temp 0.7\n"));
}

TEST_CASE("what counts as repeating itself") {
  const auto periodic = [](size_t n, int period) {
    std::vector<int32_t> ids;
    for (size_t i = 0; i < n; ++i) ids.push_back(static_cast<int32_t>(i) % period);
    return ids;
  };
  CHECK(repeats_itself(periodic(64, 1)));
  CHECK(repeats_itself(periodic(200, 60)));
  CHECK(!repeats_itself(periodic(200, 70)));
  CHECK(!repeats_itself(periodic(63, 1)));
  CHECK(!repeats_itself({}));
  // A word changed now and then does not hide a loop, and a loop that ended long ago is none.
  std::vector<int32_t> ids = periodic(300, 7);
  for (size_t i = 0; i < ids.size(); i += 23) ids[i] = 1000 + static_cast<int32_t>(i);
  CHECK(repeats_itself(ids));
  for (int32_t id = 0; id < 128; ++id) ids.push_back(id);
  CHECK(!repeats_itself(ids));
}

TEST_CASE("a full context is its own end") {
  const auto json = run_json({kPrompt, "-c", "32", "--ignore-eos"});
  CHECK(json["finish_reason"] == "context");
  CHECK(json["prompt_ids"].size() + json["token_ids"].size() >= 32);
}

TEST_CASE("a stop token ends the answer and is not part of the text") {
  // After a turn of a conversation the model writes the next turn and its end.
  const std::string turn = "Hello<|eot_id|>";
  const auto json = run_json({turn, "-n", "100"});
  REQUIRE(json["finish_reason"] == "stop");
  CHECK(json["token_ids"].back() == 4095);
  const std::string text = json["text"];
  CHECK(!text.empty());
  CHECK(text.find("<|") == std::string::npos);
  CHECK(text_of(run({"run", demo_model(), turn, "-n", "100"})) == text + "\n");

  const auto ignoring = run_json({turn, "-n", "100", "--ignore-eos"});
  CHECK(ignoring["finish_reason"] == "length");
  CHECK(ignoring["token_ids"].size() == 100);
}

TEST_CASE("ids instead of text, with and without a tokenizer") {
  const TempDir folder;
  const auto from_text = run_json({kPrompt, "-n", "6"});
  const std::string ids = write_file(folder, "ids.json", from_text["prompt_ids"].dump());
  const auto from_ids = run_json({"--ids-file", ids, "-n", "6"});
  CHECK(from_ids["token_ids"] == from_text["token_ids"]);
  CHECK(from_ids["text"] == from_text["text"]);

  const std::string model = tiny_model(folder);
  const std::string few = write_file(folder, "few.json", "[1, 2, 3]");
  const Result json = run({"run", model, "--ids-file", few, "-n", "4", "--json"});
  CHECK(json_of(json)["text"].is_null());
  const auto tokens = json_of(json)["token_ids"].get<std::vector<int>>();
  REQUIRE(tokens.size() == 4);
  std::string line;
  for (const int token : tokens) line += (line.empty() ? "" : " ") + std::to_string(token);
  CHECK(text_of(run({"run", model, "--ids-file", few, "-n", "4"})) == line + "\n");
}

TEST_CASE("the head is certified in a longer run, and --full-head gives the same answer") {
  const std::vector<std::string> args = {"run", demo_model(),   kPrompt,    "-n",
                                         "60",  "--ignore-eos", "--verbose"};
  const Result certified = run(args);
  REQUIRE(certified.exit_code == 0);
  CHECK(certified.err.find("certified copy; rows rescored: mean ") != std::string::npos);
  CHECK(certified.err.find(" copy of the head, ") != std::string::npos);
  std::vector<std::string> full_args = args;
  full_args.push_back("--full-head");
  const Result full = run(full_args);
  REQUIRE(full.exit_code == 0);
  CHECK(full.err.find("head:                 full\n") != std::string::npos);
  CHECK(full.err.find("int8") == std::string::npos);
  CHECK(full.out == certified.out);
}

TEST_CASE("the CPU's certified head serves top-k and penalties, and not top-p alone") {
  const auto run_head = [](std::vector<std::string> options, const std::string& head) {
    std::vector<std::string> args = {"run",       demo_model(),   kPrompt,    "-n", "40",
                                     "--verbose", "--ignore-eos", "--device", "cpu"};
    args.insert(args.end(), options.begin(), options.end());
    const Result result = run(args);
    REQUIRE(result.exit_code == 0);
    INFO(result.err);
    CHECK(result.err.find("head:                 " + head) != std::string::npos);
    return result.out;
  };
  const std::vector<std::string> few[] = {
      {"--temp", "0.8", "--top-k", "40", "--top-p", "0.95", "--seed", "3"},
      {"--temp", "0", "--repeat-penalty", "1.2"}};
  for (std::vector<std::string> options : few) {
    const std::string certified = run_head(options, "certified copy");
    options.push_back("--full-head");
    CHECK(run_head(options, "full") == certified);
  }
  run_head({"--temp", "0.8", "--top-p", "0.95", "--seed", "3"}, "full");
  run_head({"--temp", "0.8", "--top-k", "2000", "--seed", "3"}, "full");
}

TEST_CASE("greedy is the default, and temperature 0 the same") {
  const auto greedy = run_json({kPrompt, "-n", "30"});
  CHECK(greedy["sampling"] == nlohmann::json({{"temperature", 0},
                                              {"top_k", 0},
                                              {"top_p", 1},
                                              {"min_p", 0},
                                              {"repeat_penalty", 1},
                                              {"frequency_penalty", 0},
                                              {"presence_penalty", 0},
                                              {"seed", 0}}));
  const auto zero = run_json({kPrompt, "-n", "30", "--temp", "0", "--top-k", "40", "--seed", "5"});
  CHECK(zero["output_hash"] == greedy["output_hash"]);
  CHECK(run_json({kPrompt, "-n", "30", "--temp", "1", "--top-k", "1"})["output_hash"] ==
        greedy["output_hash"]);
  for (const char* penalty : {"--repeat-penalty", "--frequency-penalty", "--presence-penalty"}) {
    CHECK(run_json({kPrompt, "-n", "30", penalty, "3"})["output_hash"] != greedy["output_hash"]);
  }
}

TEST_CASE("run --sample takes the model's own defaults, and flags replace single ones") {
  const std::vector<std::string> by_hand = {
      kPrompt, "-n",      "40", "--temp", "0.7", "--repeat-penalty", "1.1", "--top-p",
      "0.9",   "--top-k", "50", "--seed", "0"};
  const auto sampled = run_json({kPrompt, "-n", "40", "--sample", "--seed", "0"});
  // The file names no top_k: transformers' own default.
  CHECK(sampled["sampling"] == nlohmann::json({{"temperature", 0.7},
                                               {"top_k", 50},
                                               {"top_p", 0.9},
                                               {"min_p", 0},
                                               {"repeat_penalty", 1.1},
                                               {"frequency_penalty", 0},
                                               {"presence_penalty", 0},
                                               {"seed", 0}}));
  CHECK(sampled["output_hash"] == run_json(by_hand)["output_hash"]);
  const auto changed =
      run_json({kPrompt, "-n", "1", "--sample", "--temp", "0.5", "--top-k", "9", "--min-p", "0.1"});
  CHECK(changed["sampling"]["temperature"] == 0.5);
  CHECK(changed["sampling"]["top_k"] == 9);
  CHECK(changed["sampling"]["min_p"] == 0.1);
  CHECK(changed["sampling"]["top_p"] == 0.9);
}

TEST_CASE("a seed gives the same text again, on every machine") {
  const auto hash = [](std::vector<std::string> more) {
    std::vector<std::string> args = {kPrompt,    "-n",      "100", "--ignore-eos",
                                     "--sample", "--top-k", "0"};
    args.insert(args.end(), more.begin(), more.end());
    return run_json(args)["output_hash"];
  };
  // Recorded on x86-64 with AVX-512: the ids of seed 7 everywhere.
  CHECK(hash({"--seed", "7"}) == "06f708f8ecb64364");
  CHECK(hash({"--seed", "7", "--threads", "1"}) == hash({"--seed", "7", "--threads", "2"}));
  CHECK(hash({"--seed", "7", "--prefill-chunk", "2"}) == hash({"--seed", "7"}));
  CHECK(hash({"--seed", "18446744073709551615"}) != hash({"--seed", "0"}));
}

TEST_CASE("run without a seed draws another text each time, and says with which seed") {
  const std::vector<std::string> args = {kPrompt, "-n", "40", "--ignore-eos", "--temp", "1"};
  const auto first = run_json(args);
  const auto second = run_json(args);
  CHECK(first["sampling"]["seed"] != second["sampling"]["seed"]);
  CHECK(first["output_hash"] != second["output_hash"]);
  std::vector<std::string> again = args;
  again.insert(again.end(), {"--seed", first["sampling"]["seed"].dump()});
  CHECK(run_json(again)["output_hash"] == first["output_hash"]);
}

TEST_CASE("run --logprobs adds each token's own and the N largest") {
  const auto plain = run_json({kPrompt, "-n", "10"});
  CHECK(!plain.contains("logprobs"));
  const auto json = run_json({kPrompt, "-n", "10", "--logprobs", "3"});
  CHECK(json["token_ids"] == plain["token_ids"]);
  REQUIRE(json["logprobs"].size() == 10);
  for (size_t i = 0; i < 10; ++i) {
    const auto& of_token = json["logprobs"][i];
    const auto& top = of_token["top"];
    REQUIRE(top.size() == 3);
    CHECK(top[0]["id"] == json["token_ids"][i]);  // greedy
    CHECK(top[0]["logprob"] == of_token["logprob"]);
    CHECK(top[0]["logprob"] >= top[1]["logprob"]);
    CHECK(top[1]["logprob"] >= top[2]["logprob"]);
    CHECK(top[0]["logprob"] < 0);
    CHECK(top[0]["text"].is_string());
  }
  CHECK(run_json({kPrompt, "-n", "2", "--logprobs", "0"})["logprobs"][1]["top"].empty());
  CHECK(run_json({kPrompt, "-n", "1", "--logprobs", "1024"})["logprobs"][0]["top"].size() == 1024);
  const Result refused = run({"run", demo_model(), kPrompt, "--json", "--logprobs", "1025"});
  CHECK(refused.exit_code == 2);
  CHECK(refused.err.find("1024") != std::string::npos);
}

TEST_CASE("run --print-prompt puts the prompt before the answer") {
  const TempDir folder;
  const auto json = run_json({kPrompt, "-n", "8", "--print-prompt"});
  CHECK(json["prompt"] == kPrompt);
  CHECK(!run_json({kPrompt, "-n", "1"}).contains("prompt"));
  const std::string whole = kPrompt + json["text"].get<std::string>() + "\n";
  CHECK(text_of(run({"run", demo_model(), kPrompt, "-n", "8", "--print-prompt"})) == whole);
  CHECK(text_of(run({"run", demo_model(), kPrompt, "-n", "8", "--print-prompt", "--no-stream"})) ==
        whole);
  const std::string ids = write_file(folder, "ids.json", json["prompt_ids"].dump());
  CHECK(text_of(run({"run", demo_model(), "--ids-file", ids, "-n", "8", "--print-prompt"})) ==
        whole);

  const std::string model = tiny_model(folder);
  const std::string few = write_file(folder, "few.json", "[1, 2, 3]");
  const std::string line = text_of(run({"run", model, "--ids-file", few, "-n", "4"}));
  CHECK(text_of(run({"run", model, "--ids-file", few, "-n", "4", "--print-prompt"})) ==
        "1 2 3 " + line);
}

std::vector<nlohmann::json> lines_of(const Result& result) {
  INFO(result.err);
  REQUIRE(result.exit_code == 0);
  std::vector<nlohmann::json> lines;
  std::istringstream in(result.out);
  for (std::string line; std::getline(in, line);) lines.push_back(nlohmann::json::parse(line));
  CHECK(result.out.back() == '\n');
  return lines;
}

TEST_CASE("run --json --stream is a line for each token, then the object of --json") {
  const std::vector<std::string> options = {"-n", "40",           "--sample",   "--seed",
                                            "0",  "--ignore-eos", "--logprobs", "1"};
  std::vector<std::string> args = {"run", demo_model(), kPrompt, "--json", "--stream"};
  args.insert(args.end(), options.begin(), options.end());
  const auto lines = lines_of(run(args));
  REQUIRE(lines.size() == 41);
  const auto& object = lines.back();
  std::string text;
  for (size_t i = 0; i < 40; ++i) {
    CHECK(lines[i]["id"] == object["token_ids"][i]);
    CHECK(lines[i]["logprob"] == object["logprobs"][i]["logprob"]);
    CHECK(lines[i]["top"] == object["logprobs"][i]["top"]);
    CHECK(!lines[i].contains("schema"));
    text += lines[i]["text"].get<std::string>();
  }
  CHECK(object["schema"] == "edgellm.run/1");
  CHECK(text == object["text"]);
  std::vector<std::string> whole_args = {kPrompt};
  whole_args.insert(whole_args.end(), options.begin(), options.end());
  CHECK(run_json(whole_args)["output_hash"] == object["output_hash"]);
}

TEST_CASE("events have the stop token without a text, and text held back at the end") {
  const auto stopped =
      lines_of(run({"run", demo_model(), "Hello<|eot_id|>", "-n", "100", "--json", "--stream"}));
  REQUIRE(stopped.back()["finish_reason"] == "stop");
  CHECK(stopped[stopped.size() - 2] == nlohmann::json({{"id", 4095}, {"text", ""}}));

  // A text that ends like the beginning of a stop string.
  const std::string text = run_json({kPrompt, "-n", "20"})["text"];
  const std::string stop = text.substr(text.size() - 3) + "[never]";
  const auto held = lines_of(
      run({"run", demo_model(), kPrompt, "-n", "20", "--stop", stop, "--json", "--stream"}));
  REQUIRE(held.size() == 22);
  CHECK(held[20]["id"].is_null());
  CHECK(text.ends_with(held[20]["text"].get<std::string>()));
  CHECK(held[21]["text"] == text);

  const TempDir folder;
  const std::string few = write_file(folder, "few.json", "[1, 2, 3]");
  const auto ids = lines_of(
      run({"run", tiny_model(folder), "--ids-file", few, "-n", "2", "--json", "--stream"}));
  REQUIRE(ids.size() == 3);
  CHECK(ids[0] == nlohmann::json({{"id", ids[2]["token_ids"][0]}, {"text", nullptr}}));
}

TEST_CASE("run --verbose prints Ollama's eight lines first") {
  const Result result = run({"run", demo_model(), kPrompt, "-n", "5", "--verbose"});
  REQUIRE(result.exit_code == 0);
  std::vector<std::string> labels;
  std::istringstream lines(result.err);
  for (std::string line; std::getline(lines, line);) labels.push_back(line.substr(0, 22));
  const std::vector<std::string> ollama = {
      "total duration:       ", "load duration:        ", "prompt eval count:    ",
      "prompt eval duration: ", "prompt eval rate:     ", "eval count:           ",
      "eval duration:        ", "eval rate:            "};
  REQUIRE(labels.size() > ollama.size());
  CHECK(std::vector<std::string>(labels.begin(), labels.begin() + 8) == ollama);
  CHECK(result.err.find("prompt eval count:    6 token(s)\n") != std::string::npos);
  CHECK(result.err.find("eval count:           5 token(s)\n") != std::string::npos);
  CHECK(result.err.find("GB/s\n") != std::string::npos);
}

}  // namespace
}  // namespace edgellm::test
