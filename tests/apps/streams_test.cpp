// Pipes, terminals, signals: what a script and a person at a keyboard rely on.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>

#include "apps/common/signals.h"
#include "tests/apps/program.h"
#include "tests/support/skip.h"

namespace edgellm::test {
namespace {

// Long enough to be still running when something happens to it.
std::vector<std::string> long_run() {
  return {"run", demo_model(), "-p", "Once upon a time", "--ignore-eos"};
}

TEST_CASE("no escape byte ever leaves the program") {
  const TempDir folder;
  const std::string model = tiny_model(folder);
  const std::string ids = write_file(folder, "ids.json", "[1, 2, 3]");
  const std::vector<std::vector<std::string>> commands = {
      {},
      {"--help"},
      {"--version"},
      {"run", "--help"},
      {"run", demo_model(), "-p", "Once upon a time", "-n", "20", "--verbose"},
      {"info", demo_model(), "--sections"},
      {"verify", demo_model()},
      {"perplexity", demo_model(), "--ids-file", ids},
      {"devices"},
      {"no\x1b[31mcommand"},
      {"run", "no\x1b[31mmodel", "-p", "x"},
  };
  for (const auto& command : commands) {
    Program program(command, {.err_is_terminal = true});
    const Result result = program.wait();
    INFO(result.out << result.err);
    CHECK(result.out.find('\x1b') == std::string::npos);
    CHECK(result.err.find('\x1b') == std::string::npos);
  }
}

TEST_CASE("a closed pipe ends a run quietly") {
  Program program(long_run(), {});
  CHECK(program.read_output(10).size() == 10);
  program.close_output();
  const Result result = program.wait();
  CHECK(result.exit_code == 0);
  CHECK(result.err.empty());
}

TEST_CASE("a closed pipe ends a stream of events quietly") {
  std::vector<std::string> command = long_run();
  command.insert(command.end(), {"--sample", "--json", "--stream"});
  Program program(command, {});
  CHECK(program.read_output(6) == "{\"id\":");
  program.close_output();
  const Result result = program.wait();
  CHECK(result.exit_code == 0);
  CHECK(result.err.empty());
}

TEST_CASE("events come while the run goes on, and an interrupted one still ends with its object") {
  std::vector<std::string> command = long_run();
  command.insert(command.end(), {"--json", "--stream"});
  Program program(command, {});
  program.read_output(10);
  program.send_signal(SIGINT);
  const Result result = program.wait();
  CHECK(result.exit_code == 130);
  const size_t last = result.out.rfind('\n', result.out.size() - 2) + 1;
  const auto object = nlohmann::json::parse(result.out.substr(last));
  CHECK(object["finish_reason"] == "interrupted");
  CHECK(object["token_ids"].size() < 2000);
}

TEST_CASE("a full disk is an error") {
  for (std::vector<std::string> command :
       {std::vector<std::string>{"run", demo_model(), "-p", "Once", "-n", "3"},
        {"run", demo_model(), "-p", "Once", "-n", "3", "--json"},
        {"run", demo_model(), "-p", "Once", "-n", "3", "--json", "--stream"},
        {"info", demo_model()},
        {"--help"},
        {"--version"}}) {
    const Result result = Program(command, {.out_path = "/dev/full"}).wait();
    CHECK(result.exit_code == 1);
    CHECK(result.err.find("cannot write to standard output: No space left") != std::string::npos);
  }
}

TEST_CASE("an interrupt ends a run in good order") {
  const auto [signal, code] =
      GENERATE(std::pair{SIGINT, 130}, std::pair{SIGTERM, 143}, std::pair{SIGHUP, 129});
  Program program(long_run(), {});
  program.read_output(10);
  program.send_signal(signal);
  const Result result = program.wait();
  CHECK(result.exit_code == code);
  CHECK(result.err.starts_with("edgellm: interrupted after "));
  CHECK(std::count(result.err.begin(), result.err.end(), '\n') == 1);
  CHECK(result.out.back() == '\n');
}

TEST_CASE("an interrupted file is removed") {
  const auto [signal, code] =
      GENERATE(std::pair{SIGINT, 130}, std::pair{SIGTERM, 143}, std::pair{SIGHUP, 129});
  const TempDir folder;
  // Half a gigabyte, were it not interrupted when the first byte is there.
  Program program({"synth", "smollm-135m", "--vocab", "400000", "-o", (folder / "x")}, {});
  for (int i = 0; i < 10'000 && names_in(folder).empty(); ++i) usleep(1000);
  REQUIRE(names_in(folder).size() == 1);
  program.send_signal(signal);
  CHECK(program.wait().exit_code == code);
  CHECK(names_in(folder).empty());
}

TEST_CASE("a second SIGTERM ends the program at once, a second SIGHUP does not") {
  const auto [second, code] = GENERATE(std::pair{SIGTERM, 143}, std::pair{SIGHUP, 42});
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    install_signal_handlers(/*json=*/false);
    raise(SIGHUP);
    raise(second);
    _exit(received_signal() == SIGHUP ? 42 : 1);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK((WIFEXITED(status) && WEXITSTATUS(status) == code));
}

TEST_CASE("a SIGHUP that nohup switched off stays so") {
  signal(SIGHUP, SIG_IGN);  // the program inherits it
  Program program({"run", demo_model(), "-p", "Once upon a time", "-n", "200", "--ignore-eos"}, {});
  signal(SIGHUP, SIG_DFL);
  program.read_output(10);
  program.send_signal(SIGHUP);
  CHECK(program.wait().exit_code == 0);
}

TEST_CASE("an interrupt while waiting for input ends the program") {
  Program program({"run", demo_model(), "--json"}, {.in_path = ""});
  program.write_input("Once");
  // Nothing tells from outside when the program waits; before that, a signal is not caught yet.
  usleep(300'000);
  program.send_signal(SIGINT);
  CHECK(program.wait().exit_code == 130);
}

TEST_CASE("an interrupted run still prints its JSON") {
  std::vector<std::string> command = long_run();
  command.insert(command.end(), {"--json", "--threads", "1"});
  Program program(command, {});
  // Nothing is written before the end. On a machine that is so slow that the model is not loaded
  // by now, there is no JSON; on one that is so fast that it has finished, nothing to interrupt.
  usleep(150'000);
  program.send_signal(SIGINT);
  const Result result = program.wait();
  if (result.out.empty() || result.exit_code == 0) return skip("the run did not take long enough");
  CHECK(result.exit_code == 130);
  CHECK(json_of(result)["finish_reason"] == "interrupted");
  CHECK(result.err.empty());
}

TEST_CASE("a terminal without a prompt gets a usage line, not a prompt") {
  const Result result = Program({"run", demo_model()}, {.in_is_terminal = true}).wait();
  CHECK(result.exit_code == 2);
  CHECK(result.out.empty());
  CHECK(result.err.find("type edgellm run MODEL") != std::string::npos);
}

TEST_CASE("a pipe that stays open is named while it is waited for") {
  Program program({"run", demo_model(), "-p", "Once", "-n", "2"}, {.in_path = ""});
  usleep(2'600'000);
  program.close_input();
  const Result result = program.wait();
  CHECK(result.exit_code == 0);
  CHECK(result.err.find("waiting for standard input to end") != std::string::npos);
}

}  // namespace
}  // namespace edgellm::test
