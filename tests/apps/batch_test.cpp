// edgellm batch: the answers, and the streams they travel by.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <random>
#include <set>

#include "apps/batch/ids.h"
#include "apps/batch/report.h"
#include "apps/session/chat_prompt.h"
#include "apps/session/prompt.h"
#include "engine/generate.h"
#include "tests/apps/batch_files.h"
#include "tests/support/gpu.h"
#include "tests/support/sanitizers.h"
#include "tokenizer/text_stream.h"

namespace edgellm::test {
namespace {

// A request in all the forms that the tests need.
struct Wanted {
  std::string id;
  bool chat = false;
  std::string text;  // prompt or message
  std::vector<std::string> stop;
  int max_tokens = 0;
  bool ignore_eos = false;
  SamplingOptions sampling;

  nlohmann::json line() const {
    nlohmann::json body = {{"max_tokens", max_tokens}};
    if (chat) {
      body["messages"] = {{{"role", "system"}, {"content", "Be brief."}},
                          {{"role", "user"}, {"content", text}}};
    } else {
      body["prompt"] = text;
    }
    if (!stop.empty()) body["stop"] = stop;
    if (ignore_eos) body["ignore_eos"] = true;
    if (sampling.temperature > 0) {
      body["temperature"] = sampling.temperature;
      body["top_k"] = sampling.top_k;
      body["top_p"] = sampling.top_p;
      body["min_p"] = sampling.min_p;
      body["seed"] = sampling.seed;
    }
    if (sampling.repeat_penalty != 1) body["repeat_penalty"] = sampling.repeat_penalty;
    if (sampling.frequency_penalty != 0) body["frequency_penalty"] = sampling.frequency_penalty;
    if (sampling.presence_penalty != 0) body["presence_penalty"] = sampling.presence_penalty;
    return {{"custom_id", id},
            {"method", "POST"},
            {"url", chat ? "/v1/chat/completions" : "/v1/completions"},
            {"body", body}};
  }

  std::vector<std::string> run_args() const {
    std::vector<std::string> args = {
        "run", demo_model(), "--json", "-p", text, "-n", std::to_string(max_tokens)};
    const auto add = [&](const std::vector<std::string>& more) {
      args.insert(args.end(), more.begin(), more.end());
    };
    if (chat) add({"--chat", "--system", "Be brief."});
    for (const std::string& text_of_stop : stop) add({"--stop", text_of_stop});
    if (ignore_eos) add({"--ignore-eos"});
    if (sampling.temperature > 0) {
      add({"--temp", std::to_string(sampling.temperature), "--top-k",
           std::to_string(sampling.top_k), "--top-p", std::to_string(sampling.top_p), "--min-p",
           std::to_string(sampling.min_p), "--seed", std::to_string(sampling.seed)});
    }
    if (sampling.repeat_penalty != 1) {
      add({"--repeat-penalty", std::to_string(sampling.repeat_penalty)});
    }
    return args;
  }
};

// Short and long prompts, some with a common beginning, greedy and sampled, with every kind of end.
std::vector<Wanted> mixed_requests(int n) {
  const std::vector<std::string> words = {"king", "dark", "forest", "sang", "two", "and", "the"};
  std::mt19937 random(6);
  const auto below = [&](int limit) {
    return static_cast<int>(random() % static_cast<unsigned>(limit));
  };
  std::vector<Wanted> all;
  for (int i = 0; i < n; ++i) {
    Wanted wanted;
    wanted.id = "mixed-" + std::to_string(i);
    wanted.chat = i % 4 == 1;
    wanted.text = i % 3 == 0 ? "Once upon a time there was " : "";
    for (int w = below(i % 25 == 7 ? 150 : 12) + 1; w > 0; --w) {
      wanted.text += words[static_cast<size_t>(below(7))] + (w > 1 ? " " : "");
    }
    wanted.max_tokens = 1 + below(i % 20 == 3 ? 50 : 9);
    if (i % 6 == 2) wanted.stop = {"zebra", i % 12 == 2 ? "e" : " the"};
    wanted.ignore_eos = i % 7 == 4;
    if (i % 5 == 3) {
      // Values that the command line's six decimals hold.
      wanted.sampling.temperature = 0.5 + 0.25 * below(4);
      wanted.sampling.top_k = below(2) * 20;
      wanted.sampling.top_p = below(2) == 0 ? 1.0 : 0.875;
      wanted.sampling.min_p = below(2) * 0.0625;
      wanted.sampling.seed = random();
    }
    if (i % 11 == 5) wanted.sampling.repeat_penalty = 1.25;
    if (i % 11 == 6) wanted.sampling.frequency_penalty = 0.25;
    if (i % 11 == 7) wanted.sampling.presence_penalty = -0.5;
    all.push_back(wanted);
  }
  return all;
}

// The answer as `edgellm run` makes it, without starting it 500 times.
class Alone {
 public:
  Alone()
      : model_(ModelFile::open(demo_model())),
        tokenizer_(Tokenizer::from_json(model_.tokenizer_json(), "demo")),
        chat_(model_, &tokenizer_, false),
        backend_(make_cpu_backend(model_, {})) {}

