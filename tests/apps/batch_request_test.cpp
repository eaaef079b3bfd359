// Lines of a batch's input: what each field means, and what is refused.
#include <catch2/catch.hpp>

#include "apps/batch/ids.h"
#include "apps/batch/line.h"
#include "base/error.h"
#include "base/hash.h"
#include "tests/apps/batch_files.h"
#include "tests/support/sanitizers.h"

namespace edgellm::test {
namespace {

AnswerRequest read(const std::string& text, const BatchDefaults& defaults = {}) {
  return read_batch_request(parse_batch_line(text, "line 1"), defaults, "line 1");
}

std::string chat_line(const std::string& body) {
  return R"({"custom_id":"a","url":"/v1/chat/completions","body":)" + body + "}";
}

void refused(const std::string& text, const std::string& part) {
  INFO(text);
  try {
    read(text);
    FAIL("was read");
  } catch (const Error& error) {
    const std::string message = error.what();
    INFO(message);
    CHECK(message.starts_with("line 1: "));
    CHECK(message.find(part) != std::string::npos);
    CHECK(message.find('\n') == std::string::npos);
  }
}

TEST_CASE("a request's fields") {
  const AnswerRequest request =
      read(R"({"id":7,"prompt":"x","max_completion_tokens":5,"temperature":1,"top_p":0.5,"top_k":3,
               "min_p":0.25,"repetition_penalty":1.5,"seed":18446744073709551615,"stop":"end",
               "ignore_eos":true,"return_token_ids":true,"user":"me","metadata":{"a":1},"n":1,
               "stream":false,"logprobs":null,"tools":[],"response_format":{"type":"text"}})");
  CHECK(request.prompts.at(0).text == "x");
  CHECK(request.max_tokens == 5);
  CHECK(request.sampling.temperature == 1);
  CHECK(request.sampling.top_p == 0.5);
  CHECK(request.sampling.top_k == 3);
  CHECK(request.sampling.min_p == 0.25);
  CHECK(request.sampling.repeat_penalty == 1.5);
  CHECK(request.sampling.seed == UINT64_MAX);
  CHECK(request.stop == std::vector<std::string>{"end"});
  CHECK(request.ignore_eos);
  CHECK(request.return_token_ids);
  CHECK(parse_batch_line(R"({"id":7,"prompt":"x"})", "").id == "7");
  CHECK(parse_batch_line(R"({"custom_id":"b","prompt":"x"})", "").id == "b");
  CHECK(!parse_batch_line(R"({"id":null,"prompt":"x"})", "").id);
  CHECK(read(R"({"prompt":"x","top_k":-1,"temperature":1})").sampling.top_k == 0);
  CHECK(read(R"({"prompt":[1,2]})").prompts.at(0).ids == std::vector<int32_t>{1, 2});
  CHECK(read(R"({"prompt":"x","stop":["a","b"]})").stop.size() == 2);
  CHECK(read(R"({"prompt":"x","top_p":1})").sampling.is_argmax());
  const SamplingOptions penalised =
      read(R"({"prompt":"x","frequency_penalty":0.5,"presence_penalty":-2,
               "logit_bias":{"50":-100,"7":2.5}})")
          .sampling;
  CHECK(penalised.frequency_penalty == 0.5);
  CHECK(penalised.presence_penalty == -2);
  REQUIRE(penalised.logit_bias.size() == 2);
  CHECK((penalised.logit_bias[0].id == 7 && penalised.logit_bias[0].bias == 2.5f));
  CHECK((penalised.logit_bias[1].id == 50 && penalised.logit_bias[1].bias == -100));
}

