// The shared library as a file, its examples, and what `cmake --install` makes of it.
#include <sys/wait.h>

#include <algorithm>
#include <filesystem>
#include <regex>
#include <set>

#include "tests/apps/program.h"
#include "tests/capi/handles.h"
#include "tests/support/sanitizers.h"
#include "tests/support/skip.h"

namespace edgellm::test {
namespace {

const std::string kPrompt = "One day the fox said to the lion,";

// Runs a shell command without a GPU; its stdout.
Result shell(const std::string& command) {
  FILE* pipe =
      popen(("CUDA_VISIBLE_DEVICES= ; export CUDA_VISIBLE_DEVICES; " + command).c_str(), "r");
  REQUIRE(pipe != nullptr);
  Result result;
  char buffer[4096];
  for (size_t n = 0; (n = fread(buffer, 1, sizeof buffer, pipe)) > 0;) result.out.append(buffer, n);
  const int status = pclose(pipe);
  result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return result;
}

std::string quoted(const std::string& word) { return "'" + word + "'"; }

std::string shell_output(const std::string& command) {
  const Result result = shell(command);
  INFO(command << "\n" << result.out);
  REQUIRE(result.exit_code == 0);
  return result.out;
}

// All matches of the first group.
std::set<std::string> names_of(const std::string& text, const std::string& pattern) {
  const std::regex regex(pattern);
  std::set<std::string> names;
  for (std::sregex_iterator it(text.begin(), text.end(), regex), end; it != end; ++it) {
    names.insert((*it)[1]);
  }
  return names;
}

TEST_CASE("the library exports the functions of its header and nothing else") {
  const std::string header = read_file(EDGELLM_SOURCE_DIR "/apps/capi/edgellm.h");
  const auto declared = names_of(header, R"(EDGELLM_API [a-z_0-9 *]*?(edgellm_[a-z_]+)\()");
  CHECK(declared.size() == 22);
  const std::string symbols =
      shell_output("nm -D --defined-only --format=posix " + quoted(EDGELLM_LIBRARY));
  // The version's own name is an absolute symbol (A).
  CHECK(names_of(symbols, R"((?:^|\n)([^ @]+)(?:@@?\S+)? [^A ] )") == declared);
  for (const std::string& name : declared) {
    CHECK(symbols.find(name + "@@EDGELLM_1 T") != std::string::npos);
  }
}

TEST_CASE("the library's version is in its name") {
  CHECK(shell_output("readelf -d " + quoted(EDGELLM_LIBRARY)).find("[libedgellm.so.1]") !=
        std::string::npos);
  CHECK(std::filesystem::canonical(EDGELLM_LIBRARY).filename() == "libedgellm.so.1");
  CHECK(edgellm_abi_version() == EDGELLM_ABI_VERSION);
  CHECK(json_of(run({"--version", "--json"}))["version"] == edgellm_version());
}

TEST_CASE("the example in C writes what edgellm run writes") {
  const std::string expected = run({"run", demo_model(), "-p", kPrompt, "-n", "60"}).out;
  const std::string out = shell_output(quoted(EDGELLM_C_EXAMPLE) + " " + quoted(demo_model()) +
                                       " " + quoted(kPrompt) + " 60");
  CHECK(out + "\n" == expected);
  const Result refused = shell(quoted(EDGELLM_C_EXAMPLE) + " /nowhere/m x 2>&1");
  CHECK(refused.exit_code == EDGELLM_ERROR_MODEL_FILE);
  CHECK(refused.out.find("no model file /nowhere/m") != std::string::npos);
}

TEST_CASE("the example in Python has the ids, the text and the logits of edgellm") {
  if (kSanitized) {
    skip("Python itself is built without the sanitizers");
    return;
  }
  const TempDir folder;
  const std::string example = "LIBEDGELLM=" + quoted(EDGELLM_LIBRARY) + " " +
                              quoted(EDGELLM_PYTHON) + " " +
                              quoted(EDGELLM_SOURCE_DIR "/apps/capi/examples/generate.py") + " ";
  const std::string arguments = quoted(demo_model()) + " " + quoted(kPrompt) + " -n 50 --json ";
  const auto of_python = [&](const std::string& more) {
    return nlohmann::json::parse(shell_output(example + arguments + more));
  };
  const auto of_program = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"run", demo_model(), "-p", kPrompt, "-n", "50", "--json"});
    return json_of(run(more));
  };
  const auto greedy = of_python("--logits " + quoted(folder / "python.npy"));
  const auto expected = of_program({});
  CHECK(greedy["token_ids"] == expected["token_ids"]);
  CHECK(greedy["text"] == expected["text"]);
  REQUIRE(run({"logits", demo_model(), "-p", kPrompt, "-o", folder / "program.npy"}).exit_code ==
          0);
  CHECK(read_file(folder / "python.npy") == read_file(folder / "program.npy"));

  CHECK(of_python("--temp 0.9 --seed 12")["token_ids"] ==
        of_program({"--temp", "0.9", "--seed", "12"})["token_ids"]);
  CHECK(shell(example + "/nowhere/m x 2>/dev/null").exit_code == EDGELLM_ERROR_MODEL_FILE);
}

TEST_CASE("an installed library is found by pkg-config") {
  if (kSanitized) {
    skip("the program that uses it is built without the sanitizers");
    return;
  }
  const TempDir folder;
  const std::string prefix = folder / "prefix";
  shell_output(quoted(EDGELLM_CMAKE) + " --install " + quoted(EDGELLM_BINARY_DIR) + " --prefix " +
               quoted(prefix));
  const std::string find =
      "export PKG_CONFIG_PATH=$(dirname $(find " + quoted(prefix) + " -name edgellm.pc)); ";
  CHECK(shell_output(find + "pkg-config --modversion edgellm") ==
        edgellm_version() + std::string("\n"));
  shell_output(find + "cc -std=c99 -pedantic-errors -Werror " +
               quoted(EDGELLM_SOURCE_DIR "/apps/capi/examples/generate.c") +
               " $(pkg-config --cflags --libs edgellm) "
               "-Wl,-rpath,$(pkg-config --variable=libdir edgellm) -o " +
               quoted(folder / "generate"));
  const std::string out =
      shell_output(quoted(folder / "generate") + " " + quoted(demo_model()) + " Once 5");
  CHECK(out + "\n" == run({"run", demo_model(), "-p", "Once", "-n", "5"}).out);
}

}  // namespace
}  // namespace edgellm::test
