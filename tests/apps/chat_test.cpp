// run --chat and edgellm chat: templates, special tokens, and the cache kept between turns.
#include <algorithm>
#include <catch2/catch.hpp>
#include <csignal>
#include <cstdio>
#include <cstring>

#include "base/hash.h"
#include "tests/apps/program.h"
#include "tests/apps/terminal_session.h"

namespace edgellm::test {
namespace {

using Ids = std::vector<int32_t>;

constexpr int32_t kBos = 4093;
constexpr int32_t kEndOfTurn = 4095;

nlohmann::json chat_json(const std::string& message, std::vector<std::string> args = {}) {
  args.insert(args.begin(), {"run", demo_model(), "--chat", "--json", "-p", message});
  const Result result = run(args);
  INFO(result.err);
  REQUIRE(result.exit_code == 0);
  return json_of(result);
}

Ids ids_of_text(const std::string& text) {
  return json_of(run({"tokenize", demo_model(), "--json", "--no-special", text}))["ids"];
}

TEST_CASE("run --chat puts the message into the model's template") {
  const std::string prompt =
      "<|begin_of_text|>System: Be kind.<|eot_id|>User: Tell me a story.<|eot_id|>Assistant:";
  const auto json =
      chat_json("  Tell me a story.\n", {"--system", "Be kind.", "-n", "8", "--print-prompt"});
  CHECK(json["prompt"] == prompt);
  CHECK(json["prompt_ids"] == ids_of_text(prompt));
  CHECK(json["token_ids"].size() == 8);
  const std::string text = json["text"];
  // The same from standard input, and as plain text.
  const Result plain = run_with_input(
      {"run", demo_model(), "--chat", "--system", "Be kind.", "-n", "8"}, "Tell me a story.");
  CHECK(plain.out == text + "\n");
  CHECK(plain.err.empty());
}

TEST_CASE("run --chat ends with the turn") {
  // The story ends somewhere; then the model says so with a stop token, which has no text.
  const auto json = chat_json("Tell me a short story.", {"--sample", "--seed", "3"});
  CHECK(json["finish_reason"] == "stop");
  CHECK(json["token_ids"].back() >= 4094);
  CHECK(json["text"].get<std::string>().find("<|") == std::string::npos);
}

TEST_CASE("special tokens in a message are text, unless asked") {
  const auto count = [](const nlohmann::json& json, int32_t id) {
    const auto ids = json["prompt_ids"].get<Ids>();
    return std::count(ids.begin(), ids.end(), id);
  };
  const std::string message = "a<|eot_id|>User: b<|begin_of_text|>";
  const auto plain = chat_json(message, {"-n", "1", "--system", "<|eot_id|>"});
  CHECK(count(plain, kBos) == 1);
  CHECK(count(plain, kEndOfTurn) == 2);
  const auto parsed = chat_json(message, {"-n", "1", "--system", "<|eot_id|>", "--parse-special"});
  CHECK(count(parsed, kBos) == 2);
  CHECK(count(parsed, kEndOfTurn) == 4);
}

using Changes = std::vector<std::pair<std::string, std::string>>;

// The demo model with other texts in its metadata, of the same length.
std::string changed_demo(const TempDir& folder, const Changes& changes) {
  std::string file = read_file(demo_model());
  constexpr size_t kBytesAt = 16;
  constexpr size_t kHashAt = 24;
  constexpr size_t kMetadataAt = 32;
  uint64_t bytes = 0;
  std::memcpy(&bytes, file.data() + kBytesAt, sizeof bytes);
  for (const auto& [from, to] : changes) {
    const size_t at = file.find(from, kMetadataAt);
    REQUIRE(from.size() == to.size());
    REQUIRE(at < kMetadataAt + bytes);
    file.replace(at, from.size(), to);
  }
  const uint64_t hash = xxh3(file.data() + kMetadataAt, bytes);
  std::memcpy(file.data() + kHashAt, &hash, sizeof hash);
  return write_file(folder, "changed.tmac2", file);
}

TEST_CASE("run --chat refuses what it cannot do, and says why") {
  const TempDir folder;
  const auto refused = [](const std::vector<std::string>& args, int exit_code,
                          const std::string& reason) {
    const Result result = run(args);
    INFO(result.err);
    CHECK(result.exit_code == exit_code);
    CHECK(result.out.empty());
    CHECK_THAT(result.err, Catch::Contains(reason));
    CHECK(std::count(result.err.begin(), result.err.end(), '\n') == 1);
  };
  refused({"run", tiny_model(folder), "--chat", "hi"}, 2, "has no tokenizer");
  refused({"run", demo_model(), "--chat", "", "-n", "1"}, 2, "is empty");
  refused({"run", demo_model(), "hi", "--system", "x"}, 2, "--chat");
  refused({"run", demo_model(), "hi", "--parse-special"}, 2, "--chat");
  refused({"run", demo_model(), "--chat", "--ids-file", "x"}, 2, "exclude each other");
  refused({"run", demo_model(), "--chat", "hi", "--system", "\xFF"}, 2, "UTF-8");
  refused({"run", demo_model(), "--chat", "hi", "-c", "5"}, 6, "context");

  const std::string base = changed_demo(folder, {{"\"chat_template\"", "\"chat_templat_\""}});
  for (const char* command : {"run", "chat"}) {
    std::vector<std::string> args = {command, base};
    if (args[0] == "run") args.insert(args.end(), {"--chat", "hi"});
    refused(args, 2, "has no chat template: it is a base model");
  }
  refused({"run", changed_demo(folder, {{"endfor", "endfox"}}), "--chat", "hi"}, 3,
          "chat template, line 1: ");
  refused({"run", changed_demo(folder, {{"| trim", "| trix"}}), "--chat", "hi"}, 4,
          "chat template, line 1: the filter \"trix\"");
  // Files of older versions do not say what the special tokens of the template are, but for the
  // BOS.
  const Changes older = {{"\"special_tokens\"", "\"special_tokenz\""}};
  CHECK(run({"run", changed_demo(folder, older), "--chat", "hi", "-n", "3"}).out ==
        run({"run", demo_model(), "--chat", "hi", "-n", "3"}).out);
  Changes with_eos = older;
  with_eos.emplace_back("bos_token", "eos_token");
  refused({"run", changed_demo(folder, with_eos), "--chat", "hi"}, 4,
          "does not say what the eos_token");
}

// ---- edgellm chat

Result sampled_chat(const std::string& input, std::vector<std::string> args = {}) {
  args.insert(args.begin(), {"chat", demo_model()});
  return run_with_input(args, input);
}

Result chat(const std::string& input, std::vector<std::string> args = {}) {
  args.emplace_back("--greedy");
  return sampled_chat(input, args);
}

// The numbers of one line of --verbose.
struct Turn {
  int fed, cached, answer, context;
};
std::vector<Turn> turns_of(const std::string& err) {
  std::vector<Turn> turns;
  for (size_t at = err.find("prompt "); at != std::string::npos; at = err.find("prompt ", at + 1)) {
    Turn turn = {};
    REQUIRE(std::sscanf(err.c_str() + at, "prompt %d tokens (%d cached)", &turn.fed,
                        &turn.cached) == 2);
    const size_t answer = err.find("answer ", at);
    REQUIRE(std::sscanf(err.c_str() + answer, "answer %d tokens", &turn.answer) == 1);
    const size_t context = err.find("context ", at);
    REQUIRE(std::sscanf(err.c_str() + context, "context %d of", &turn.context) == 1);
    turns.push_back(turn);
  }
  return turns;
}

TEST_CASE("chat answers a line of a pipe after the other") {
  const Result result = chat("Hello\n\nTell me a story.", {"-n", "10"});
  CHECK(result.exit_code == 0);
  CHECK(result.err.empty());
  const std::string first = chat_json("Hello", {"-n", "10"})["text"];
  CHECK_THAT(result.out, Catch::StartsWith(first + "\n"));
  CHECK(std::count(result.out.begin(), result.out.end(), '\n') >= 2);
  CHECK(chat("", {}).exit_code == 0);
  CHECK(chat("/bye\nHello\n", {}).out.empty());
}

TEST_CASE("chat samples with the model's own defaults, every answer with a seed of its own") {
  const std::string question = "Tell me a story.\n";
  const std::vector<std::string> n = {"-n", "40"};
  const auto with = [&](std::vector<std::string> args) {
    args.insert(args.end(), n.begin(), n.end());
    return sampled_chat(question, args).out;
  };
  CHECK(with({}) != with({}));
  CHECK(with({"--seed", "5"}) == with({"--seed", "5"}));
  CHECK(with({"--seed", "5"}) == with({"--seed", "5", "--sample"}));
  CHECK(with({"--seed", "5"}) == with({"--seed", "5", "--temp", "0.7", "--top-p", "0.9", "--top-k",
                                       "50", "--repeat-penalty", "1.1"}));
  // Greedy is asked for: without anything of the model's, or with its repetition penalty.
  const auto greedy = [&](const std::string& penalty) {
    return chat_json("Tell me a story.", {"-n", "40", "--repeat-penalty", penalty})["text"]
               .get<std::string>() +
           "\n";
  };
  CHECK(with({"--greedy"}) == greedy("1"));
  CHECK(with({"--temp", "0"}) == greedy("1.1"));
  CHECK(greedy("1") != greedy("1.1"));
  check_refused(run({"chat", demo_model(), "--greedy", "--sample"}), 2, "exclude each other");
  CHECK_THAT(run({"chat", "--help"}).out, Catch::Contains("0: off [the model's]"));
  CHECK_THAT(run({"run", "--help"}).out,
             Catch::Contains("0: off [0]") && Catch::Contains("transformers' greedy generation"));

  // The same question twice in one conversation that begins anew.
  const std::string twice = sampled_chat(question + "/clear\n" + question, n).out;
  const std::string first = twice.substr(0, twice.size() / 2);
  CHECK(twice != first + first);

  const TempDir folder;
  const std::string silent = changed_demo(
      folder, {{"\"do_sample\":true", "\"do_samplE\":true"}, {"\"sampling\"", "\"samplinG\""}});
  const Result plain = run_with_input({"chat", silent, "-n", "5"}, question);
  CHECK_THAT(plain.err, Catch::Contains("does not say how to sample, so answers are greedy"));
  CHECK(plain.out == chat(question, {"-n", "5"}).out);
}

TEST_CASE("an answer in a chat begins without a space") {
  const std::string text = chat_json("Hello", {"-n", "10"})["text"];
  CHECK_THAT(text, Catch::StartsWith("Hello!"));
  CHECK(run({"run", demo_model(), "--chat", "Hello", "-n", "10"}).out == text + "\n");
  CHECK(chat("Hello\n", {"-n", "10"}).out == text + "\n");
  // Printed behind what the template wrote, the space stands between the two.
  CHECK_THAT(run({"run", demo_model(), "--chat", "Hello", "-n", "10", "--print-prompt"}).out,
             Catch::EndsWith("Assistant: " + text + "\n"));
}

TEST_CASE("chat feeds only what is new, and answers as one run of the whole would") {
  const Result result = chat("Tell me a story.\nAnd then?\nAnd then?\n", {"-n", "12", "--verbose"});
  const auto turns = turns_of(result.err);
  REQUIRE(turns.size() == 3);
  CHECK(turns[0].cached == 0);
  for (size_t i = 1; i < turns.size(); ++i) {
    // All of the turn before but its last token, which was chosen and never fed.
    CHECK(turns[i].cached == turns[i - 1].context - 1);
    CHECK(turns[i].fed < 20);
  }

  // The third answer from scratch: the ids of what was said so far.
  std::vector<std::string> answers;
  size_t begin = 0;
  for (int i = 0; i < 3; ++i) {
    const size_t end = result.out.find('\n', begin);
    answers.push_back(result.out.substr(begin, end - begin));
    begin = end + 1;
  }
  const TempDir folder;
  std::string prompt = "<|begin_of_text|>User: Tell me a story.<|eot_id|>Assistant: " + answers[0];
  prompt += "<|eot_id|>User: And then?<|eot_id|>Assistant: " + answers[1];
  prompt += "<|eot_id|>User: And then?<|eot_id|>Assistant:";
  const Ids ids = ids_of_text(prompt);
  REQUIRE(ids.size() == static_cast<size_t>(turns[2].fed + turns[2].cached));
  const auto whole = json_of(run({"run", demo_model(), "--json", "-n", "12", "--ids-file",
                                  write_file(folder, "ids", nlohmann::json(ids).dump())}));
  CHECK(whole["text"] == " " + answers[2]);
}

TEST_CASE("chat: commands") {
  const std::string alone = chat("Hello\n", {"-n", "6"}).out;
  const Result cleared = chat("Tell me.\n/clear\nHello\n", {"-n", "6", "--verbose"});
  CHECK_THAT(cleared.out, Catch::EndsWith("\n" + alone));
  CHECK(turns_of(cleared.err)[1].cached == 4);  // the BOS and "User:"

  const Result set = sampled_chat("/set max-tokens 3\n/set temp 0.5\n/set seed 7\n/set\nHello\n");
  CHECK_THAT(set.err, Catch::Contains("/set temp 0.5") && Catch::Contains("/set seed 7"));
  CHECK(set.out == sampled_chat("Hello\n", {"-n", "3", "--temp", "0.5", "--seed", "7"}).out);
  CHECK(chat("/set system Be kind.\nHello\n", {"-n", "6"}).out ==
        chat("Hello\n", {"-n", "6", "--system", "Be kind."}).out);
  CHECK_THAT(chat("/help\n").err, Catch::Contains("/clear"));

  // What begins with a slash but is no command, and what has several lines.
  CHECK(chat("//etc\n", {"-n", "4"}).out ==
        chat_json("/etc", {"-n", "4"})["text"].get<std::string>() + "\n");
  CHECK(chat("\"\"\"\ntwo\nlines\n\"\"\"\n", {"-n", "4"}).out ==
        chat_json("two\nlines", {"-n", "4"})["text"].get<std::string>() + "\n");

  for (const std::string wrong :
       {"/nope", "/set nope 1", "/set temp x", "/set top-p 2", "/set max-tokens 0", "/clear x"}) {
    INFO(wrong);
    const Result result = chat(wrong + "\n");
    CHECK(result.exit_code == 2);
    CHECK(result.out.empty());
    CHECK(std::count(result.err.begin(), result.err.end(), '\n') == 1);
  }
}

TEST_CASE("chat: /regenerate, /save, /load and the ways to leave") {
  const TempDir folder;
  const std::string file = (folder / "talk.json");
  // A given seed counts up, so the second answer is that of the next seed.
  const auto seed = [](const char* value) {
    return sampled_chat("Tell me a story.\n", {"-n", "20", "--seed", value}).out;
  };
  REQUIRE(seed("3") != seed("4"));
  CHECK(sampled_chat("Tell me a story.\n/regenerate\n", {"-n", "20", "--seed", "3"}).out ==
        seed("3") + seed("4"));
  // The second turn is made again as it was, from what the cache holds of the first.
  const Result again =
      chat("Hello\nTell me.\n/regenerate\n/regenerate\n", {"-n", "8", "--verbose"});
  const auto turns = turns_of(again.err);
  REQUIRE(turns.size() == 4);
  CHECK(turns[2].fed + turns[2].cached == turns[1].fed + turns[1].cached);
  CHECK(turns[2].fed == 1);
  CHECK(turns[3].fed == 1);
  CHECK_THAT(chat("/regenerate\n").err, Catch::Contains("there is no answer yet"));

  // What was saved is continued as if it had not ended.
  const std::string whole = chat("Hello\nTell me.\n", {"-n", "8", "--system", "Be kind."}).out;
  const std::string first =
      chat("Hello\n/save " + file + "\n", {"-n", "8", "--system", "Be kind."}).out;
  const auto saved = nlohmann::json::parse(read_file(file));
  REQUIRE(saved["messages"].size() == 3);
  CHECK(saved["messages"][0] == nlohmann::json({{"role", "system"}, {"content", "Be kind."}}));
  CHECK(saved["messages"][1]["content"] == "Hello");
  CHECK(first + chat("/load " + file + "\nTell me.\n", {"-n", "8"}).out == whole);
  const auto refused = [&](const std::string& text, const std::string& part) {
    const Result result = chat("/load " + write_file(folder, "bad.json", text) + "\n");
    CHECK(result.exit_code == 2);
    CHECK_THAT(result.err, Catch::Contains(part));
  };
  refused("[]", "bad.json");
  refused(R"({"messages": [{"role": "assistant", "content": "x"}]})", "expected \"user\"");
  refused(R"({"messages": [{"role": "user", "content": "x"}]})", "has no answer");
  CHECK_THAT(chat("/load\n").err, Catch::Contains("/load needs a file: /load FILE"));
  CHECK_THAT(chat("/load /nowhere\n").err, Catch::Contains("cannot read /nowhere"));
  CHECK_THAT(chat("/save /nowhere/x\n").err, Catch::Contains("/nowhere"));

  for (const char* leave : {"/bye", "/exit", "/quit"}) {
    const Result result = chat(std::string(leave) + "\nHello\n");
    CHECK(result.exit_code == 0);
    CHECK(result.out.empty());
  }
  CHECK(chat("/set max-tokens\n").err ==
        "edgellm: '' is not a number of tokens; use 1 or more, or -1 to generate until the model "
        "stops or the context is full\n");
  CHECK(chat("/set temp hot\n").err == "edgellm: temp: 'hot' is not a number\n");
}

TEST_CASE("chat at a terminal: what is pasted is one message, of all its lines") {
  const TempDir folder;
  const std::string file = (folder / "talk.json");
  TerminalSession session({"chat", demo_model(), "--greedy", "-n", "4"});
  session.read_until("\x1b[?2004h");
  session.read_until(">>> ");
  // Terminals send newlines as carriage returns. Nothing is sent before Enter, and typing
  // continues.
  session.type("See: \x1b[200~one\r\ttwo \x07\xC3\xA9\rthree\n\x1b[201~!");
  session.read_until("three");
  session.type("\r");
  session.read_until("\r\n");
  session.read_until(">>> ");
  session.type("/save " + file + "\r");
  session.read_until("wrote ");
  session.read_until(">>> ");
  const auto saved = nlohmann::json::parse(read_file(file));
  REQUIRE(saved["messages"].size() == 2);
  CHECK(saved["messages"][0]["content"] == "See: one\n\ttwo \u00e9\nthree!");
  // An empty line and Ctrl-C.
  session.type("\x03");
  session.read_until("/bye or Ctrl-D ends the conversation");
  session.read_until(">>> ");
  session.type("\x04");
  session.read_until("\x1b[?2004l");
  CHECK(session.wait() == 0);
}

TEST_CASE("chat at a terminal: what is pasted during an answer is one message as well") {
  const TempDir folder;
  const std::string file = (folder / "talk.json");
  TerminalSession session({"chat", demo_model(), "--greedy", "-n", "40"});
  // Between two prompts the terminal is never told to send pastes unmarked.
  session.read_until("\x1b[?2004h");
  session.read_until(">>> ");
  session.type("Go on\r");
  std::string during = session.read_until("\r\n");
  session.type("\x1b[200~one\rtwo\x1b[201~\r");
  during += session.read_until(">>> ");
  during += session.read_until("two");
  session.read_until(">>> ");
  CHECK_THAT(during, !Catch::Contains("\x1b[?2004l"));
  session.type("/save " + file + "\r");
  session.read_until("wrote ");
  session.type("\x04");
  CHECK(session.wait() == 0);
  const auto saved = nlohmann::json::parse(read_file(file));
  REQUIRE(saved["messages"].size() == 4);
  CHECK(saved["messages"][2]["content"] == "one\ntwo");
}

TEST_CASE("chat says when the context is full") {
  const Result full = chat("Hello\n", {"-c", "20"});
  CHECK(full.exit_code == 0);
  CHECK_THAT(full.err, Catch::Contains("the context of 20 tokens is full"));
  const Result beyond = chat("Hello\nAgain\n", {"-c", "20"});
  CHECK(beyond.exit_code == 6);
  CHECK_THAT(beyond.err, Catch::Contains("/clear begins a new one"));
  CHECK(chat("Hello\n/clear\nAgain\n", {"-c", "20"}).exit_code == 0);
}

TEST_CASE("chat refuses models that cannot chat") {
  const TempDir folder;
  CHECK(run({"chat", tiny_model(folder)}).exit_code == 2);
  CHECK(run({"chat", demo_model(), "--top-k", "3", "--greedy"}).exit_code == 2);
}

TEST_CASE("chat at a terminal: lines are edited, Ctrl-C ends an answer, Ctrl-D leaves") {
  TerminalSession session({"chat", demo_model(), "--verbose", "--greedy"});
  session.read_until(">>> ");
  session.type("/set max-tokens 4\r");
  session.read_until(">>> ");
  // Backspace takes a letter away, and UTF-8 arrives as it is.
  session.type("Hellp\x7Fo, \xC3\xA9t\xC3\xA9\r");
  CHECK_THAT(session.read_until(">>> "), Catch::Contains("answer 4 tokens"));
  // The line before, from memory.
  session.type("\x1B[A\r");
  CHECK_THAT(session.read_until("context"),
             Catch::Contains("Hello, \xC3\xA9t\xC3\xA9") && Catch::Contains(" cached)"));
  session.read_until(">>> ");
  // Two lines are one message.
  session.type("one \\\r");
  session.read_until("... ");
  session.type("two\r");
  CHECK_THAT(session.read_until(">>> "), Catch::Contains("answer 4 tokens"));
  // Ctrl-C forgets what was typed.
  session.type("half a line\x03");
  session.read_until(">>> ");
  // An error is told, and nothing else happens.
  session.type("/nope\r");
  CHECK_THAT(session.read_until(">>> "), Catch::Contains("no command /nope"));
  // Ctrl-C in an answer that would fill the context.
  session.type("/set max-tokens -1\r");
  session.read_until(">>> ");
  session.type("Go on\r");
  session.read_until("\r\n");
  session.read_until(" ");
  session.type("\x03");
  const std::string stopped = session.read_until(">>> ");
  CHECK_THAT(stopped, Catch::Contains("answer ") && !Catch::Contains("is full"));
  // The conversation goes on behind what was said.
  session.type("/set max-tokens 2\r");
  session.read_until(">>> ");
  session.type("And?\r");
  const std::string last = session.read_until(">>> ");
  CHECK(turns_of(last)[0].cached == turns_of(stopped)[0].context - 1);
  session.type("\x04");
  CHECK(session.wait() == 0);
}

TEST_CASE("chat at a terminal: what is typed during an answer waits for its end") {
  TerminalSession session({"chat", demo_model(), "--verbose", "--greedy"});
  session.read_until(">>> ");
  session.type("/set max-tokens 40\r");
  session.read_until(">>> ");
  session.type("Go on\r");
  session.read_until("\r\n");
  session.type("And?\r");
  // Not shown in the middle of the answer, but at the prompt behind it.
  CHECK_THAT(session.read_until(">>> "), !Catch::Contains("And?"));
  CHECK_THAT(session.read_until("\r\n"), Catch::Contains("And?"));
  session.type("\x04");
  CHECK_THAT(session.read_until(">>> "), Catch::Contains("answer 40 tokens"));
  CHECK(session.wait() == 0);
}

TEST_CASE("chat at a terminal ends by /bye and by signals") {
  TerminalSession session({"chat", demo_model()});
  session.read_until(">>> ");
  session.type("/bye\r");
  CHECK(session.wait() == 0);

  Program piped({"chat", demo_model()}, {.in_path = ""});
  piped.write_input("Hello\n");
  piped.read_output(1);
  piped.send_signal(SIGINT);
  CHECK(piped.wait().exit_code == 130);
}

}  // namespace
}  // namespace edgellm::test