  std::string answer(const Wanted& wanted) {
    std::vector<int32_t> ids;
    if (wanted.chat) {
      ids = chat_.encode(chat_.render(first_messages("Be brief.", wanted.text)));
    } else {
      ids = encode_prompt(tokenizer_, model_.tokenizer(), wanted.text);
    }
    const auto& stop_ids = model_.tokenizer().stop_ids;
    TextStream stream(tokenizer_, wanted.stop);
    std::string text;
    GenerateRequest request;
    request.prompt_ids = ids;
    request.max_tokens = wanted.max_tokens;
    request.stop_ids = stop_ids;
    request.ignore_stop_ids = wanted.ignore_eos;
    request.sampling = wanted.sampling;
    request.on_token = [&](int32_t id) {
      if (std::find(stop_ids.begin(), stop_ids.end(), id) == stop_ids.end())
        text += stream.push(id);
      return !stream.stopped();
    };
    const GenerateResult result = generate(*backend_, request);
    text += stream.finish();
    // A turn of a chat has no white space in front.
    if (wanted.chat) text.erase(0, text.find_first_not_of(" \n"));
    return text + " | " + to_string(result.finish_reason) + " | " + std::to_string(ids.size()) +
           "+" + std::to_string(result.token_ids.size());
  }

 private:
  ModelFile model_;
  Tokenizer tokenizer_;
  ChatPrompt chat_;
  std::unique_ptr<Backend> backend_;
};

std::string seen_in(const nlohmann::json& record) {
  const auto& body = record["response"]["body"];
  return answer_of(record) + " | " + body["edgellm"]["finish_reason"].get<std::string>() + " | " +
         body["usage"]["prompt_tokens"].dump() + "+" + body["usage"]["completion_tokens"].dump();
}

// On `device`, "cpu" or "cuda": one after the other and many at a time, with room for all and
// without.
void check_mixed_requests(const std::string& device) {
  const Program::Streams streams = {.sees_gpus = device == "cuda"};
  const TempDir folder;
  const std::vector<Wanted> all = mixed_requests(kSanitized ? 60 : 500);
  std::string input;
  for (const Wanted& wanted : all) input += wanted.line().dump() + "\n";
  const std::string in = write_file(folder, "in.jsonl", input);

  std::map<std::string, std::string> expected;
  Alone alone;
  for (const Wanted& wanted : all) expected[wanted.id] = alone.answer(wanted);
  // That this is what `run` gives, for one of each kind.
  for (size_t i = 0; i < 12; ++i) {
    std::vector<std::string> args = all[i].run_args();
    args.insert(args.end(), {"--device", device});
    const auto json = json_of(run(args, streams));
    CHECK(json["text"].get<std::string>() + " | " + json["finish_reason"].get<std::string>() +
              " | " + std::to_string(json["prompt_ids"].size()) + "+" +
              std::to_string(json["token_ids"].size()) ==
          expected[all[i].id]);
  }
  const auto check = [&](const std::string& sequences, std::vector<std::string> flags) {
    const std::string out = folder / ("out" + sequences + ".jsonl");
    flags.insert(flags.end(), {"--sequences", sequences, "--device", device});
    run_batch_to(0, in, out, flags, streams);
    const Records records = read_records(out);
    REQUIRE(records.size() == all.size());
    for (const auto& [id, record] : records) {
      INFO(id << " at " << sequences);
      CHECK(seen_in(record) == expected[id]);
    }
  };
  for (const std::string sequences : {"1", "7", "64"}) check(sequences, {});
  // Too little room for all at once, and a cache that is used up again and again.
  check("32", {"--kv-memory", "2M", "-c", "384"});
}

TEST_CASE("500 mixed requests get the answers that each would get alone") {
  check_mixed_requests("cpu");
}

TEST_CASE("500 mixed requests on a GPU get the answers of the CPU", "[gpu]") {
  if (no_gpu()) return;
  check_mixed_requests("cuda");
}

TEST_CASE("a record is OpenAI's batch output") {
  const TempDir folder;
  const std::string in = write_file(
      folder, "in.jsonl",
      R"({"custom_id":"chat","method":"POST","url":"/v1/chat/completions","body":{"model":"m","messages":[{"role":"user","content":"Hello"}],"max_tokens":4}})"
      "\n"
      R"({"id":"text","prompt":"Once upon a time","max_tokens":4,"return_token_ids":true})"
      "\n"
      R"({"id":"bad","prompt":""})"
      "\n");
  const std::string out = folder / "out.jsonl";
  run_batch_to(7, in, out);
  const Records records = read_records(out);
  const auto& chat = records.at("chat")["response"];
  CHECK(records.at("chat")["line"] == 1);
  CHECK(records.at("chat")["error"].is_null());
  CHECK(chat["request_id"].is_string());
  const auto& body = chat["body"];
  CHECK(body["object"] == "chat.completion");
  CHECK(body["id"].get<std::string>().starts_with("chatcmpl-"));
  CHECK(body["created"].is_number_integer());
  CHECK(body["model"] == "storyteller");
  CHECK(body["choices"].size() == 1);
  CHECK(body["choices"][0]["index"] == 0);
  CHECK(body["choices"][0]["message"]["role"] == "assistant");
  CHECK(body["choices"][0]["finish_reason"] == "length");
  CHECK(body["usage"]["completion_tokens"] == 4);
  CHECK(body["usage"]["total_tokens"] == body["usage"]["prompt_tokens"].get<int>() + 4);
  CHECK(body["usage"]["prompt_tokens_details"]["cached_tokens"] == 0);
  for (const char* name : {"queued_ns", "prompt_eval_ns", "ttft_ns", "total_ns"}) {
    CHECK(body["edgellm"]["timings"][name].is_number_integer());
  }
  const auto& text = records.at("text")["response"]["body"];
  CHECK(text["object"] == "text_completion");
  CHECK(text["choices"][0]["token_ids"].size() == 4);
  CHECK(text["prompt_token_ids"].size() == text["usage"]["prompt_tokens"]);
  const auto& bad = records.at("bad");
  CHECK(bad["error"]["code"] == "invalid_request");
  CHECK(bad["error"]["line"] == 3);
  CHECK(bad["error"]["message"] == bad["response"]["body"]["error"]["message"]);
  CHECK(bad["response"]["status_code"] == 400);
}

TEST_CASE("batch: several answers to a request are those of the seeds that follow") {
  const TempDir folder;
  const std::string prompt = "Once upon a time";
  const std::string in = write_file(
      folder, "in.jsonl",
      R"({"custom_id":"three","url":"/v1/completions","body":{"prompt":"Once upon a time","n":3,"max_tokens":8,"top_p":0.95,"seed":41}})"
      "\n"
      R"({"id":"none","prompt":"Once upon a time","n":2,"max_tokens":8,"temperature":1})"
      "\n"
      R"({"id":"long","prompt":"Once upon a time","n":2,"max_tokens":3000})"
      "\n");
  const std::string out = folder / "out.jsonl";
  run_batch_to(0, in, out, {"-c", "64"});
  const Records records = read_records(out);
  const auto& three = records.at("three")["response"]["body"];
  REQUIRE(three["choices"].size() == 3);
  CHECK(three["usage"]["completion_tokens"] == 24);
  std::set<std::string> texts;
  for (size_t i = 0; i < 3; ++i) {
    const std::string seed = std::to_string(41 + i);
    const auto alone = json_of(run({"run", demo_model(), prompt, "-n", "8", "--temp", "1",
                                    "--top-p", "0.95", "--seed", seed, "-c", "64", "--json"}));
    CHECK(three["choices"][i]["index"] == i);
    CHECK(three["choices"][i]["text"] == alone["text"]);
    CHECK(three["edgellm"]["choices"][i]["seed"] == 41 + i);
    texts.insert(three["choices"][i]["text"].get<std::string>());
  }
  CHECK(texts.size() == 3);
  const auto& none = records.at("none")["response"]["body"];
  CHECK(none["choices"][0]["text"] != none["choices"][1]["text"]);
  const auto& greedy = records.at("long")["response"]["body"];
  CHECK(greedy["choices"][0]["text"] == greedy["choices"][1]["text"]);
  // A request that cannot run has one record.
  const std::string bad =
      write_file(folder, "bad.jsonl",
                 R"({"id":"b","prompt":[1,2,3,4,5,6,7,8,9],"n":4,"max_tokens":8})"
                 "\n");
  run_batch_to(7, bad, folder / "bad.out", {"-c", "8"});
  CHECK(read_records(folder / "bad.out").at("b")["error"]["code"] == "prompt_does_not_fit");
}

TEST_CASE("batch: log-probabilities are those of run --logprobs, beside any other request") {
  const TempDir folder;
  std::string input =
      R"({"custom_id":"chat","url":"/v1/chat/completions","body":{"messages":[{"role":"user","content":"Hello"}],"max_tokens":40,"logprobs":true,"top_logprobs":2}})"
      "\n"
      R"({"id":"text","prompt":"Once upon a time","max_tokens":12,"logprobs":3,"ignore_eos":true})"
      "\n"
      R"({"id":"sampled","prompt":"Once upon a time","max_tokens":12,"logprobs":0,"temperature":1,"seed":7})"
      "\n";
  input += story_requests(5, 30);
  const std::string in = write_file(folder, "in.jsonl", input);
  const std::string out = folder / "out.jsonl";
  run_batch_to(0, in, out, {"-c", "256"});
  const Records records = read_records(out);
  CHECK(records.at("r0")["response"]["body"]["choices"][0]["logprobs"].is_null());

  const auto alone = [&](std::vector<std::string> more) {
    std::vector<std::string> args = {"run", demo_model(), "-c", "256", "--json"};
    args.insert(args.end(), more.begin(), more.end());
    return json_of(run(args));
  };
  const auto text = alone({"Once upon a time", "-n", "12", "--logprobs", "3", "--ignore-eos"});
  const auto& of_text = records.at("text")["response"]["body"]["choices"][0]["logprobs"];
  REQUIRE(of_text["tokens"].size() == 12);
  std::string joined;
  for (size_t i = 0; i < 12; ++i) {
    CHECK(of_text["token_logprobs"][i] == text["logprobs"][i]["logprob"]);
    CHECK(of_text["top_logprobs"][i].size() == 3);
    for (const auto& top : text["logprobs"][i]["top"]) {
      CHECK(of_text["top_logprobs"][i][top["text"].get<std::string>()] == top["logprob"]);
    }
    CHECK(of_text["text_offset"][i] == joined.size());
    joined += of_text["tokens"][i];
  }
  CHECK(joined == records.at("text")["response"]["body"]["choices"][0]["text"]);

  const auto sampled =
      alone({"Once upon a time", "-n", "12", "--logprobs", "0", "--temp", "1", "--seed", "7"});
  const auto& of_sampled = records.at("sampled")["response"]["body"]["choices"][0]["logprobs"];
  for (size_t i = 0; i < of_sampled["tokens"].size(); ++i) {
    CHECK(of_sampled["token_logprobs"][i] == sampled["logprobs"][i]["logprob"]);
    CHECK(of_sampled["top_logprobs"][i].empty());
  }

  const auto chat = alone({"--chat", "Hello", "-n", "40", "--logprobs", "2"});
  const auto& content = records.at("chat")["response"]["body"]["choices"][0]["logprobs"]["content"];
  const size_t n_ended = chat["finish_reason"] == "stop" ? 1 : 0;
  REQUIRE(content.size() == chat["token_ids"].size() - n_ended);
  for (size_t i = 0; i < content.size(); ++i) {
    CHECK(content[i]["logprob"] == chat["logprobs"][i]["logprob"]);
    CHECK(content[i]["top_logprobs"].size() == 2);
    CHECK(content[i]["top_logprobs"][1]["logprob"] == chat["logprobs"][i]["top"][1]["logprob"]);
    std::string bytes;
    for (const auto& byte : content[i]["bytes"]) bytes += static_cast<char>(byte.get<int>());
    CHECK(content[i]["token"] == bytes);
  }
}

TEST_CASE("batch: --text takes a prompt a line, --chat a message a line") {
  const TempDir folder;
  const std::string in =
      write_file(folder, "in.txt", "\xEF\xBB\xBFOnce upon a time\r\n\n{\"id\":\"x\"}\n");
  const std::string out = folder / "out.jsonl";
  run_batch_to(0, in, out, {"--text", "-n", "6"});
  const Records records = read_records(out);
  REQUIRE(records.size() == 2);
  const auto alone = json_of(run({"run", demo_model(), "Once upon a time", "-n", "6", "--json"}));
  CHECK(answer_of(records.at("line-1")) == alone["text"]);
  CHECK(records.contains("line-3"));

  const std::string chats = folder / "chats.jsonl";
  run_batch_to(0, in, chats, {"--text", "--chat", "--system", "Be brief.", "-n", "6"});
  const auto chat = json_of(run({"run", demo_model(), "Once upon a time", "-n", "6", "--json",
                                 "--chat", "--system", "Be brief."}));
  CHECK(answer_of(read_records(chats).at("line-1")) == chat["text"]);
}

uint64_t drawn_seed(const nlohmann::json& record) {
  return record["response"]["body"]["edgellm"]["seed"].get<uint64_t>();
}

TEST_CASE("defaults of the command line are those of requests that say nothing") {
  const TempDir folder;
  const std::string in = write_file(folder, "in.jsonl",
                                    R"({"id":"own","prompt":"Once upon a time","temperature":0.5,)"
                                    R"("seed":3,"max_tokens":9,"stop":[]})"
                                    "\n"
                                    R"({"id":"none","prompt":"Once upon a time"})"
                                    "\n");
  const std::string out = folder / "out.jsonl";
  run_batch_to(0, in, out, {"--temp", "0.9", "--seed", "7", "-n", "12", "--stop", "a"});
  const Records records = read_records(out);
  const auto text = [&](const std::vector<std::string>& more) {
    std::vector<std::string> args = {"run", demo_model(), "Once upon a time", "--json"};
    args.insert(args.end(), more.begin(), more.end());
    return json_of(run(args))["text"].get<std::string>();
  };
  CHECK(answer_of(records.at("own")) == text({"--temp", "0.5", "--seed", "3", "-n", "9"}));
  CHECK(drawn_seed(records.at("own")) == 3);
  const uint64_t seed = drawn_seed(records.at("none"));
  CHECK(seed == seed_of("none", 7));
  CHECK(answer_of(records.at("none")) ==
        text({"--temp", "0.9", "--seed", std::to_string(seed), "-n", "12", "--stop", "a"}));
}

TEST_CASE("batch: requests without a seed draw independently, and the same again") {
  const TempDir folder;
  constexpr int kRequests = 24;
  std::vector<std::string> lines;
  for (int i = 0; i < kRequests; ++i) {
    lines.push_back(R"({"id":"r)" + std::to_string(i) +
                    R"(","prompt":"Once upon a time","max_tokens":12,"temperature":1})" + "\n");
  }
  const auto answers = [&](const std::string& name, const std::vector<std::string>& more) {
    std::string input;
    for (const std::string& line : lines) input += line;
    const std::string out = folder / (name + ".out.jsonl");
    run_batch_to(0, write_file(folder, name + ".jsonl", input), out, more);
    std::map<std::string, std::string> texts;
    for (const auto& [id, record] : read_records(out)) texts[id] = answer_of(record);
    return texts;
  };
  const auto first = answers("first", {});
  std::set<std::string> distinct;
  for (const auto& [id, text] : first) distinct.insert(text);
  CHECK(distinct.size() > kRequests / 2);
  // Another order, the same answers; another seed of the run, others.
  std::reverse(lines.begin(), lines.end());
  CHECK(answers("reversed", {"--sequences", "3"}) == first);
  CHECK(answers("seeded", {"--seed", "5"}) != first);
}