TEST_CASE("lines of OpenAI's batches have OpenAI's defaults") {
  const auto line = [](const std::string& more) {
    return read(chat_line(R"({"messages":[{"role":"user","content":"x"}])" + more + "}"));
  };
  CHECK(line("").sampling.temperature == 0);  // as documented: greedy
  CHECK(line(R"(,"top_p":0.9)").sampling.temperature == 1);
  CHECK(line(R"(,"top_p":0.9)").sampling.top_p == 0.9);
  CHECK(line(R"(,"top_p":0.9,"temperature":0.5)").sampling.temperature == 0.5);
  BatchDefaults warm;
  warm.sampling.temperature = 0.7;  // --temp 0.7
  const std::string with_top_p =
      chat_line(R"({"messages":[{"role":"user","content":"x"}],"top_p":0.9})");
  CHECK(read(with_top_p, warm).sampling.temperature == 0.7);
  CHECK(line(R"(,"frequency_penalty":0.5,"presence_penalty":1)").sampling.presence_penalty == 1);
  CHECK(line(R"(,"n":3)").n == 3);
  CHECK(!line(R"(,"logprobs":false,"top_logprobs":0)").top_logprobs);
  CHECK(line(R"(,"logprobs":true)").top_logprobs == 0);
  CHECK(line(R"(,"logprobs":true,"top_logprobs":5)").top_logprobs == 5);
  CHECK(read(R"({"prompt":"x","logprobs":2})").top_logprobs == 2);
}

TEST_CASE("messages, in texts or parts, with or without a system message") {
  BatchDefaults brief;
  brief.system = "Be brief.";
  const auto request =
      read(chat_line(R"({"messages":[{"role":"user","content":[{"type":"text","text":"a"},
                                 {"type":"text","text":"b"}]}]})"),
           brief);
  REQUIRE(request.messages.size() == 2);
  CHECK(request.messages[0].role == "system");
  CHECK(request.messages[0].content == "Be brief.");
  CHECK(request.messages[1].content == "a\nb");
  const auto own = read(
      R"({"messages":[{"role":"developer","content":"Rhyme."},{"role":"user","content":"a"}]})",
      brief);
  REQUIRE(own.messages.size() == 2);
  CHECK(own.messages[0].role == "system");
  CHECK(own.messages[0].content == "Rhyme.");
  brief.chat = true;
  const auto prompt = read(R"({"prompt":"a"})", brief);
  CHECK(prompt.is_chat);
  CHECK(prompt.messages.size() == 2);
}

TEST_CASE("lines that are no requests say why") {
  refused("{", "not valid JSON (at byte ");
  refused("[1]", "not a JSON object");
  refused(R"({"id":"a","id":"b","prompt":"x"})", "'id' twice");
  refused(R"({"id":"","prompt":"x"})", "id is \"\"");
  refused(R"({"id":1.5,"prompt":"x"})", "id is 1.5");
  refused(R"({"id":"a","custom_id":"b","prompt":"x"})", "both id and custom_id");
  refused(R"({"prompt":"x","id":")" + std::string(1025, 'i') + "\"}",
          "id has 1025 bytes; expected at most 1024");
  refused(R"({"prompt":"x","custom_id":")" + std::string(1025, 'i') + "\"}", "custom_id has 1025");
  const std::string longest(1024, 'i');
  CHECK(parse_batch_line(R"({"prompt":"x","id":")" + longest + "\"}", "line 1").id == longest);
  refused("{}", "expected one of prompt and messages");
  refused(R"({"prompt":"x","messages":[]})", "expected one of prompt and messages");
  refused(R"({"prompt":""})", "prompt is empty");
  refused(R"({"prompt":[]})", "prompt is empty");
  refused(R"({"prompt":["a","b"]})", "several prompts are several requests");
  refused(R"({"prompt":5})", "neither a text nor a list of token ids");
  refused(R"({"custom_id":"a","url":"/v1/embeddings","body":{"input":"x"}})",
          "url is \"/v1/embeddings\", expected \"/v1/chat/completions\"");
  refused(R"({"custom_id":"a","body":{"prompt":"x"}})", "url is missing");
  refused(R"({"custom_id":"a","url":"/v1/completions"})", "body is missing");
  refused(R"({"custom_id":"a","method":"GET","url":"/v1/completions","body":{"prompt":"x"}})",
          "method is \"GET\"");
  refused(R"({"custom_id":"a","urll":"x","url":"/v1/completions","body":{"prompt":"x"}})",
          "urll is unknown; did you mean url?");
  refused(R"({"url":"/v1/completions","body":{"messages":[]}})", "body.messages is unknown");
  refused(chat_line(R"({"messages":[]})"), "body.messages is empty");
  refused(chat_line(R"({"messages":"hi"})"), "body.messages is \"hi\", expected a list");
  refused(chat_line(R"({"messages":[{"role":"tool","content":"x"}]})"),
          "body.messages[0].role is \"tool\", expected system, developer, user or assistant");
  refused(chat_line(R"({"messages":[{"role":"user"}]})"), "body.messages[0].content is missing");
  refused(chat_line(R"({"messages":[{"role":"user","content":[{"type":"image_url"}]}]})"),
          "body.messages[0].content[0].type is \"image_url\", but only text is read");
  refused(chat_line(R"({"messages":[{"role":"user","content":"x","tool_calls":[1]}]})"),
          "body.messages[0].tool_calls is unknown");
}

