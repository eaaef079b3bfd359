// Runs the real binary as a user's shell would and looks at what came out of it.
#pragma once

#include <sys/types.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/temp_dir.h"

namespace edgellm::test {

struct Result {
  int exit_code = -1;  // 128 + signal where one ended the process
  std::string out;
  std::string err;
  size_t peak_bytes = 0;  // of memory at one time
};

// A running edgellm. Its streams are pipes unless a path or a terminal is named. Everything ends
// with the object; a program that runs for longer than a minute (ten under a sanitizer) is killed
// and the test fails.
class Program {
 public:
  struct Streams {
    std::string in_path = "/dev/null";  // empty: a pipe, see write_input()
    bool in_is_terminal = false;
    std::string out_path = "";  // empty: a pipe
    bool err_is_terminal = false;
    // Where the tests run as root: as a user without any rights, by way of util-linux's setpriv.
    bool is_unprivileged = false;
    bool sees_gpus = false;
  };

  Program(const std::vector<std::string>& args, const Streams& streams);
  ~Program();
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  void write_input(const std::string& text);
  void close_input();
  // Waits until stdout has given n_bytes more or has ended.
  std::string read_output(size_t n_bytes);
  void close_output();
  void send_signal(int signal);
  pid_t pid() const { return pid_; }

  // Reads both streams to their end. `out` lacks what read_output() returned.
  Result wait();

 private:
  pid_t pid_ = -1;
  int in_ = -1;
  int out_ = -1;
  int err_ = -1;
};

// Runs to the end, with /dev/null as standard input if nothing else is said.
Result run(const std::vector<std::string>& args, const Program::Streams& streams = {});

// Runs to the end with `input` in a pipe.
Result run_with_input(const std::vector<std::string>& args, const std::string& input);

// One line on stderr that holds `part`, nothing on stdout.
void check_refused(const Result& result, int exit_code, const std::string& part);

// The JSON that a successful run printed: exactly one line.
nlohmann::json json_of(const Result& result);

// Writes `name` into the folder and returns its path.
std::string write_file(const TempDir& folder, const std::string& name, const std::string& bytes);
std::string read_file(const std::string& path);
std::vector<std::string> names_in(const TempDir& folder);  // sorted

// The committed model that speaks.
std::string demo_model();

// A random model without a tokenizer, small enough to run in a moment: 3 layers, vocabulary 97,
// context 128.
std::string tiny_model(const TempDir& folder);

// A model folder of the fixtures, linked as `folder`/hf; its tokenizer files stay behind.
std::string copy_model(const TempDir& folder);

}  // namespace edgellm::test