TEST_CASE("a random seed is drawn, and a batch keeps the one it began with") {
  const auto ids = [](const std::string& seed) {
    return json_of(run({"run", demo_model(), "The", "-n", "12", "--temp", "1", "--seed", seed,
                        "--json"}))["token_ids"];
  };
  CHECK(ids("random") != ids("random"));
  CHECK(ids("-1") != ids("-1"));
  check_refused(run({"run", demo_model(), "The", "--temp", "1", "--seed", "-2"}), 2,
                "--seed: '-2' is neither random nor a whole number from 0 to "
                "18446744073709551615");
  check_refused(run({"run", demo_model(), "The", "--seed", "random"}), 2,
                "--seed changes nothing in a greedy run");

  const TempDir folder;
  const std::string in = write_file(folder, "in.txt", "The king\n");
  const auto first_record = [&](const std::string& name) {
    run_batch_to(0, in, folder / name, {"--text", "-n", "8", "--temp", "1", "--seed", "random"});
    return read_records(folder / name).at("line-1");
  };
  const auto begun = first_record("out");
  CHECK(drawn_seed(first_record("other")) != drawn_seed(begun));
  write_file(folder, "in.txt", "The king\nThe queen\n");
  CHECK(first_record("out") == begun);
  const Records both = read_records(folder / "out");
  // Both have the seed of the run, plus what their ids make of it.
  CHECK(drawn_seed(both.at("line-2")) - seed_of("line-2", 0) ==
        drawn_seed(begun) - seed_of("line-1", 0));
}