TEST_CASE("values that are out of range or would be ignored are refused by name") {
  const auto with = [](const std::string& field, const std::string& part) {
    refused(R"({"prompt":"x",)" + field + "}", part);
    refused(R"({"url":"/v1/completions","body":{"prompt":"x",)" + field + "}}", part);
  };
  with(R"("max_tokens":0)", "max_tokens 0 is not a number of tokens");
  with(R"("max_tokens":"5")", "max_tokens is \"5\"");
  with(R"("max_tokens":5,"max_completion_tokens":6)", "differ");
  with(R"("temperature":-1)", "temperature");
  with(R"("temperature":1e400)", "not valid JSON");
  with(R"("temperature":1,"top_p":0)", "top-p");
  with(R"("seed":-1)", "seed is -1, expected an integer from 0");
  with(R"("seed":1.5)", "seed is 1.5");
  with(R"("stop":"")", "stop holds \"\"");
  with(R"("stop":["a",1])", "stop holds 1");
  with(R"("ignore_eos":1)", "ignore_eos is 1, expected true or false");
  refused(R"({"prompt":"x","top_p":0.5})", "top_p changes nothing in a greedy request");
  with(R"("min_p":0.5)", "min_p changes nothing in a greedy request");
  with(R"("temperature":0,"top_p":0.5)", "top_p changes nothing in a greedy request");
  with(R"("top_k":5,"temperature":0)", "top_k changes nothing");
  with(R"("repeat_penalty":1.1,"repetition_penalty":1.2)", "two names");
  with(R"("n":0)", "n is 0, expected an integer from 1 to 128");
  with(R"("n":129)", "n is 129");
  with(R"("best_of":2)", "best_of is 2, which is not supported");
  with(R"("stream":true)", "stream is true, which is not supported");
  with(R"("logprobs":21)", "logprobs is 21, expected an integer from 0 to 20");
  with(R"("logprobs":true)", "logprobs is true, expected an integer");
  with(R"("top_logprobs":2)", "top_logprobs is a field of chats");
  const std::string hello = R"("messages":[{"role":"user","content":"x"}])";
  refused(chat_line("{" + hello + R"(,"logprobs":3})"), "logprobs is 3, expected true or false");
  refused(chat_line("{" + hello + R"(,"top_logprobs":3})"), "changes nothing without");
  refused(chat_line("{" + hello + R"(,"logprobs":true,"top_logprobs":21})"), "from 0 to 20");
  with(R"("tools":[{"type":"function"}])", "tools is ");
  with(R"("response_format":{"type":"json_object"})", "response_format is an object");
  with(R"("presence_penalty":100.5)", "(--presence-penalty) is 100.5");
  with(R"("frequency_penalty":-101)", "(--frequency-penalty) is -101");
  with(R"("logit_bias":[1])", "logit_bias");
  with(R"("logit_bias":{"x":1})", "has \"x\" for a token id");
  with(R"("logit_bias":{"-1":1})", "has \"-1\" for a token id");
  with(R"("logit_bias":{"1":"a"})", "\"a\"");
  with(R"("logit_bias":{"1":-100.5})", "a bias of logit_bias is -100.5");
  with(R"("max_token":5)", "max_token is unknown; did you mean max_tokens?");
  with(R"("guided_json":{})", "guided_json is unknown");
}

