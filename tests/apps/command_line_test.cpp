// What people type: names of other programs, words without quotes, and command lines that are
// wrong.
#include <catch2/catch.hpp>

#include "tests/apps/program.h"
#include "tests/apps/terminal_session.h"
#include "tests/support/environment.h"

namespace edgellm::test {
namespace {

const std::string kModel = demo_model();

struct WrongLine {
  std::vector<std::string> args;
  std::string message;  // all of it
};

TEST_CASE("every wrong command line says what was wrong, what was expected, what to type") {
  const std::string run_help = "; see edgellm run --help";
  const std::vector<WrongLine> lines = {
      // Commands.
      {{"rnu", "m"}, "unknown command rnu; did you mean run?"},
      {{"server"}, "unknown command server; edgellm serve answers requests over HTTP"},
      {{"push", "m"}, "unknown command push; edgellm uploads nothing"},
      {{"--bogus"}, "unknown option --bogus; see edgellm --help"},
      {{"--json"}, "--json requires --version; see edgellm --help"},
      {{kModel},
       kModel + " is a model, and a command is missing before it; type edgellm run " + kModel +
           " \"some text\", or edgellm chat " + kModel},
      // Options that there are not.
      {{"run", "m", "--tmep", "1"}, "unknown option --tmep; did you mean --temp?"},
      {{"run", "m", "-temp", "1"}, "unknown option -temp; did you mean --temp?"},
      {{"run", "m", "-prompt", "x"}, "unknown option -prompt; did you mean --prompt?"},
      {{"run", "m", "-file", "x"}, "unknown option -file; did you mean --file?"},
      {{"run", "m", "-ngl", "99", "x"},
       "unknown option -ngl; a model runs on the GPU as a whole; --device cuda or --device cpu "
       "chooses" +
           run_help},
      {{"run", "m", "-hello"},
       "unknown option -hello; a text that begins with - stands behind --" + run_help},
      {{"run", "m", "-vx"},
       "unknown option -vx; a text that begins with - stands behind --" + run_help},
      {{"info", "m", "--xyzzy=3"}, "unknown option --xyzzy; see edgellm info --help"},
      // Values.
      {{"run", "m", "x", "-n", "3.5"}, "--max-tokens: '3.5' is not a whole number" + run_help},
      {{"run", "m", "x", "-n", " 3"}, "--max-tokens: ' 3' is not a whole number" + run_help},
      {{"run", "m", "x", "-n", ""}, "--max-tokens: '' is not a whole number" + run_help},
      {{"run", "m", "x", "-n", "3000000000"},
       "--max-tokens: '3000000000' is not a whole number from -2147483648 to 2147483647" +
           run_help},
      {{"run", "m", "x", "-n"}, "-n needs a value: -n N" + run_help},
      {{"run", "m", "x", "--temp"}, "--temp needs a value: --temp T" + run_help},
      {{"run", "m", "x", "--max_tokens"}, "--max_tokens needs a value: --max_tokens N" + run_help},
      {{"run", "x", "-m"}, "-m needs a value: -m MODEL" + run_help},
      {{"run", "m", "x", "--threads", "two"},
       "--threads: 'two' is not a whole number from 1 to 1024" + run_help},
      {{"run", "m", "x", "-t", "0"},
       "--threads: '0' is not a whole number from 1 to 1024" + run_help},
      {{"run", "m", "x", "-c", " 1"},
       "--ctx: ' 1' is not a whole number from 1 to 2147483647" + run_help},
      {{"run", "m", "x", "--json=1"}, "--json takes no value, but has '1'" + run_help},
      {{"run", "m", "x", "--temp", "hot"}, "--temp: 'hot' is not a number" + run_help},
      {{"chat", "m", "--temp", "hot"}, "--temp: 'hot' is not a number; see edgellm chat --help"},
      {{"batch", "m", "-i", "x", "-o", "y", "--top-k", "1.5"},
       "--top-k: '1.5' is not a whole number; see edgellm batch --help"},
      {{"run", "m", "x", "--seed", "-2"},
       "--seed: '-2' is neither random nor a whole number from 0 to 18446744073709551615" +
           run_help},
      {{"run", "m", "x", "--kv-type", "i61"},
       "--kv-type: 'i61' is not one of i16, i8, f32; did you mean i16?"},
      {{"batch", "m", "-i", "x", "-o", "y", "--kv-memory", "3q"},
       "--kv-memory: '3q' is not a size; use 8G or 512MiB for example; see edgellm batch --help"},
      {{"batch", "m", "-i", "x", "-o", "y", "--kv-memory", "99999999T"},
       "--kv-memory: '99999999T' is not a size; use 8G or 512MiB for example; see edgellm batch "
       "--help"},
      {{"batch", "m", "-i", "x", "-o", "y", "--shard", "5"},
       "--shard: '5' is not a shard; use I/N, for example 1/4, or auto; see edgellm batch --help"},
      {{"bench", "m", "-p", "1,x"},
       "--n-prompt: 'x' is not a whole number from 0 to 16777216; see edgellm bench --help"},
      {{"bench", "m", "-p", "1,"},
       "--n-prompt: '' is not a whole number from 0 to 16777216; see edgellm bench --help"},
      // Options that want or exclude each other.
      {{"run", "m", "x", "--stream"}, "--stream requires --json" + run_help},
      {{"run", "m", "x", "--system", "y"}, "--system requires --chat" + run_help},
      {{"run", "m", "x", "-p", "y"},
       "PROMPT ('x') and --prompt exclude each other; give one of them" + run_help},
      {{"run", "m", "-p", "y", "-f", "x"},
       "--prompt and --file exclude each other; give one of them" + run_help},
      // Too few words, and too many.
      {{"run"}, "MODEL is required; usage: edgellm run [OPTIONS] MODEL [PROMPT]" + run_help},
      {{"convert", "x"},
       "--output is required; usage: edgellm convert [OPTIONS] SRC -o OUT.tmac2; see edgellm "
       "convert --help"},
      {{"info", "m", "m2", "m3"},
       "unexpected 'm2' 'm3'; usage: edgellm info [OPTIONS] MODEL; see edgellm info --help"},
      {{"perplexity", "m", "book.txt"},
       "unexpected 'book.txt'; a file with text is named by -f FILE; see edgellm perplexity "
       "--help"},
      {{"logits", "m", "hello"},
       "unexpected 'hello'; a text is given by -p TEXT or -f FILE; see edgellm logits --help"},
      {{"chat", "m", "hello"},
       "unexpected 'hello'; a message is typed once the conversation has begun; edgellm run MODEL "
       "--chat \"some text\" answers a single one; see edgellm chat --help"},
      {{"completion", "bash", "extra"},
       "unexpected 'extra'; usage: edgellm completion [OPTIONS] SHELL; see edgellm completion "
       "--help"},
      {{"devices", "extra"},
       "unexpected 'extra'; usage: edgellm devices [OPTIONS]; see edgellm devices --help"},
  };
  for (const WrongLine& line : lines) {
    const Result result = run(line.args);
    INFO(Catch::StringMaker<std::vector<std::string>>::convert(line.args));
    CHECK(result.exit_code == 2);
    CHECK(result.err == "edgellm: " + line.message + "\n");
  }
}

nlohmann::json object_of(std::vector<std::string> args) {
  args.insert(args.end(), {"--json", "--ignore-eos"});
  const Result result = run(args);
  INFO(result.err);
  REQUIRE(result.exit_code == 0);
  return json_of(result);
}

TEST_CASE("names of other programs' options are taken, and shown in no help") {
  const auto expected =
      object_of({"run", kModel,      "Once", "-n",      "9",    "-c",
                 "64",  "--threads", "1",    "--temp",  "0.8",  "--top-k",
                 "5",   "--top-p",   "0.9",  "--min-p", "0.01", "--repeat-penalty",
                 "1.2", "--seed",    "3"});
  const auto same = [&](const std::vector<std::string>& args) {
    const auto json = object_of(args);
    for (const char* field : {"token_ids", "sampling", "context", "threads"}) {
      CHECK(json[field] == expected[field]);
    }
  };
  same({"run",  "-m",          kModel, "-p",
        "Once", "--n-predict", "9",    "--ctx-size",
        "64",   "-t",          "1",    "--temperature",
        "0.8",  "--top_k",     "5",    "--top_p",
        "0.9",  "--min_p",     "0.01", "--repeat_penalty",
        "1.2",  "-s",          "3"});
  same({"run", "--model", kModel, "Once", "--num_predict=9", "--n_ctx=64", "-t1",
        "--temperature=0.8", "--top-k=5", "--top-p=0.9", "--min-p=0.01", "--repetition_penalty",
        "1.2", "-s=3"});
  CHECK(!run({"run", kModel, "x", "-n", "1", "-v"}).err.empty());
  CHECK(run({"run", kModel, "--chat", "Hi", "-n", "4", "-sys", "Be kind."}).out ==
        run({"run", kModel, "--chat", "Hi", "-n", "4", "--system", "Be kind."}).out);
  const std::string help = run({"run", "--help"}).out;
  for (const char* name : {"-t,", "--n-predict", "--temperature", "--model", "--ctx-size"}) {
    INFO(name);
    CHECK(help.find(name) == std::string::npos);
  }
}

TEST_CASE("of an option that is given twice the last one counts") {
  const auto json =
      object_of({"run", kModel, "-p", "Never", "-p", "Once", "-n", "3", "-n", "4", "--json"});
  CHECK(json["token_ids"].size() == 4);
  CHECK(run({"run", kModel, "x", "-n", "two", "-n", "1"}).exit_code == 0);
  CHECK(json["prompt_ids"] == object_of({"run", kModel, "Once", "-n", "1"})["prompt_ids"]);
}

TEST_CASE("edgellm -v is the version") { CHECK(run({"-v"}).out == run({"--version"}).out); }

TEST_CASE("words behind MODEL are one text") {
  const auto ids = object_of({"run", kModel, "Once upon a time", "-n", "1"})["prompt_ids"];
  CHECK(object_of({"run", kModel, "Once", "upon", "a", "time", "-n", "1"})["prompt_ids"] == ids);
  CHECK(object_of({"run", kModel, "Once", "-n", "1", "upon", "a time"})["prompt_ids"] == ids);
  CHECK(run({"tokenize", kModel, "Once", "upon", "a", "time"}).out ==
        run({"tokenize", kModel, "Once upon a time"}).out);
  // Behind -- words are never options.
  CHECK(run({"tokenize", kModel, "--no-special", "--", "a", "-n", "--json"}).out ==
        run({"tokenize", kModel, "--no-special", "--", "a -n --json"}).out);
}

TEST_CASE("a model without a command is a conversation at a terminal") {
  TerminalSession session({kModel});
  session.read_until(">>> ");
  session.type("\x04");
  CHECK(session.wait() == 0);
}

TEST_CASE("run without a prompt at a terminal says what to type") {
  const Result result = Program({"run", kModel}, {.in_is_terminal = true}).wait();
  CHECK(result.exit_code == 2);
  CHECK(result.err ==
        "edgellm: no prompt; type edgellm run MODEL \"some text\", or edgellm chat MODEL for a "
        "conversation\n");
}

}  // namespace
}  // namespace edgellm::test