TEST_CASE("batch: --ordered gives the order of the input, to a file and to a stream") {
  const TempDir folder;
  std::string input;
  for (int i = 0; i < 30; ++i) {  // the first ones take longest
    input += nlohmann::json({{"id", std::to_string(i)},
                             {"prompt", "Once"},
                             {"max_tokens", 31 - i},
                             {"ignore_eos", true}})
                 .dump() +
             "\n";
  }
  const std::string in = write_file(folder, "in.jsonl", input);
  const auto ids = [](const std::string& text) {
    std::vector<int> all;
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
      all.push_back(std::stoi(nlohmann::json::parse(line)["custom_id"].get<std::string>()));
    }
    return all;
  };
  std::vector<int> ordered(30);
  for (int i = 0; i < 30; ++i) ordered[static_cast<size_t>(i)] = i;
  const std::string out = folder / "out.jsonl";
  run_batch_to(0, in, out);
  CHECK(ids(read_file(out)) != ordered);
  run_batch_to(0, in, out, {"--ordered"});  // of what is there already
  CHECK(ids(read_file(out)) == ordered);
  const Result streamed = run(batch_args(in, "-", {"--ordered"}));
  CHECK(streamed.exit_code == 0);
  CHECK(ids(streamed.out) == ordered);
}

TEST_CASE("answers stream from pipe to pipe as they come") {
  Program program(batch_args("-", "-", {}), {.in_path = ""});
  program.write_input(story_requests(1, 3));
  const std::string first = program.read_output(20);  // while the input is still open
  CHECK(first.starts_with("{\"id\":\"batch_req_"));
  program.write_input("{\"id\":\"last\",\"prompt\":\"A fox\",\"max_tokens\":3}");  // no newline
  program.close_input();
  const Result result = program.wait();
  CHECK(result.exit_code == 0);
  CHECK(records_of(first + result.out).size() == 2);
}

