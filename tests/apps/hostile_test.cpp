// Hostile files and surroundings, as tables: each ends the program soon, with one line and the
// right exit code, without a crash, a hang, or memory for what a file merely claims. (What the
// readers do with hostile bytes is tested where they live, in tests/model and tests/tokenizer.)
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>
#include <xxhash.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <thread>

#include "tests/apps/program.h"
#include "tests/support/sanitizers.h"
#include "tests/support/skip.h"

namespace edgellm::test {
namespace {

namespace fs = std::filesystem;
using Args = std::vector<std::string>;

void check_one_line(const Result& result, int exit_code, const std::string& part) {
  INFO("stderr: " << result.err);
  CHECK(result.exit_code == exit_code);
  CHECK(result.err.starts_with("edgellm: "));
  CHECK(std::count(result.err.begin(), result.err.end(), '\n') == 1);
  CHECK(result.err.ends_with('\n'));
  CHECK(result.err.find(part) != std::string::npos);
  // A claim of any file below is at least a gigabyte. The sanitizers' own memory is not counted.
  if (!kSanitized) CHECK(result.peak_bytes < size_t{300} << 20);
}

void check_refused(const Args& args, int exit_code, const std::string& part) {
  INFO(Catch::StringMaker<Args>::convert(args));
  const Result result = run(args);
  check_one_line(result, exit_code, part);
  if (std::find(args.begin(), args.end(), "--json") == args.end()) {
    CHECK(result.out.empty());
  } else {
    CHECK(json_of(result)["error"]["exit_code"] == exit_code);
  }
}

// Every command that opens a model, with the least that it needs besides.
std::vector<Args> commands_on(const std::string& model, const std::string& ids) {
  return {{"run", model, "-p", "x", "-n", "1"},
          {"info", model},
          {"verify", model},
          {"tokenize", model, "x"},
          {"perplexity", model, "--ids-file", ids},
          {"logits", model, "--ids-file", ids, "--json"}};
}

// A path that is no file to read, and how to make it.
struct OddPath {
  const char* name;
  std::function<void(const std::string& path)> make;
};

const std::vector<OddPath>& odd_paths() {
  static const std::vector<OddPath> paths = {
      {"absent", [](const std::string&) {}},
      {"folder", [](const std::string& path) { fs::create_directory(path); }},
      {"fifo", [](const std::string& path) { REQUIRE(mkfifo(path.c_str(), 0600) == 0); }},
      {"socket",
       [](const std::string& path) {
         sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = {}};
         REQUIRE(path.size() < sizeof address.sun_path);
         std::strcpy(address.sun_path, path.c_str());
         const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
         REQUIRE(bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
         close(fd);
       }},
      {"dangling link", [](const std::string& path) { fs::create_symlink("nothing", path); }},
      {"link to itself", [](const std::string& path) { fs::create_symlink(path, path); }},
      {"link to a folder", [](const std::string& path) { fs::create_symlink("/", path); }},
      {"endless device", [](const std::string& path) { fs::create_symlink("/dev/zero", path); }},
      {"empty device", [](const std::string& path) { fs::create_symlink("/dev/null", path); }},
      {"empty file", [](const std::string& path) { std::ofstream{path}; }},
      {"file of no bytes but a terabyte of holes",
       [](const std::string& path) {
         std::ofstream{path};
         if (truncate(path.c_str(), off_t{1} << 40) != 0) fs::resize_file(path, 1 << 30);
       }},
  };
  return paths;
}

TEST_CASE("models that are no file that can be read") {
  const TempDir folder;
  const std::string ids = write_file(folder, "ids.json", "[1, 2]");
  for (const OddPath& odd : odd_paths()) {
    const std::string path = folder / odd.name;
    odd.make(path);
    for (const Args& args : commands_on(path, ids)) check_refused(args, 3, path);
  }
  for (const std::string& path : {ids + "/model.tmac2", std::string(5000, 'x'), std::string(),
                                  std::string("line\nbreak"), std::string("\x1b[2J\xff")}) {
    for (const Args& args : commands_on(path, ids)) check_refused(args, 3, "edgellm: ");
  }
  // A link to a model is a model.
  fs::create_symlink(demo_model(), folder / "link.tmac2");
  for (const Args& args : commands_on(folder / "link.tmac2", ids)) CHECK(run(args).exit_code == 0);
}

// A Hugging Face folder whose shapes are those of no tensors yet.
void write_config(const TempDir& folder, const std::string& name,
                  const nlohmann::json& changes = nlohmann::json::object()) {
  nlohmann::json config = {{"architectures", {"BitNetForCausalLM"}},
                           {"quantization_config", {{"quant_method", "bitnet"}}},
                           {"model_type", "bitnet"},
                           {"hidden_act", "relu2"},
                           {"hidden_size", 64},
                           {"intermediate_size", 160},
                           {"num_hidden_layers", 3},
                           {"num_attention_heads", 4},
                           {"num_key_value_heads", 2},
                           {"vocab_size", 97},
                           {"max_position_embeddings", 128},
                           {"rms_norm_eps", 1e-05},
                           {"rope_theta", 10000.0},
                           {"tie_word_embeddings", true}};
  config.update(changes);
  fs::create_directory(folder / name);
  std::ofstream(folder.path() / name / "config.json") << config;
}

std::string safetensors(const std::string& header, const std::string& data = "") {
  const uint64_t length = header.size();
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &length, 8);
  return bytes + header + data;
}

TEST_CASE("convert: files of a folder that cannot be read") {
  int n = 0;
  const TempDir folder;
  const std::string out = folder / "out.tmac2";
  const auto empty = safetensors("{}");
  for (const char* name : {"config.json", "model.safetensors", "model.safetensors.index.json",
                           "tokenizer.json", "tokenizer_config.json", "generation_config.json"}) {
    for (const OddPath& odd : odd_paths()) {
      // Without the optional files it is the tensors that are missing.
      const std::string source = "hf" + std::to_string(n++);
      write_config(folder, source);
      const fs::path hf = folder.path() / source;
      if (!std::string(name).starts_with("model")) {
        std::ofstream(hf / "model.safetensors", std::ios::binary) << empty;
      }
      fs::remove(hf / name);
      odd.make((hf / name).string());
      INFO(name << " is: " << odd.name);
      const bool is_named = std::string(odd.name) != "absent" || std::string(name) == "config.json";
      check_refused({"convert", hf.string(), "-o", out}, 3, is_named ? name : hf.string());
      fs::remove_all(hf);
    }
  }
  CHECK(names_in(folder).empty());
}

TEST_CASE("convert: what a folder claims costs nothing") {
  const TempDir folder;
  const std::string out = folder / "out.tmac2";
  int n = 0;
  const auto refused = [&](const nlohmann::json& config, const std::string& tensors, int exit_code,
                           const std::string& part) {
    const std::string source = "hf" + std::to_string(n++);
    write_config(folder, source, config);
    std::ofstream(folder.path() / source / "model.safetensors", std::ios::binary) << tensors;
    check_refused({"convert", folder / source, "-o", out}, exit_code, part);
    CHECK(!fs::exists(out));
  };
  const std::string one_value = safetensors(
      R"({"model.embed_tokens.weight":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
      std::string(4, '\0'));
  const auto plain = nlohmann::json::object();
  refused({{"vocab_size", INT32_MAX}}, one_value, 4, "vocab");
  refused({{"vocab_size", 1 << 24}}, one_value, 3, "model.embed_tokens.weight");
  refused({{"vocab_size", uint64_t{1} << 63}}, one_value, 3, "vocab_size");
  refused({{"hidden_size", 1 << 30}, {"num_attention_heads", 1 << 24}}, one_value, 4, "");
  refused({{"num_hidden_layers", INT32_MAX}}, one_value, 4, "layers");
  refused({{"max_position_embeddings", 1}}, one_value, 4, "max_context is 1, supported are 2 to");
  refused({{"max_position_embeddings", INT64_MAX}}, one_value, 3, "max_position_embeddings");
  refused(plain,
          safetensors(R"({"a":{"dtype":"F32","shape":[9223372036854775807],)"
                      R"("data_offsets":[0,9223372036854775807]}})"),
          3, "cut off");
  refused(plain,
          safetensors(R"({"a":{"dtype":"F32","shape":[4611686018427387905],)"
                      R"("data_offsets":[0,4]}})",
                      "1234"),
          3, "not the size");
  std::string claims(8, '\xff');
  claims[7] = '\x7f';
  refused(plain, claims + "{}", 3, "header claims");
  refused(plain, safetensors(std::string(200'000, '[')), 3, "nested deeper");
  refused(plain, safetensors(R"({"a":{},"a":{}})"), 3, "twice");
  // Many values, in time linear in their number.
  std::string many = "{\"t0\":{}";
  for (int i = 1; i < 700'000; ++i) many += ",\"t" + std::to_string(i) + "\":{}";
  refused(plain, safetensors(many + "}"), 3, "dtype is missing");
  std::string list = "[{}";
  for (int i = 1; i < 1'000'000; ++i) list += ",{}";
  refused({{"x", nlohmann::json::parse(list + "]")}}, one_value, 4, "a long list is unknown");

  // A whole file that is mostly a hole: the header is read only as far as the format allows.
  const std::string hole = folder / "hole";
  write_config(folder, "hole");
  const std::string path = hole + "/model.safetensors";
  std::ofstream(path, std::ios::binary) << std::string("\x00\xe1\xf5\x05\0\0\0\0", 8);  // 100e6
  fs::resize_file(path, 100'000'008);
  check_refused({"convert", hole, "-o", out}, 3, "not valid JSON");
  // config.json of a gigabyte.
  fs::resize_file(hole + "/config.json", 1 << 30);
  check_refused({"convert", hole, "-o", out}, 3, "config.json");
}

TEST_CASE("a .tmac2 that claims much costs nothing") {
  const TempDir folder;
  const auto refused = [&](const nlohmann::json& changes, int exit_code, const std::string& part) {
    nlohmann::json metadata = {{"requires", nlohmann::json::array()},
                               {"architecture",
                                {{"name", "BitNetForCausalLM"},
                                 {"layers", 1},
                                 {"dim", 4},
                                 {"ffn", 4},
                                 {"heads", 1},
                                 {"kv_heads", 1},
                                 {"head_dim", 4},
                                 {"vocab", 5},
                                 {"max_context", 64},
                                 {"act", "relu2"},
                                 {"attn_sub_norm", false},
                                 {"ffn_sub_norm", false},
                                 {"tied_head", true},
                                 {"norm_eps", 1e-5},
                                 {"rope_theta", 1e4},
                                 {"qk_norm", false},
                                 {"activation_quant", "int8_row"}}},
                               {"tokenizer",
                                {{"section", nullptr},
                                 {"bos", nullptr},
                                 {"add_bos", false},
                                 {"stop_ids", nlohmann::json::array()}}},
                               {"provenance", nlohmann::json::object()},
                               {"sections", nlohmann::json::array()}};
    metadata.merge_patch(changes);
    const std::string text = metadata.dump();
    std::string file("TMAC2\r\n\x1A", 8);
    const uint32_t version[2] = {1, 0};
    const uint64_t sizes[2] = {text.size(), XXH3_64bits(text.data(), text.size())};
    file.append(reinterpret_cast<const char*>(version), 8);
    file.append(reinterpret_cast<const char*>(sizes), 16);
    file += text;
    file.resize(8192);
    const std::string path = write_file(folder, "claims.tmac2", file);
    check_refused({"verify", path}, exit_code, part);
  };
  const auto one_section = [](const nlohmann::json& changes) {
    nlohmann::json section = {{"name", "embedding"}, {"dtype", "f32"},
                              {"shape", {5, 4}},     {"offset", 4096},
                              {"bytes", 80},         {"xxh3", std::string(16, '0')}};
    section.update(changes);
    return nlohmann::json{{"sections", {section}}};
  };
  refused(nlohmann::json::object(), 3, "no sections");
  refused(one_section({{"offset", 0x7FFFFFFFFFFFFF00}}), 3, "cut off");
  refused(one_section({{"offset", 0xFFFFFFFFFFFFFF00}}), 3, "offset");
  refused(one_section({{"shape", {int64_t{1} << 40, int64_t{1} << 40}}}), 3, "not the size");
  refused(one_section({{"shape", {int64_t{1} << 58, 4}}, {"bytes", int64_t{1} << 62}}), 3, "");
  refused({{"architecture", {{"layers", INT32_MAX}}}}, 4, "layers");
  refused({{"architecture", {{"vocab", INT32_MAX}}}}, 4, "vocab");
  refused({{"architecture", {{"max_context", 1}}}}, 4, "max_context is 1, supported are 2 to");
  nlohmann::json wide = one_section({{"shape", {1 << 24, 4}}, {"bytes", 1 << 28}});
  wide["architecture"] = {{"vocab", 1 << 24}};
  refused(wide, 3, "cut off");
}

TEST_CASE("standard output that is full") {
  const TempDir folder;
  const std::string ids = write_file(folder, "ids.json", "[1, 2]");
  std::vector<Args> commands = commands_on(demo_model(), ids);
  commands.insert(commands.end(),
                  {{"--help"},
                   {"--version"},
                   {"--version", "--json"},
                   {},
                   {"run", "--help"},
                   {"devices"},
                   {"devices", "--json"},
                   {"info", demo_model(), "--json"},
                   {"run", demo_model(), "-p", "x", "-n", "1", "--json", "--stream"}});
  for (const Args& args : commands) {
    INFO(Catch::StringMaker<Args>::convert(args));
    check_one_line(Program(args, {.out_path = "/dev/full"}).wait(), 1, "No space left");
  }
}

// Whether a user without rights can start the program where it was built.
bool can_run_unprivileged() {
  return Program({"--version"}, {.is_unprivileged = true}).wait().exit_code == 0;
}

TEST_CASE("files and folders without permission") {
  if (!can_run_unprivileged()) {
    skip("a user without rights cannot reach the program here");
    return;
  }
  const TempDir folder;
  fs::permissions(folder.path(), fs::perms(0755));
  const std::string secret = write_file(folder, "secret", read_file(demo_model()));
  fs::permissions(secret, fs::perms::none);
  fs::create_directory(folder / "closed");
  write_file(folder, "closed/model.tmac2", read_file(demo_model()));
  const std::string ids = write_file(folder, "ids.json", "[1, 2]");
  write_config(folder, "hf");
  fs::create_symlink(secret, folder / "hf/model.safetensors");
  write_config(folder, "hidden");
  fs::permissions(folder / "hidden/config.json", fs::perms::none);
  fs::create_directory(folder / "read only");
  fs::permissions(folder / "read only", fs::perms(0555));
  fs::permissions(folder / "closed", fs::perms::none);

  const auto refused = [](const Args& args, int exit_code, const std::string& part) {
    INFO(Catch::StringMaker<Args>::convert(args));
    check_one_line(Program(args, {.is_unprivileged = true}).wait(), exit_code, part);
  };
  const std::string denied = "Permission denied";
  for (const Args& args : commands_on(secret, ids)) refused(args, 3, denied);
  for (const Args& args : commands_on(folder / "closed/model.tmac2", ids))
    refused(args, 3, "closed");
  refused({"run", demo_model(), "-f", secret}, 2, denied);
  refused({"run", demo_model(), "--ids-file", secret}, 2, denied);
  for (const std::string out : {"read only/x", "closed/x"}) {
    refused({"synth", "smollm-135m", "-o", folder / out}, 1, folder / out);
    refused({"logits", demo_model(), "--ids-file", ids, "-o", folder / out}, 1, folder / out);
    refused({"convert", folder / "hf", "-o", folder / out}, 1, folder / out);
  }
  const std::string out = "/tmp/edgellm-test-unprivileged-" + std::to_string(getpid());
  refused({"convert", folder / "hf", "-o", out}, 3,
          "model.safetensors cannot be opened: " + denied);
  refused({"convert", folder / "hidden", "-o", out}, 3, "config.json cannot be opened: " + denied);
  refused({"convert", folder / "closed", "-o", out}, 3, "closed");
  CHECK(!fs::exists(out));
}

TEST_CASE("more threads than the system gives") {
  if (kSanitized || !can_run_unprivileged()) {
    skip(kSanitized ? "the sanitizers start threads of their own"
                    : "a user without rights cannot reach the program here");
    return;
  }
  // Root's processes are not limited; the other user has none but this.
  rlimit old = {};
  REQUIRE(getrlimit(RLIMIT_NPROC, &old) == 0);
  const rlimit limited = {.rlim_cur = 8, .rlim_max = old.rlim_max};
  REQUIRE(setrlimit(RLIMIT_NPROC, &limited) == 0);
  Program program({"run", demo_model(), "-p", "x", "-n", "1", "--threads", "64"},
                  {.is_unprivileged = true});
  setrlimit(RLIMIT_NPROC, &old);
  const Result result = program.wait();
  if (result.exit_code == 0) {
    skip("the limit on threads does not hold here");
    return;
  }
  check_one_line(result, 1, "or fewer");
}

bool has_mapped(pid_t pid, const std::string& path) {
  std::ifstream maps("/proc/" + std::to_string(pid) + "/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.ends_with(path)) return true;
  }
  return false;
}

TEST_CASE("a model that shrinks while it is in use ends the program with 3") {
  const TempDir folder;
  const std::string bytes = read_file(demo_model());
  for (const Args& more : std::vector<Args>{{}, {"--no-verify"}, {"--json"}, {"--threads", "4"}}) {
    const std::string path = write_file(folder, "model.tmac2", bytes);
    Args args = {"run", path, "-n", "5"};
    args.insert(args.end(), more.begin(), more.end());
    INFO(Catch::StringMaker<Args>::convert(args));
    Program program(args, {.in_path = ""});
    // It waits for its prompt with the file mapped.
    for (int i = 0; i < 6000 && !has_mapped(program.pid(), path); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    REQUIRE(has_mapped(program.pid(), path));
    fs::resize_file(path, 8192);
    program.write_input("Once upon a time");
    program.close_input();
    const Result result = program.wait();
    check_one_line(result, 3, "became shorter while it was in use");
    if (more == Args{"--json"}) {
      const auto error = json_of(result)["error"];
      CHECK(error["code"] == "model_file");
      CHECK(error["exit_code"] == 3);
      CHECK("edgellm: " + error["message"].get<std::string>() + "\n" == result.err);
    } else {
      CHECK(result.out.empty());
    }
  }
}

TEST_CASE("arguments that nobody types") {
  const std::string megabyte(100'000, 'x');
  const auto refused = [](const Args& args, int exit_code) { check_refused(args, exit_code, ""); };
  refused({""}, 2);
  refused({"\xff\xfe"}, 2);
  refused({"line\nbreak"}, 2);
  refused({"-"}, 2);
  refused({"--="}, 2);
  refused({"---"}, 2);
  refused({megabyte}, 2);
  refused({"--" + megabyte}, 2);
  refused({"run", demo_model(), "-p"}, 2);
  refused({"run", demo_model(), "-p", "x", "-n"}, 2);
  refused({"run", demo_model(), "-p", "x", "-n", megabyte}, 2);
  refused({"run", demo_model(), "-p", "x", "-n", "0x10000000000000000"}, 2);
  refused({"run", demo_model(), "-p", "x", "--seed", "9" + std::string(400, '9')}, 2);
  refused({"run", demo_model(), "-p", "x", "--temp", "1e999"}, 2);
  refused({"run", demo_model(), "-p", "x", "--", "--verbose"}, 2);
  refused({"convert", "--ignore-key", ""}, 2);
  refused({"run", megabyte, "-p", "x"}, 3);
  refused({"synth", megabyte, "-o", "/tmp/never"}, 2);
  refused({"synth", "smollm-135m", "--layers", "999999999999", "-o", "/tmp/never"}, 2);
  refused({"synth", "smollm-135m", "--vocab", "-1", "-o", "/tmp/never"}, 2);
  refused(Args(20'000, "run"), 3);  // a model of that name, and a prompt
}

}  // namespace
}  // namespace edgellm::test
