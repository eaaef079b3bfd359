// What goes wrong, and with which exit code: always one line, never a crash.
#include <sys/resource.h>

#include <catch2/catch.hpp>
#include <fstream>

#include "apps/session/golden.h"
#include "apps/session/sampling_choice.h"
#include "base/error.h"
#include "tests/apps/program.h"
#include "tests/support/fixtures.h"
#include "tests/support/hashed_models.h"

namespace edgellm::test {
namespace {

void check_run_refused(std::vector<std::string> args, int exit_code, const std::string& part) {
  args.insert(args.begin(), {"run", demo_model()});
  INFO(Catch::StringMaker<std::vector<std::string>>::convert(args));
  check_refused(run(args), exit_code, part);
}

TEST_CASE("wrong command lines exit with 2") {
  check_refused(run({"rnu"}), 2, "unknown command rnu");
  check_refused(run({"--bogus"}), 2, "--bogus");
  check_refused(run({"run"}), 2, "MODEL is required");
  check_refused(run({"convert", "x"}), 2, "--output is required");
  check_refused(run({"devices", "extra"}), 2, "extra");
  check_run_refused({"-p", "x", "--bogus"}, 2, "--bogus");
  check_run_refused({"-p", "x", "-f", "y"}, 2, "exclude each other");
  check_run_refused({"x", "--ids-file", "y"}, 2, "exclude each other");
  check_run_refused({"-p", "x", "-n", "0"}, 2, "-n 0");
  check_run_refused({"-p", "x", "-n", "-2"}, 2, "-n -2");
  check_run_refused({"-p", "x", "-n", "many"}, 2, "many");
  check_run_refused({"-p", "x", "-n", "99999999999"}, 2, "99999999999");
  check_run_refused({"-p", "x", "-c", "0"}, 2, "--ctx");
  check_run_refused({"-p", "x", "-c", "4096"}, 2, "use at most -c 2048");
  check_run_refused({"-p", "x", "--threads", "0"}, 2, "--threads");
  check_run_refused({"-p", "x", "--kv-type", "q8"}, 2, "'q8' is not one of i16, i8, f32");
  check_run_refused({"-p", "x", "--kv-type", "f16"}, 2,
                    "'f16' is no longer a KV type: i16 took its place");
  check_run_refused({"-p", "x", "--kv-type", "f16"}, 2, "use --kv-type i16");
  check_run_refused({"-p", "x", "--device", "gpu"}, 2, "unknown device gpu");
  check_run_refused({"-p", "x", "--device", "cuda:x"}, 2, "unknown device cuda:x");
  check_run_refused({"-p", "x", "--stop", ""}, 2, "--stop");
  check_run_refused({"-p", "x", "--stop", "ok", "--stop", "a\xff"}, 2,
                    "--stop is not UTF-8 at byte 1; convert it first");
  check_run_refused({"-f", "/nowhere/x"}, 2, "cannot read /nowhere/x");
  check_run_refused({"-f", "/tmp"}, 2, "cannot read /tmp");
}

TEST_CASE("heads that are too wide for codes ask for float32, and their golden takes it") {
  const TempDir folder;
  const std::string model = changed_model(folder, {{"head_dim", 576}});
  const std::string ids = write_file(folder, "ids.json", "[1, 2, 3]");
  const std::vector<std::string> args = {"run", model, "--ids-file", ids, "-n", "4"};
  check_refused(run(args), 4,
                "the model's heads have 576 dimensions, but KV type i16 takes at most 512; use "
                "--kv-type f32");
  std::vector<std::string> with_floats = args;
  with_floats.insert(with_floats.end(), {"--kv-type", "f32"});
  CHECK(run(with_floats).exit_code == 0);
  CHECK(make_golden(model).greedy_ids.size() == 16);
}

TEST_CASE("sampling values that cannot be used") {
  const auto refused = [](std::vector<std::string> args, const std::string& part) {
    args.insert(args.begin(), {"-p", "x", "-n", "1"});
    check_run_refused(args, 2, part);
  };
  refused({"--temp", "-1"}, "(--temp) is -1; use 0 (greedy) or more");
  refused({"--temp", "nan"}, "(--temp) is nan");
  refused({"--temp", "inf"}, "(--temp) is inf");
  refused({"--temp", "warm"}, "--temp: 'warm' is not a number");
  refused({"--temp", "0.7x"}, "'0.7x' is not a number");
  refused({"--temp", ""}, "'' is not a number");
  refused({"--temp", "1", "--top-k", "-1"}, "--top-k is -1");
  refused({"--temp", "1", "--top-k", "1.5"}, "'1.5' is not a whole number");
  refused({"--temp", "1", "--top-k", "4294967296"}, "'4294967296' is not a whole number");
  refused({"--temp", "1", "--top-p", "0"}, "--top-p is 0; use a value above 0 and at most 1");
  refused({"--temp", "1", "--min-p", "1.5"}, "--min-p is 1.5");
  refused({"--repeat-penalty", "0"}, "(--repeat-penalty) is 0");
  refused({"--sample", "--seed", "-2"},
          "'-2' is neither random nor a whole number from 0 to 18446744073709551615");
  refused({"--sample", "--seed", "18446744073709551616"}, "nor a whole number from 0");
  for (const std::string name : {"--top-k", "--top-p", "--min-p", "--seed"}) {
    refused({name, "1"}, name + " changes nothing in a greedy run; add --temp");
  }
  refused({"--logprobs", "2"}, "--logprobs requires --json");
  refused({"--stream"}, "--stream requires --json");
}

TEST_CASE("run --sample needs a model with defaults that can be used") {
  const TempDir folder;
  const std::string ids = write_file(folder, "ids.json", "[1]");
  check_refused(run({"run", tiny_model(folder), "--ids-file", ids, "--sample"}), 2,
                "holds no sampling defaults, so --sample has nothing to take");

  const auto defaults = [](const std::string& json, SamplingChoice flags = {}) {
    flags.model_defaults = true;
    TokenizerInfo info;
    info.sampling_json = json;
    return sampling_options(flags, info, "m.tmac2");
  };
  const auto refused = [&](const std::string& json, ExitCode code, const std::string& part) {
    std::string message;
    try {
      defaults(json);
    } catch (const Error& error) {
      CHECK(error.code() == code);
      message = error.what();
    }
    INFO(message);
    CHECK(message.find(part) != std::string::npos);
  };
  CHECK(defaults(R"({"do_sample": true})").temperature == 1);
  CHECK(defaults(R"({"temperature": 0.6})").temperature == 0.6);
  CHECK(defaults(R"({"top_k": 50})").top_k == 50);
  SamplingChoice flags;
  flags.top_k = 3;
  CHECK(defaults(R"({"top_k": 50, "min_p": 0.5})", flags).top_k == 3);
  CHECK(defaults(R"({"top_k": 50, "min_p": 0.5})", flags).min_p == 0.5);
  // A file that names none: what is given, and transformers' own values.
  SamplingChoice own;
  own.temperature = 0.7;
  CHECK(defaults("{}", own).temperature == 0.7);
  CHECK(defaults("{}", own).top_k == 50);
  CHECK(defaults(R"({"do_sample": false, "top_p": 0.8})", own).top_p == 0.8);
  SamplingChoice only_seed;
  only_seed.seed = 3;
  CHECK_THROWS_AS(defaults("{}", only_seed), Error);
  refused("{}", ExitCode::kUsage, "m.tmac2 holds no sampling defaults");
  refused(R"({"do_sample": false, "top_k": 50})", ExitCode::kUsage, "do_sample is false");
  refused(R"({"top_p": 1.5})", ExitCode::kModelFile, "--top-p is 1.5");
  refused(R"({"top_k": 2.5})", ExitCode::kModelFile, "top_k");
  refused(R"({"temperature": true})", ExitCode::kModelFile, "temperature");
}

TEST_CASE("a GPU that is demanded and not there is exit 5") {
  check_run_refused({"-p", "x", "--device", "cuda"}, 5, "--device cpu");
  check_run_refused({"-p", "x", "--device", "cuda:1"}, 5, "--device cpu");
}

TEST_CASE("prompts that cannot be used") {
  check_run_refused({"-p", ""}, 2, "empty");
  check_run_refused({""}, 2, "empty");
  check_run_refused({}, 2, "empty");  // /dev/null
  check_run_refused({"-p", "abc\xff"}, 2, "not UTF-8 at byte 3");
  check_run_refused({"-p", "\xed\xa0\x80"}, 2, "not UTF-8 at byte 0");  // half a surrogate pair
  check_refused(run_with_input({"run", demo_model()}, "ab\xc3"), 2, "byte 2");
  check_run_refused({"-p", "Once upon a time", "-c", "6"}, 6, "6 tokens");
  check_run_refused({"-p", "Once upon a time", "-c", "6"}, 6, "use -c 7");
  std::string words;
  for (int i = 0; i < 3000; ++i) words += " king";
  check_run_refused({"-p", words}, 6, "shorten the prompt");
}

TEST_CASE("ids files that cannot be used") {
  const TempDir folder;
  const auto refused = [&](const std::string& text, const std::string& part) {
    check_run_refused({"--ids-file", write_file(folder, "ids.json", text)}, 2, part);
  };
  refused("", "not valid JSON");
  refused("{\"ids\": [1]}", "not a JSON array");
  refused("[]", "no ids");
  refused("[1, 2.5]", "entry 1 is not an integer");
  refused("[1, \"2\"]", "entry 1 is not an integer");
  refused("[-1]", "entry 0 is outside");
  refused("[0, 4096]", "entry 1 is outside the model's vocabulary of 4096");
  refused("[18446744073709551615]", "outside");
  refused("[4294967297]", "outside");
}

TEST_CASE("files that are no model exit with 3, or with 4 where they are a newer one") {
  const TempDir folder;
  const std::string good = read_file(demo_model());
  const auto refused = [&](const std::string& bytes, int exit_code) {
    const std::string path = write_file(folder, "bad.tmac2", bytes);
    for (const std::string command : {"run", "verify"}) {
      std::vector<std::string> args = {command, path};
      if (command == "run") args.insert(args.end(), {"-p", "x", "-n", "1"});
      args.emplace_back("--no-cache");  // a GGUF file is converted otherwise
      check_refused(run(args), exit_code, path);
    }
  };
  check_refused(run({"run", "/nowhere/m.tmac2", "-p", "x"}), 3, "no model file /nowhere/m.tmac2");
  check_refused(run({"info", folder.path().string()}), 3, "it has no config.json");
  refused("", 3);
  refused("TMAC2", 3);
  refused("GGUF" + std::string(100, '\0'), 3);
  refused(std::string(4096, '\0'), 3);
  refused(good.substr(0, 40), 3);
  refused(good.substr(0, good.size() / 2), 3);
  refused(good.substr(0, good.size() - 1), 3);

  std::string flipped = good;
  flipped[good.size() - 100'000] ^= 1;  // in a weight: only its hash tells
  refused(flipped, 3);
  flipped = good;
  flipped[200] ^= 1;  // in the metadata
  refused(flipped, 3);

  std::string newer = good;
  newer[8] = 2;  // the version
  refused(newer, 4);
}

TEST_CASE("a file whose weights have changed runs only with --no-verify") {
  const TempDir folder;
  std::string bytes = read_file(demo_model());
  bytes[bytes.size() - 100'000] ^= 1;
  const std::string path = write_file(folder, "flipped.tmac2", bytes);
  check_refused(run({"run", path, "-p", "Once", "-n", "1"}), 3, path);
  CHECK(run({"run", path, "-p", "Once", "-n", "1", "--no-verify"}).exit_code == 0);
}

TEST_CASE("a model without a tokenizer says so") {
  const TempDir folder;
  const std::string model = tiny_model(folder);
  check_refused(run({"run", model, "-p", "x"}), 2, "--ids-file");
  check_refused(run({"tokenize", model, "x"}), 4, "tokenizer.json");
  const std::string ids = write_file(folder, "ids.json", "[1]");
  check_refused(run({"run", model, "--ids-file", ids, "--stop", "x"}), 2, "--stop");
  check_refused(run({"perplexity", model, "-f", ids}), 2, "--ids-file");
}

TEST_CASE("outputs that cannot be written are found before the work begins") {
  const TempDir folder;
  const std::string ids = write_file(folder, "ids.json", "[1, 2]");
  const std::string file = write_file(folder, "file", "");
  const std::vector<std::string> logits = {"logits", demo_model(), "--ids-file", ids, "-o"};
  const std::vector<std::string> synth = {"synth", "smollm-135m", "-o"};
  for (const auto& command : {logits, synth}) {
    const auto refused = [&](const std::string& path, const std::string& part) {
      std::vector<std::string> args = command;
      args.push_back(path);
      check_refused(run(args), 1, part);
    };
    refused("/nowhere/out", "there is no folder /nowhere");
    refused(folder.path().string(), "it is a folder");
    refused(file + "/out", "there is no folder " + file);
  }
  check_refused(run({"synth", "smollm-135m", "-o", "/dev/full"}), 1, "not a regular file");
  check_refused(run({"logits", demo_model(), "--ids-file", ids, "-o", "/dev/full"}), 1,
                "No space left");
  CHECK(names_in(folder) == std::vector<std::string>{"file", "ids.json"});
}

TEST_CASE("convert says what it was given instead of a folder") {
  const TempDir folder;
  const std::string out = (folder / "out.tmac2");
  const auto refused = [&](const std::string& source, int exit_code, const std::string& part) {
    check_refused(run({"convert", source, "-o", out}), exit_code, part);
  };
  refused("/nowhere/model", 3, "no folder /nowhere/model");
  refused(demo_model(), 4, "already a .tmac2 file");
  refused(write_file(folder, "m.gguf", "GGUF\3"), 3, "cut off");
  refused(write_file(folder, "old.bin", "TMAC"), 3, "cut off");
  refused(write_file(folder, "some.bin", "abc"), 4, "neither a folder nor a file");
  refused(write_file(folder, "m.safetensors", "x"), 4, "name the folder");
  refused(folder.path().string(), 3, "config.json");
  CHECK(!std::filesystem::exists(out));
}

TEST_CASE("convert looks at the tokenizer first") {
  const TempDir folder;
  const std::string source = copy_model(folder);
  const std::string out = (folder / "out.tmac2");
  write_file(folder, "hf/tokenizer.model", "x");
  check_refused(run({"convert", source, "-o", out}), 4, "/hf/tokenizer.model: SentencePiece");
  write_file(folder, "hf/tokenizer.json", R"({"model": {"type": "Unigram", "vocab": []}})");
  check_refused(run({"convert", source, "-o", out}), 4, "/hf/tokenizer.json");
  CHECK(names_in(folder) == std::vector<std::string>{"hf"});

  for (const char* name : {"hf/tokenizer.model", "hf/tokenizer.json"}) {
    std::filesystem::remove((folder / name));
  }
  const Result result = run({"convert", source, "-o", out});
  CHECK(result.exit_code == 0);
  CHECK(result.err.find("has no tokenizer.json, so " + out + " takes ids only") !=
        std::string::npos);
}

// Runs the program as behind a shell's `ulimit`.
Result run_with_limit(__rlimit_resource_t resource, rlim_t n_bytes,
                      const std::vector<std::string>& args) {
  rlimit old = {};
  REQUIRE(getrlimit(resource, &old) == 0);
  const rlimit limited = {.rlim_cur = n_bytes, .rlim_max = old.rlim_max};
  REQUIRE(setrlimit(resource, &limited) == 0);
  Program program(args, {});
  setrlimit(resource, &old);
  return program.wait();
}

TEST_CASE("a stack that may not suffice is an error, not a crash in mid-run") {
  check_refused(run_with_limit(RLIMIT_STACK, 512 << 10, {"run", demo_model(), "x", "-n", "1"}), 1,
                "the stack is limited to 512 kB, edgellm needs 1024; type: ulimit -s 8192");
  CHECK(run_with_limit(RLIMIT_STACK, 1 << 20, {"run", demo_model(), "x", "-n", "1"}).exit_code ==
        0);
}

TEST_CASE("a file beyond ulimit -f is an error and leaves nothing behind") {
  const TempDir folder;
  const std::string source = copy_model(folder);
  const std::string ids = write_file(folder, "ids.json", "[1, 2]");
  const std::string out = (folder / "out");
  for (const std::vector<std::string>& command : {std::vector<std::string>{"convert", source},
                                                  {"synth", "smollm-135m", "--layers", "1"},
                                                  {"logits", demo_model(), "--ids-file", ids}}) {
    std::vector<std::string> args = command;
    args.insert(args.end(), {"-o", out});
    check_refused(run_with_limit(RLIMIT_FSIZE, 4096, args), 1, "File too large");
    CHECK(names_in(folder) == std::vector<std::string>{"hf", "ids.json"});
  }
}

TEST_CASE("errors are JSON too where JSON was asked for") {
  const auto check_error = [](const Result& result, int exit_code, const std::string& code) {
    CHECK(result.exit_code == exit_code);
    CHECK(result.err.starts_with("edgellm: "));
    const auto error = json_of(result)["error"];
    CHECK(error["code"] == code);
    CHECK(error["exit_code"] == exit_code);
    CHECK("edgellm: " + error["message"].get<std::string>() + "\n" == result.err);
  };
  check_error(run({"run", demo_model(), "--json", "-p", ""}), 2, "usage");
  check_error(run({"run", demo_model(), "--json", "--bogus"}), 2, "usage");
  check_error(run({"--json"}), 2, "usage");
  check_error(run({"info", "/nowhere/x", "--json"}), 3, "model_file");
  check_error(run({"run", demo_model(), "-p", "x", "-c", "1", "--json"}), 6, "prompt_does_not_fit");
  check_error(run({"run", demo_model(), "-p", "x", "--device", "cuda", "--json"}), 5, "device");
}

}  // namespace
}  // namespace edgellm::test