TEST_CASE("a closed pipe ends a batch quietly, a full device is an error") {
  const TempDir folder;
  const std::string in = write_file(folder, "in.jsonl", story_requests(200, 20));
  Program program(batch_args(in, "-"), {});
  program.read_output(10);
  program.close_output();
  CHECK(program.wait().exit_code == 0);
  const Result full = Program(batch_args(in, "-"), {.out_path = "/dev/full"}).wait();
  CHECK(full.exit_code == 1);
  CHECK(full.err.find("cannot write standard output: No space left") != std::string::npos);
  const Result device = run(batch_args(in, "/dev/full"));
  CHECK(device.exit_code == 1);
  CHECK(device.err.find("cannot write /dev/full: No space left") != std::string::npos);
}

// From `small` to `large` requests the peak grows by less than `bytes`.
void check_memory_is_flat(const std::string& device, int small, int large, size_t bytes) {
  if (kSanitized) return skip("the sanitizer's own memory grows");
  // Records wait in memory while the disk syncs those before them: 4 MB, where a busy disk takes a
  // second. Files in memory are safe at once.
  const std::filesystem::path memory = "/dev/shm";
  const TempDir folder(
      std::filesystem::is_directory(memory) ? memory : std::filesystem::temp_directory_path());
  const std::string model = tiny_model(folder);
  const auto peak = [&](int n) {
    std::string input;
    for (int i = 0; i < n; ++i) {
      input += "{\"id\":\"request-" + std::to_string(i) + "\",\"prompt\":[" +
               std::to_string(i % 97) + ",2,3],\"max_tokens\":2}\n";
    }
    const std::string in = write_file(folder, "in.jsonl", input);
    const std::string out = folder / ("out" + std::to_string(n));
    const Result result = run({"batch", model, "-i", in, "-o", out, "--device", device},
                              {.sees_gpus = device == "cuda"});
    INFO(result.err);
    CHECK(result.exit_code == 0);
    return result.peak_bytes;
  };
  // Outputs are read afterwards: the peak of a process counts what its parent held when it was
  // made.
  const size_t of_small = peak(small);
  const size_t of_large = peak(large);
  for (const int n : {small, large}) {
    CHECK(read_records(folder / ("out" + std::to_string(n))).size() == static_cast<size_t>(n));
  }
  INFO(of_small << " and " << of_large << " bytes");
  // What is kept of a request is its id's digest and three durations: 1 MB for 10,000.
  CHECK(of_large < of_small + bytes);
}