TEST_CASE("ids are unique, also where none is given") {
  BatchIds ids;
  CHECK(ids.assign("a", 1).text == "a");
  CHECK(ids.assign(std::nullopt, 2).text == "line-2");
  CHECK(ids.assign("line-4", 3).text == "line-4");
  CHECK(ids.assign(std::nullopt, 4).text == "line-4+");
  const BatchIds::Id twice = ids.assign("a", 5);
  CHECK(twice.text == "line-5");
  CHECK(twice.used_in_line == 1);
  CHECK(ids.assign("line-5", 6).used_in_line == 5);
}

TEST_CASE("a shard is xxh3-64 of the id, as the documentation says") {
  // By Python's xxhash: xxh3_64_intdigest("r0") % 4 + 1, ...
  std::array<int, 4> sizes{};
  for (int i = 0; i < 1000; ++i) {
    const std::string id = "r" + std::to_string(i);
    CHECK(shard_of(id, 4) == static_cast<int>(xxh3(id.data(), id.size()) % 4) + 1);
    ++sizes[static_cast<size_t>(shard_of(id, 4)) - 1];
  }
  for (const int size : sizes) CHECK(size > 200);
  CHECK(shard_of("anything", 1) == 1);
}

TEST_CASE("bad lines become error records and the others are answered") {
  const TempDir folder;
  const std::string input =
      "\xEF\xBB\xBF{\"id\":\"first\",\"prompt\":\"Once\",\"max_tokens\":2}\r\n"
      "\r\n"
      "{\"id\":\"bytes\",\"prompt\":\"\xFF\"}\r\n"                    // line 3
      "nonsense\r\n"                                                  // 4
      "{\"id\":\"first\",\"prompt\":\"again\",\"max_tokens\":2}\r\n"  // 5
      "{\"id\":\"long\",\"prompt\":\"" +
      [] {
        std::string words;
        for (int i = 0; i < 300; ++i) words += "and so ";
        return words;
      }() +
      "\"}\n"                                                      // 6
      "{\"id\":\"n\",\"prompt\":\"x\",\"n\":300}\n"                // 7
      "{\"id\":\"ids\",\"prompt\":[4096]}\n"                       // 8
      "{\"prompt\":\"A fox\",\"max_tokens\":2}\n"                  // 9
      "{\"id\":\"last\",\"prompt\":\"A king\",\"max_tokens\":2}";  // 10, no newline
  const std::string in = write_file(folder, "in.jsonl", input);
  const std::string out = folder / "out.jsonl";
  const Result result = run_batch_to(7, in, out, {"-c", "256"});
  CHECK(result.err.find("3 answered, 6 failed") != std::string::npos);
  CHECK(result.err.find("\nedgellm: the first failure: line 3 is not UTF-8") != std::string::npos);
  const Records records = read_records(out);
  REQUIRE(records.size() == 9);
  const auto failed = [&](const std::string& id, int line, const std::string& code,
                          const std::string& part) {
    INFO(id);
    REQUIRE(records.contains(id));
    const auto& record = records.at(id);
    INFO(record.dump());
    CHECK(record["line"] == line);
    CHECK(record["error"]["code"] == code);
    const std::string message = record["error"]["message"];
    CHECK(message.starts_with("line " + std::to_string(line)));
    CHECK(message.find(part) != std::string::npos);
  };
  failed("line-3", 3, "invalid_request", "not UTF-8 at byte 24");
  failed("line-4", 4, "invalid_request", "not valid JSON");
  failed("line-5", 5, "duplicate_id", "the id \"first\" is that of line 1");
  failed("long", 6, "prompt_does_not_fit", "context");
  failed("n", 7, "invalid_request", "n is 300");
  failed("ids", 8, "invalid_request", "4096");
  CHECK(!answer_of(records.at("first")).empty());
  CHECK(!answer_of(records.at("line-9")).empty());
  CHECK(!answer_of(records.at("last")).empty());

  const std::string strict = folder / "strict.jsonl";
  const Result stopped = run_batch_to(7, in, strict, {"-c", "256", "--strict"});
  CHECK(stopped.err.find("line 3 is not UTF-8") != std::string::npos);
  CHECK(stopped.err.find("the first failure: ") == std::string::npos);
  CHECK(read_records(strict).contains("line-3"));
  CHECK(!read_records(strict).contains("line-4"));
}

