#include "tests/apps/program.h"

#include <fcntl.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "tests/support/fixtures.h"
#include "tests/support/sanitizers.h"

extern char** environ;

namespace edgellm::test {
namespace {

constexpr int kTimeoutMs = kSanitized ? 600'000 : 60'000;

// The two ends of a stream between the test and the program.
struct Ends {
  int ours = -1;
  int theirs = -1;
};

Ends make_pipe(bool we_write) {
  std::array<int, 2> fds;
  REQUIRE(pipe2(fds.data(), O_CLOEXEC) == 0);
  return we_write ? Ends{fds[1], fds[0]} : Ends{fds[0], fds[1]};
}

Ends make_terminal() {
  Ends ends;
  REQUIRE(openpty(&ends.ours, &ends.theirs, nullptr, nullptr, nullptr) == 0);
  fcntl(ends.ours, F_SETFD, FD_CLOEXEC);
  fcntl(ends.theirs, F_SETFD, FD_CLOEXEC);
  return ends;
}

Ends open_path(const std::string& path, int flags) {
  const int fd = open(path.c_str(), flags | O_CLOEXEC, 0666);
  REQUIRE(fd >= 0);
  return {-1, fd};
}

void close_if_open(int& fd) {
  if (fd >= 0) close(fd);
  fd = -1;
}

// Appends what is there; false at the end of the stream. A terminal without a program reports EIO.
bool read_some(int fd, std::string& to, size_t limit) {
  std::array<char, 1 << 16> buffer;
  const ssize_t n = read(fd, buffer.data(), std::min(limit, buffer.size()));
  if (n <= 0) return false;
  to.append(buffer.data(), static_cast<size_t>(n));
  return true;
}

}  // namespace

Program::Program(const std::vector<std::string>& args, const Streams& streams) {
  signal(SIGPIPE, SIG_IGN);  // write_input() to a program that has ended
  const Ends in = streams.in_is_terminal    ? make_terminal()
                  : streams.in_path.empty() ? make_pipe(/*we_write=*/true)
                                            : open_path(streams.in_path, O_RDONLY);
  const Ends out = streams.out_path.empty() ? make_pipe(/*we_write=*/false)
                                            : open_path(streams.out_path, O_WRONLY | O_CREAT);
  const Ends err = streams.err_is_terminal ? make_terminal() : make_pipe(/*we_write=*/false);

  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, in.theirs, STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, out.theirs, STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, err.theirs, STDERR_FILENO);

  // A test that ignores SIGPIPE must not hand that on: the program has to do it itself.
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t defaults;
  sigemptyset(&defaults);
  sigaddset(&defaults, SIGPIPE);
  posix_spawnattr_setsigdefault(&attributes, &defaults);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF);

  std::vector<std::string> words = {EDGELLM_PROGRAM};
  if (streams.is_unprivileged && geteuid() == 0) {
    words.insert(words.begin(),
                 {"/usr/bin/setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"});
  }
  words.insert(words.end(), args.begin(), args.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  // Most tests must see the same on a machine with a GPU; the first of two settings counts.
  std::string no_gpu = "CUDA_VISIBLE_DEVICES=";
  std::vector<char*> environment;
  if (!streams.sees_gpus) environment.push_back(no_gpu.data());
  for (char** variable = environ; *variable != nullptr; ++variable) {
    environment.push_back(*variable);
  }
  environment.push_back(nullptr);
  const int error =
      posix_spawn(&pid_, argv[0], &actions, &attributes, argv.data(), environment.data());
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  for (const int fd : {in.theirs, out.theirs, err.theirs}) close(fd);
  in_ = in.ours;
  out_ = out.ours;
  err_ = err.ours;
  REQUIRE(error == 0);
}

Program::~Program() {
  if (pid_ > 0) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  for (int* fd : {&in_, &out_, &err_}) close_if_open(*fd);
}

void Program::write_input(const std::string& text) {
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t n = write(in_, text.data() + done, text.size() - done);
    if (n <= 0) return;  // the program has ended; its exit code tells the test
    done += static_cast<size_t>(n);
  }
}

void Program::close_input() { close_if_open(in_); }