TEST_CASE("memory does not grow with the input") {
  // The allocator's part varies by a megabyte or two from run to run.
  check_memory_is_flat("cpu", 5'000, 15'000, 6 << 20);
}

TEST_CASE("memory does not grow with the input on a GPU", "[gpu]") {
  if (no_gpu()) return;
  // 5,000 are answered before the first records are written: ten times a second.
  // What waits for its record varies by 10 MB from run to run, so there are many more: a leak of
  // their answers would be 70 MB.
  check_memory_is_flat("cuda", 20'000, 120'000, 32 << 20);
}

TEST_CASE("progress on a terminal, a summary for programs") {
  const TempDir folder;
  const std::string in = write_file(folder, "in.jsonl", "bad\n" + story_requests(150, 24));
  const std::string summary = folder / "summary.json";
  Program program(batch_args(in, folder / "out.jsonl", {"--summary", summary, "--threads", "1"}),
                  {.err_is_terminal = true});
  const Result result = program.wait();
  CHECK(result.exit_code == 7);
  CHECK(result.err.find("KV cache: ") != std::string::npos);
  for (const char* part :
       {"/151 done", "tok/s ", " in, ", " out, ", " active, KV ", "ETA ", "(1 failed)"}) {
    INFO(result.err);
    CHECK(result.err.find(part) != std::string::npos);
  }
  CHECK(result.err.find("\redgellm: 150 answered, 1 failed") != std::string::npos);
  const auto json = nlohmann::json::parse(read_file(summary));
  CHECK(json["schema"] == "edgellm.batch_summary/1");
  CHECK(json["complete"] == true);
  CHECK(json["requests"]["answered"] == 150);
  CHECK(json["failures"] == nlohmann::json{{"invalid_request", 1}});
  CHECK(json["tokens"]["output"] == 150 * 24);
  CHECK(json["rates"]["output_tps"] > 0);
  for (const char* name : {"ttft_ns", "latency_ns", "queued_ns"}) {
    CHECK(json[name]["p50"] > 0);
    CHECK(json[name]["p50"] <= json[name]["p99"]);
  }
  CHECK(json["ttft_ns"]["p50"] <= json["latency_ns"]["p50"]);
  CHECK(json["utilisation"]["busy"] > 0);
  CHECK(json["utilisation"]["busy"] <= 1);
  CHECK(json["utilisation"]["active_max"] == 16);

  // Nothing answered: nothing was measured.
  const std::string bad = write_file(folder, "bad.jsonl", "bad\n");
  run_batch_to(7, bad, folder / "bad.out", {"--summary", summary});
  const auto empty = nlohmann::json::parse(read_file(summary));
  for (const char* name : {"ttft_ns", "latency_ns", "queued_ns", "inter_token_ns"}) {
    CHECK(empty[name]["p50"].is_null());
    CHECK(empty[name]["max"].is_null());
  }
}