TEST_CASE("huge lines and ids lose no record, and memory is bounded") {
  const TempDir folder;
  const std::string huge(15 << 20, 'i');
  std::string ids = "[1";
  for (int i = 0; i < 4'000'000; ++i) ids += ",1";
  ids += "]";
  const std::string in =
      write_file(folder, "in.jsonl",
                 "{\"id\":\"" + huge + "\",\"prompt\":\"x\"}\n{\"id\":\"" + huge +
                     "\",\"prompt\":\"x\"}\n{\"prompt\":" + ids + "}\n{\"prompt\":\"" +
                     std::string(17 << 20, 'x') + "\"}\n{\"id\":\"good\",\"prompt\":\"x\"}\n");
  for (const char* order : {"--ordered", "--strict"}) {
    const bool is_strict = std::string(order) == "--strict";
    const std::string out = folder / "out.jsonl";
    const Result result = run_batch_to(7, in, out, {"-n", "1", "--restart", order});
    if (!kSanitized) CHECK(result.peak_bytes < size_t{300} << 20);
    const Records records = read_records(out);
    if (is_strict) continue;
    REQUIRE(records.size() == 5);
    CHECK(!answer_of(records.at("good")).empty());
    const auto message = [&](const char* id) {
      return records.at(id)["error"]["message"].get<std::string>();
    };
    CHECK(message("line-1").find("expected at most 1024") != std::string::npos);
    CHECK(message("line-2").find("expected at most 1024") != std::string::npos);
    CHECK(message("line-3").find("more than 2000000 values") != std::string::npos);
    CHECK(message("line-4") == "line 4 is longer than 16 MiB");
  }
}

TEST_CASE("a model without tokenizer or template fails requests, not the batch") {
  const TempDir folder;
  const std::string model = tiny_model(folder);
  const std::string in =
      write_file(folder, "in.jsonl",
                 "{\"id\":\"text\",\"prompt\":\"x\"}\n"
                 "{\"id\":\"chat\",\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}\n"
                 "{\"id\":\"stop\",\"prompt\":[1],\"stop\":\"x\"}\n"
                 "{\"id\":\"ids\",\"prompt\":[1,2],\"max_tokens\":3}\n");
  const std::string out = folder / "out.jsonl";
  const Result result = run({"batch", model, "-i", in, "-o", out});
  CHECK(result.exit_code == 7);
  const Records records = read_records(out);
  CHECK(records.at("text")["error"]["message"].get<std::string>().find("list of token ids") !=
        std::string::npos);
  CHECK(records.at("chat")["error"]["code"] == "invalid_request");
  CHECK(records.at("stop")["error"]["code"] == "invalid_request");
  const auto& choice = records.at("ids")["response"]["body"]["choices"][0];
  CHECK(choice["text"].is_null());
  CHECK(choice["token_ids"].size() == 3);
  const std::string ids = write_file(folder, "ids.json", "[1, 2]");
  CHECK(choice["token_ids"] ==
        json_of(run({"run", model, "--ids-file", ids, "-n", "3", "--json"}))["token_ids"]);
}

}  // namespace
}  // namespace edgellm::test
