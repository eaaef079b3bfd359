// edgellm compare as a user runs it, against a server in the test's process.
#include <arpa/inet.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <set>
#include <thread>

#include "apps/compare/report.h"
#include "tests/apps/program.h"
#include "tests/compare/test_server.h"
#include "tests/support/environment.h"
#include "tests/support/fixtures.h"
#include "tests/support/skip.h"

extern char** environ;

namespace edgellm::test {
namespace {

// The quick defaults of these tests, each unless `more` has the option.
std::vector<std::string> compare_args(const TestServer& server,
                                      const std::vector<std::string>& more = {}) {
  std::vector<std::string> args = {"compare", demo_model(), "--url", server.url()};
  for (const auto& [option, value] :
       std::vector<std::pair<std::string, std::string>>{{"-n", "8"}, {"-r", "1"}, {"-c", "512"}}) {
    if (std::find(more.begin(), more.end(), option) != more.end()) continue;
    args.insert(args.end(), {option, value});
  }
  args.insert(args.end(), more.begin(), more.end());
  return args;
}

// llama.cpp's server with a small random model. `found` is false where there is no such program.
class LlamaServer {
 public:
  explicit LlamaServer(const std::string& model) {
    sockaddr_in address = {.sin_family = AF_INET, .sin_port = 0, .sin_addr = {}, .sin_zero = {}};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    const int probe = socket(AF_INET, SOCK_STREAM, 0);
    REQUIRE(bind(probe, reinterpret_cast<sockaddr*>(&address), size) == 0);
    REQUIRE(getsockname(probe, reinterpret_cast<sockaddr*>(&address), &size) == 0);
    close(probe);
    port_ = std::to_string(ntohs(address.sin_port));

    posix_spawn_file_actions_t quiet;
    posix_spawn_file_actions_init(&quiet);
    for (const int fd : {STDOUT_FILENO, STDERR_FILENO}) {
      posix_spawn_file_actions_addopen(&quiet, fd, "/dev/null", O_WRONLY, 0);
    }
    std::vector<std::string> words = {"llama-server", "-m",  model, "--host", "127.0.0.1",
                                      "--port",       port_, "-t",  "1"};
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    found = posix_spawnp(&pid_, argv[0], &quiet, nullptr, argv.data(), environ) == 0;
    posix_spawn_file_actions_destroy(&quiet);
  }
  ~LlamaServer() {
    if (!found) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  LlamaServer(const LlamaServer&) = delete;
  LlamaServer& operator=(const LlamaServer&) = delete;

  std::string url() const { return "http://127.0.0.1:" + port_; }

  bool found = false;

 private:
  pid_t pid_ = -1;
  std::string port_;
};

TEST_CASE("compare: both sides get the same prompts, each with a nonce of its own") {
  TestServer server;
  const nlohmann::json json =
      json_of(run(compare_args(server, {"--json", "-p", "Once upon a time", "-r", "2"})));
  CHECK(json.at("schema") == "edgellm.compare/1");
  const auto requests = server.requests();
  REQUIRE(requests.size() == 5);  // a warm-up and two rounds of two
  REQUIRE(json.at("pairs").size() == 4);
  std::set<std::string> nonces;
  for (size_t i = 0; i < 4; ++i) {
    const nlohmann::json& pair = json.at("pairs").at(i);
    CHECK(pair.at("first") == (i % 2 == 0 ? "ours" : "theirs"));
    const std::string nonce = pair.at("nonce");
    nonces.insert(nonce);
    CHECK(requests.at(i + 1).at("prompt") == nonce + " Once upon a time");
    CHECK(pair.at("ours").at("tokens") == 8);
    CHECK(pair.at("theirs").at("tokens") == 8);
    CHECK(pair.at("ours").at("gaps_ns").size() == 7);
    CHECK(pair.at("theirs").at("gaps_ns").size() == 7);
    // The server naps for 5 ms before the first token and 2 between tokens. Gaps alone may be
    // shorter, where the first token was read late.
    int64_t theirs_ns = pair.at("theirs").at("ttft_ns");
    for (const nlohmann::json& gap : pair.at("theirs").at("gaps_ns")) {
      theirs_ns += gap.get<int64_t>();
    }
    CHECK(theirs_ns >= 19'000'000);
    CHECK(pair.at("theirs").at("own_clock").at("prompt_ns").is_null());
    CHECK(pair.at("theirs").at("own_clock").at("not_available").at("prompt_ns").is_string());
  }
  CHECK(nonces.size() == 4);
  for (const nlohmann::json& row : json.at("verdict")) {
    const double theirs = row.at("theirs").is_null() ? 0.0 : row.at("theirs").get<double>();
    if (row.at("metric") == "decode") {
      CHECK(theirs > 0);
      const nlohmann::json& ratio = row.at("ratio");
      CHECK(ratio.at("pairs") == 4);
      CHECK(ratio.at("min") <= ratio.at("median"));
      CHECK(ratio.at("median") <= ratio.at("max"));
    }
    if (row.at("metric") == "TTFT") CHECK(theirs >= 5e6);
    if (row.at("metric") == "memory") CHECK(row.at("not_available").at("ratio").is_string());
  }
  CHECK(json.at("same_weights") == false);
  CHECK(json.at("build").at("version").is_string());
}

TEST_CASE("compare: the greedy answer is that of run") {
  TestServer server;
  const nlohmann::json json =
      json_of(run(compare_args(server, {"--json", "-p", "Once upon a time", "--warmup", "0"})));
  const nlohmann::json& pair = json.at("pairs").at(0);
  const std::string nonce = pair.at("nonce");
  const nlohmann::json answer = json_of(run({"run", demo_model(), "-p", nonce + " Once upon a time",
                                             "-n", "8", "--ignore-eos", "--json"}));
  CHECK(pair.at("ours").at("text") == answer.at("text"));
  CHECK(pair.at("ours").at("prompt_tokens") == answer.at("prompt_ids").size());
}

TEST_CASE("compare: a real llama-server") {
  const TempDir folder;
  const std::string model = (folder / "tiny.gguf");
  const std::string script = EDGELLM_SOURCE_DIR "/tests/compare/make_tiny_gguf.py";
  REQUIRE(std::system(("python3 '" + script + "' '" + model + "'").c_str()) == 0);
  const LlamaServer server(model);
  if (!server.found) {
    skip("no llama-server in PATH");
    return;
  }
  Result result;
  for (int tries = 0; tries < 300; ++tries) {  // it refuses, or answers 503, while it starts
    result = run({"compare", demo_model(), "--url", server.url(), "--json", "-n", "100", "-r", "1",
                  "-c", "512", "-p", "Once upon a time"});
    if (result.exit_code != 9) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  const nlohmann::json json = json_of(result);
  INFO(json.dump(1));
  CHECK(json.at("theirs").at("program") == "llama-server");
  CHECK(json.at("theirs").at("version").is_string());
  CHECK(json.at("same_weights") == false);
  REQUIRE(json.at("pairs").size() == 2);
  for (const nlohmann::json& pair : json.at("pairs")) {
    const nlohmann::json& theirs = pair.at("theirs");
    CHECK(theirs.at("tokens") == 100);
    CHECK(theirs.at("own_clock").at("eval_tokens") == 100);
    CHECK(theirs.at("own_clock").at("prompt_ns") > 0);
    if (theirs.at("ttft_ns").is_null()) {  // so small a model may outrun a reader that has to wait
      CHECK_THAT(theirs.at("not_available").at("ttft_ns").get<std::string>(),
                 Catch::Contains("one burst"));
      continue;
    }
    CHECK(theirs.at("gaps_ns").size() == 99);
    // Its own prompt time is a part of what we see of it.
    CHECK(theirs.at("own_clock").at("prompt_ns") < theirs.at("ttft_ns"));
  }
}

TEST_CASE("compare: the report for people, and the page") {
  TestServer server;
  server.owner = "llamacpp";
  server.openai_meta = {{"n_params", 17'300'000}, {"size", 7'000'000}, {"ftype", "TQ2_0 <b>"}};
  const TempDir folder;
  const std::string page = folder / "compare.html";
  const Result result = run(compare_args(server, {"--html", page, "--same-weights"}));
  INFO(result.out << result.err);
  REQUIRE(result.exit_code == 0);
  CHECK(result.err.empty());
  for (const char* part :
       {"A: edgellm\n", "B: llama-server\n", "b9999-abc", "TQ2_0", "same weights: yes (",
        "2 pairs in the order A B B A", "| decode ", "| TTFT ", "| jitter (p99 - p50) ",
        "| memory ", "ratio (range over pairs)", "by each side's own clock",
        "Identical answers: 0 of 2."}) {
    INFO(part);
    CHECK(result.out.find(part) != std::string::npos);
  }
  const std::string html = read_file(page);
  CHECK(html.starts_with("<!DOCTYPE html>"));
  CHECK(html.find("TQ2_0 &lt;b&gt;") != std::string::npos);
  CHECK(html.find("TQ2_0 <b>") == std::string::npos);
  CHECK(html.find("<svg") != std::string::npos);
}

TEST_CASE("compare: what a server does not tell is said once") {
  TestServer server;
  const Result result = run(compare_args(server));
  INFO(result.out << result.err);
  REQUIRE(result.exit_code == 0);
  const std::string reason = "(OpenAI's API does not tell)";
  const size_t first = result.out.find(reason);
  REQUIRE(first != std::string::npos);
  CHECK(result.out.find(reason, first + 1) == std::string::npos);
  CHECK(result.out.find("version, architecture, parameters, quantisation, bytes, context, device, "
                        "memory " +
                        reason) != std::string::npos);
}

TEST_CASE("compare --ollama, and a prompt that its cache held") {
  TestServer server;
  const WithVariable host("OLLAMA_HOST", server.host_and_port());
  const std::vector<std::string> args = {"compare", demo_model(), "--ollama", "tiny", "-n",
                                         "8",       "-r",         "1",        "-c",   "512"};
  const Result plain = run(args);
  INFO(plain.out << plain.err);
  REQUIRE(plain.exit_code == 0);
  CHECK(plain.out.find("Ollama 0.12.3 at http://127.0.0.1:") != std::string::npos);
  CHECK(plain.out.find("same weights: no (ternary here, Q4_K_M there)") != std::string::npos);
  CHECK(plain.out.find("no prompt figure") == std::string::npos);
  CHECK(server.requests().at(0).at("options").at("num_ctx") == 512);

  server.behaviour->cached_prompt = true;
  const Result cached = run(args);
  REQUIRE(cached.exit_code == 0);
  CHECK(cached.out.find("In 2 of 2 answers there is no prompt figure of Ollama: ") !=
        std::string::npos);
  CHECK(cached.out.find("n/a (Ollama gives no figure: the prompt was in its cache)") !=
        std::string::npos);
}

TEST_CASE("compare: an answer in one burst has no wall-clock rates") {
  TestServer server;
  server.behaviour->buffered = true;  // as through a proxy that collects
  server.behaviour->tokens = 32;
  const nlohmann::json json = json_of(run(compare_args(server, {"--json", "-n", "32"})));
  const nlohmann::json& theirs = json.at("pairs").at(0).at("theirs");
  CHECK(theirs.at("decode_tps").is_null());
  CHECK_THAT(theirs.at("not_available").at("decode_tps").get<std::string>(),
             Catch::Contains("burst"));
  CHECK(theirs.at("ttft_ns").is_null());
  CHECK(theirs.at("gaps_ns").empty());
  CHECK(theirs.at("total_ns").is_number());
}

TEST_CASE("compare: what goes wrong with the server is exit code 9 in one line") {
  const std::string model = demo_model();
  check_refused(run({"compare", model, "--url", "http://127.0.0.1:1"}), 9,
                "llama-server -m MODEL.gguf --port 1");
  {
    const WithVariable host("OLLAMA_HOST", "127.0.0.1:1");
    check_refused(run({"compare", model, "--ollama", "x"}), 9, "ollama serve");
  }
  TestServer server;
  check_refused(run(compare_args(server, {"--model", "other"})), 9, "has no model other");
  server.behaviour->cut_after = 3;
  check_refused(run(compare_args(server)), 9, "after 3 pieces of text");
  server.behaviour = Behaviour();
  server.behaviour->garbage = "line\x1b[31m one";
  check_refused(run(compare_args(server)), 9, "not JSON");
  server.behaviour = Behaviour();
  server.behaviour->stall_after = 1;
  check_refused(run(compare_args(server, {"--timeout", "0.3"})), 9, "--timeout");
  const Result json = run(compare_args(server, {"--timeout", "0.3", "--json"}));
  CHECK(json.exit_code == 9);
  CHECK(nlohmann::json::parse(json.out).at("error").at("code") == "peer_unavailable");
}

TEST_CASE("compare: wrong command lines exit with 2 and ask no server") {
  TestServer server;
  const std::string model = demo_model();
  check_refused(run({"compare", model}), 2, "--ollama NAME or --url");
  check_refused(run({"compare", model, "--ollama", "a", "--url", server.url()}), 2,
                "--url and --ollama exclude each other");
  check_refused(run({"compare", model, "--ollama", "a", "--model", "b"}), 2, "--url");
  check_refused(run({"compare", model, "--ollama", ""}), 2, "--ollama");
  check_refused(run({"compare", model, "--url", "ftp://localhost:1"}), 2, "http://");
  for (const auto& [option, value] :
       std::vector<std::pair<std::string, std::string>>{{"-n", "0"},
                                                        {"-n", "x"},
                                                        {"-r", "0"},
                                                        {"--warmup", "-1"},
                                                        {"--timeout", "0"},
                                                        {"--timeout", "nan"},
                                                        {"--timeout", "soon"},
                                                        {"-p", "a\xff"}}) {
    INFO(option << " " << value);
    const Result result = run(compare_args(server, {option, value}));
    CHECK(result.exit_code == 2);
    CHECK(result.out.empty());
  }
  {
    const WithVariable host("OLLAMA_HOST", "x:y");
    check_refused(run({"compare", model, "--ollama", "a"}), 2, "OLLAMA_HOST");
  }
  CHECK(server.requests().empty());
  check_refused(run(compare_args(server, {"-n", "600"})), 6, "use -c ");
  const TempDir folder;
  check_refused(run({"compare", tiny_model(folder), "--url", server.url()}), 2, "tokenizer");
  CHECK(server.requests().empty());
}

TEST_CASE("compare: Ctrl-C while the server is silent") {
  TestServer server;
  server.behaviour->stall_after = 1;
  Program program(compare_args(server), {});
  while (server.requests().empty()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  program.send_signal(SIGINT);
  const Result result = program.wait();
  CHECK(result.exit_code == 130);
  CHECK(result.out.empty());
}

TEST_CASE("compare: whether the weights are the same") {
  using compare::decide_same_weights;
  peers::PeerInfo theirs;
  CHECK_FALSE(decide_same_weights(false, 1000, theirs).same);
  CHECK(decide_same_weights(true, 1000, theirs).same);
  theirs.parameters = uint64_t{1010};
  CHECK(decide_same_weights(true, 1000, theirs).same);
  theirs.quantisation = std::string("TQ2_0 - 2.06 bpw ternary");
  CHECK(decide_same_weights(true, 1000, theirs).same);
  CHECK_FALSE(decide_same_weights(false, 1000, theirs).same);
  theirs.quantisation = std::string("F16");
  CHECK_FALSE(decide_same_weights(true, 1000, theirs).same);
  CHECK_THAT(decide_same_weights(true, 1000, theirs).reason, Catch::Contains("F16"));
  theirs.quantisation = std::string("I2_S");
  theirs.parameters = uint64_t{1200};
  CHECK_FALSE(decide_same_weights(true, 1000, theirs).same);
}

peers::Completion stream_of(const std::vector<int64_t>& piece_ms, const std::string& reason,
                            int64_t finished_ms, int64_t tokens) {
  peers::Completion stream;
  stream.sent_ns = 1'000'000'000;
  for (const int64_t ms : piece_ms) {
    stream.piece_ns.push_back(stream.sent_ns + ms * 1'000'000);
    stream.piece_bytes.push_back(3);
    stream.text += "abc";
  }
  stream.finished_ns = stream.sent_ns + finished_ms * 1'000'000;
  stream.finish_reason = reason;
  stream.server.eval_tokens = tokens;
  stream.total_prompt_tokens = int64_t{40};
  return stream;
}

TEST_CASE("compare: figures of a stream") {
  using compare::sample_of;
  // 4 tokens after the first in 40 ms; the end of the answer comes 5 ms after the last.
  const compare::Sample plain = sample_of(stream_of({100, 110, 120, 130, 140}, "length", 145, 5));
  CHECK(*plain.ttft_ns == 100'000'000);
  CHECK(*plain.prefill_tps == Approx(400));
  CHECK(*plain.decode_tps == Approx(100));
  CHECK(*plain.text_bytes_per_s == Approx(300));
  CHECK(plain.total_ns == 145'000'000);
  CHECK(plain.inter_token_ns == std::vector<int64_t>(4, 10'000'000));
  // The same with a stop token, whose time only the end of the answer shows.
  const compare::Sample stopped = sample_of(stream_of({100, 110, 120, 130}, "stop", 140, 5));
  CHECK(*stopped.decode_tps == Approx(100));
  // Two tokens a piece.
  const compare::Sample pieces = sample_of(stream_of({100, 120, 140}, "length", 140, 5));
  CHECK(*pieces.decode_tps == Approx(100));
  CHECK(pieces.inter_token_ns.size() == 2);
  // Too little to divide by.
  CHECK_FALSE(sample_of(stream_of({}, "stop", 100, 0)).ttft_ns);
  const compare::Sample one = sample_of(stream_of({100}, "length", 100, 1));
  CHECK(one.ttft_ns);
  CHECK_FALSE(one.decode_tps);
  // Everything at once.
  const compare::Sample burst =
      sample_of(stream_of(std::vector<int64_t>(20, 300), "length", 300, 20));
  CHECK_THAT(burst.ttft_ns.reason(), Catch::Contains("burst"));
  CHECK_FALSE(burst.decode_tps);
  CHECK(burst.total_ns == 300'000'000);
}

}  // namespace
}  // namespace edgellm::test