TEST_CASE("a summary has the latencies of all answers to a request") {
  RequestAnswer answer;
  answer.choices.resize(2);
  SequenceResult& slow = answer.choices[0].result;
  slow.queued_ns = 1;
  slow.ttft_ns = 11;
  slow.total_ns = 61;
  slow.inter_token_ns = {20, 30};
  SequenceResult& quick = answer.choices[1].result;
  quick.queued_ns = 2;
  quick.ttft_ns = 6;
  quick.total_ns = 46;
  quick.inter_token_ns = {40};
  BatchReport report;
  report.answered(answer);
  const auto json = report.json();
  CHECK(json["requests"]["answered"] == 1);
  CHECK(json["queued_ns"]["p50"] == 1);
  CHECK(json["ttft_ns"]["p50"] == 5);
  CHECK(json["latency_ns"]["p50"] == 60);
  CHECK(json["inter_token_ns"]["p50"] == 30);
  CHECK(json["inter_token_ns"]["max"] == 40);
}

TEST_CASE("a batch says what its command line lacks") {
  const auto refused = [](std::vector<std::string> args, int code, const std::string& part) {
    args.insert(args.begin(), "batch");
    const Result result = run(args);
    INFO(result.err);
    CHECK(result.exit_code == code);
    CHECK(result.err.find(part) != std::string::npos);
    CHECK(result.err.find('\n') == result.err.size() - 1);
  };
  const TempDir folder;
  const std::string in = write_file(folder, "in.jsonl", story_requests(1, 1));
  const std::string out = folder / "out.jsonl";
  refused({"-i", in, "-o", out}, 2, "MODEL is required");
  refused({demo_model(), "-o", out}, 2, "--input is required");
  refused({demo_model(), "-i", in}, 2, "--output is required");
  refused({demo_model(), "-i", "/nowhere", "-o", out}, 2, "cannot read /nowhere: No such file");
  refused({demo_model(), "-i", folder.path().string(), "-o", out}, 2, "Is a directory");
  refused({demo_model(), "-i", in, "-o", out, "--shard", "0/2"}, 2, "use I/N");
  refused({demo_model(), "-i", in, "-o", out, "--shard", "3/2"}, 2, "use I/N");
  refused({demo_model(), "-i", in, "-o", out, "--kv-memory", "1k"}, 2, "too little");
  refused({demo_model(), "-i", in, "-o", out, "--kv-memory", "some"}, 2, "--kv-memory");
  refused({demo_model(), "-i", in, "-o", out, "--sequences", "0"}, 2, "--sequences");
  refused({demo_model(), "-i", in, "-o", out, "--restart", "--keep-answers"}, 2,
          "--keep-answers and --restart exclude each other");
  refused({demo_model(), "--merge", in, "-o", out}, 2, "no model");
  refused({demo_model(), "-i", in, "-o", folder.path().string()}, 1, "it is a folder");
  refused({demo_model(), "-i", in, "-o", "/nowhere/out"}, 1, "there is no folder /nowhere");
  CHECK(names_in(folder) == std::vector<std::string>{"in.jsonl"});
}

}  // namespace
}  // namespace edgellm::test