std::string Program::read_output(size_t n_bytes) {
  std::string text;
  while (text.size() < n_bytes) {
    pollfd waiting = {.fd = out_, .events = POLLIN, .revents = 0};
    if (poll(&waiting, 1, kTimeoutMs) <= 0) break;
    if (!read_some(out_, text, n_bytes - text.size())) break;
  }
  return text;
}

void Program::close_output() { close_if_open(out_); }

void Program::send_signal(int signal) { kill(pid_, signal); }

Result Program::wait() {
  using Clock = std::chrono::steady_clock;
  const auto deadline = Clock::now() + std::chrono::milliseconds(kTimeoutMs);
  Result result;
  while (out_ >= 0 || err_ >= 0) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    std::array<pollfd, 2> waiting = {pollfd{.fd = out_, .events = POLLIN, .revents = 0},
                                     pollfd{.fd = err_, .events = POLLIN, .revents = 0}};
    if (left <= 0 || poll(waiting.data(), waiting.size(), static_cast<int>(left)) <= 0) {
      kill(pid_, SIGKILL);
      FAIL("the program did not end; its stderr so far: " << result.err);
    }
    if (waiting[0].revents != 0 && !read_some(out_, result.out, SIZE_MAX)) close_if_open(out_);
    if (waiting[1].revents != 0 && !read_some(err_, result.err, SIZE_MAX)) close_if_open(err_);
  }
  int status = 0;
  rusage usage = {};
  REQUIRE(wait4(pid_, &status, 0, &usage) == pid_);
  pid_ = -1;
  result.peak_bytes = static_cast<size_t>(usage.ru_maxrss) * 1024;
  result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return result;
}

Result run(const std::vector<std::string>& args, const Program::Streams& streams) {
  return Program(args, streams).wait();
}

Result run_with_input(const std::vector<std::string>& args, const std::string& input) {
  Program program(args, {.in_path = ""});
  program.write_input(input);
  program.close_input();
  return program.wait();
}

void check_refused(const Result& result, int exit_code, const std::string& part) {
  INFO("stderr: " << result.err);
  CHECK(result.exit_code == exit_code);
  CHECK(result.out.empty());
  CHECK(result.err.starts_with("edgellm: "));
  CHECK(result.err.find('\n') == result.err.size() - 1);
  CHECK(result.err.find(part) != std::string::npos);
}

nlohmann::json json_of(const Result& result) {
  INFO("stdout: " << result.out << "\nstderr: " << result.err);
  REQUIRE(!result.out.empty());
  REQUIRE(result.out.find('\n') == result.out.size() - 1);
  const auto json = nlohmann::json::parse(result.out, nullptr, /*allow_exceptions=*/false);
  REQUIRE(!json.is_discarded());
  return json;
}

std::string write_file(const TempDir& folder, const std::string& name, const std::string& bytes) {
  std::ofstream((folder / name), std::ios::binary) << bytes;
  return (folder / name);
}

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  REQUIRE(file.good());
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::vector<std::string> names_in(const TempDir& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
    names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::string demo_model() { return EDGELLM_SOURCE_DIR "/model/demo/storyteller.tmac2"; }

std::string copy_model(const TempDir& folder) {
  const auto models = fixtures_where(is_model_folder);
  REQUIRE(!models.empty());
  const auto copy = folder.path() / "hf";
  std::filesystem::create_directory(copy);
  for (const auto& entry : std::filesystem::directory_iterator(models.front())) {
    const std::string name = entry.path().filename();
    if (name.starts_with("tokenizer")) continue;
    std::filesystem::create_symlink(std::filesystem::absolute(entry.path()), copy / name);
  }
  return copy.string();
}

std::string tiny_model(const TempDir& folder) {
  const std::string config = write_file(folder, "config.json", R"({
    "architectures": ["BitNetForCausalLM"], "model_type": "bitnet", "hidden_act": "relu2",
    "hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 97,
    "max_position_embeddings": 128, "rms_norm_eps": 1e-05, "rope_theta": 10000.0,
    "tie_word_embeddings": true
  })");
  const std::string model = (folder / "tiny.tmac2");
  const Result result = run({"synth", config, "-o", model});
  INFO(result.err);
  REQUIRE(result.exit_code == 0);
  return model;
}

}  // namespace edgellm::test
