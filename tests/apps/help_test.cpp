// Help, topics, suggestions and man pages: made from the tree of options, so nothing is left out.
#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <regex>
#include <set>

#include "apps/cli/help_topics.h"
#include "apps/common/near_matches.h"
#include "apps/common/text_format.h"
#include "tests/apps/program.h"
#include "tests/support/environment.h"
#include "tests/support/skip.h"

namespace edgellm::test {
namespace {

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

std::string output_of(const std::vector<std::string>& args) {
  const Result result = run(args);
  INFO(result.err);
  REQUIRE(result.exit_code == 0);
  CHECK(result.err.empty());
  return result.out;
}

// The commands as `edgellm --help` lists them.
std::vector<std::string> commands() {
  const std::string help = output_of({"--help"});
  std::vector<std::string> names;
  std::istringstream lines(help.substr(help.find("Commands:\n") + 10));
  for (std::string line; std::getline(lines, line) && line.starts_with("  ");) {
    if (line[2] != ' ') names.push_back(line.substr(2, line.find(' ', 2) - 2));
  }
  return names;
}

TEST_CASE("help of a command is the same by either way, and no line is wider than 80") {
  REQUIRE(commands().size() > 10);
  CHECK(output_of({"help"}) == output_of({"--help"}));
  for (const std::string& command : commands()) {
    const std::string help = output_of({"help", command});
    CHECK(help == output_of({command, "--help"}));
    CHECK(help == output_of({command, "-h"}));
    std::istringstream lines(help);
    bool in_examples = false;
    for (std::string line; std::getline(lines, line);) {
      INFO(line);
      if (line == "Examples:") in_examples = true;
      if (line.empty()) in_examples = false;
      if (!in_examples) CHECK(line.size() <= 80);
    }
  }
}

TEST_CASE("options are grouped") {
  const std::string help = output_of({"run", "--help"});
  CHECK(help.find("\nArguments:\n  MODEL ") < help.find("\nOptions:\n  -h, --help "));
  CHECK(help.find("\nEngine:\n") < help.find("  --kv-type i16|i8|f32 "));
  CHECK(help.find("\nSampling:\n") < help.find("  --temp T "));
}

TEST_CASE("what was mistyped and what may have been meant") {
  const auto refused = [](const std::vector<std::string>& args, const std::string& part) {
    const Result result = run(args);
    INFO(result.err);
    CHECK(result.exit_code == 2);
    CHECK(contains(result.err, part));
    CHECK(result.err.find('\n') == result.err.size() - 1);
  };
  refused({"rnu", "m.tmac2"}, "unknown command rnu; did you mean run?");
  refused({"xyzzy"}, "unknown command xyzzy; the commands are run, ");
  refused({"run", "m", "--tmep", "1"}, "unknown option --tmep; did you mean --temp?");
  refused({"run", "m", "--max-token=3"}, "unknown option --max-token; did you mean --max-tokens?");
  refused({"run", "m", "-temp", "1"}, "did you mean --temp?");
  refused({"run", "m", "--xyzzy"}, "unknown option --xyzzy; see edgellm run --help");
  refused({"--vresion"}, "unknown option --vresion; did you mean --version?");
  refused({"run", "m", "--kv-type", "i61"}, "'i61' is not one of i16, i8, f32; did you mean i16?");
  refused({"run", "m", "--device", "gpu"}, "did you mean cuda?");
  refused({"run", "m", "--device", "cudda"}, "did you mean cuda?");
  refused({"help", "enviroment"}, "did you mean environment?");
  refused({"completion", "tcsh"}, "'tcsh' is not one of bash, zsh, fish");
  refused({"completion", "bsah"}, "did you mean bash?");
  refused({"help", "rnu"}, "did you mean run?");
  refused({"synth", "lama3-8b", "-o", "x"}, "did you mean llama3-8b?");
}

TEST_CASE("near matches") {
  const std::vector<std::string> names = {"--temp", "--top-k", "--top-p", "--stop", "-n"};
  using Names = std::vector<std::string>;
  CHECK(near_matches("--tmep", names) == Names{"--temp"});
  CHECK(near_matches("--TEMP", names) == Names{"--temp"});
  CHECK(near_matches("--temperature", names) == Names{"--temp"});
  CHECK(near_matches("--top-q", names) == Names{"--top-k", "--top-p"});
  CHECK(near_matches("--tem", names) == Names{"--temp"});
  CHECK(near_matches("--t", names).empty());
  CHECK(near_matches("", names).empty());
  CHECK(near_matches("--", names).empty());
  CHECK(near_matches("--xyz", names).empty());
  CHECK(near_matches(std::string(100'000, 't'), names).empty());
  CHECK(did_you_mean("--top-q", names) == "; did you mean --top-k or --top-p?");
  CHECK(did_you_mean("--xyz", names).empty());
}

TEST_CASE("paragraphs are wrapped") {
  CHECK(wrapped("aa bb cc", 5, 0) == "aa bb\ncc\n");
  CHECK(wrapped("aa bb cc", 5, 2) == "aa bb\n  cc\n");
  CHECK(wrapped("aa bbbbbbbbb cc", 5, 0) == "aa\nbbbbbbbbb\ncc\n");
  CHECK(wrapped("", 5, 0) == "\n");
  CHECK(definition("-x", "aa bb cc", 6, 11) == "  -x  aa bb\n      cc\n");
  CHECK(definition("-xy", "aa", 6, 20) == "  -xy\n      aa\n");
}

TEST_CASE("help environment names every variable that the code reads, and no other") {
  namespace fs = std::filesystem;
  std::set<std::string> read;
  const std::regex call("getenv\\(([^)]*)\\)");
  for (const char* folder : {"apps", "base", "engine", "kernels", "model", "tokenizer"}) {
    for (const auto& entry :
         fs::recursive_directory_iterator(fs::path(EDGELLM_SOURCE_DIR) / folder)) {
      const std::string extension = entry.path().extension();
      if (!entry.is_regular_file() || extension == ".tmac2") continue;
      const std::string code = read_file(entry.path());
      for (std::sregex_iterator hit(code.begin(), code.end(), call), end; hit != end; ++hit) {
        const std::string argument = (*hit)[1];
        if (argument.starts_with('"')) read.insert(argument.substr(1, argument.size() - 2));
      }
      // variable("NAME") of model_folders.cpp.
      const std::regex wrapper("variable\\(\"([A-Z_]+)\"\\)");
      for (std::sregex_iterator hit(code.begin(), code.end(), wrapper), end; hit != end; ++hit) {
        read.insert((*hit)[1]);
      }
    }
  }
  REQUIRE(read.contains("EDGELLM_ISA"));
  read.insert("CUDA_VISIBLE_DEVICES");  // read by NVIDIA's driver
  read.insert("SSL_CERT_FILE");         // read by OpenSSL
  read.insert("TMPDIR");                // read by the standard library
  std::set<std::string> documented;
  for (const EnvironmentVariable& variable : environment_variables()) {
    documented.insert(variable.name);
  }
  CHECK(documented == read);

  const WithVariable models("EDGELLM_MODELS", "/a:/b\033[1m");
  const WithVariable key("EDGELLM_API_KEY", "sk-secret123");
  const std::string help = output_of({"help", "environment"});
  CHECK(!contains(help, "sk-secret123"));
  CHECK(contains(help, "Set (not shown).\n"));
  for (const std::string& name : read) CHECK(contains(help, "\n  " + name + " "));
  CHECK(contains(help, "Now: /a:/b\\x1b[1m\n"));
}

TEST_CASE("help exit-codes says what docs/cli.md says") {
  const std::string docs = read_file(EDGELLM_SOURCE_DIR "/docs/cli.md");
  const size_t begin = docs.find("## Exit codes");
  const std::string table = docs.substr(begin, docs.find("\n## ", begin + 1) - begin);
  size_t rows = 0;
  for (const ExitStatus& status : exit_statuses()) {
    CHECK(contains(table, "\n| " + status.codes + " | "));
    CHECK(contains(output_of({"help", "exit-codes"}), "\n  " + status.codes + " "));
  }
  for (size_t at = 0; (at = table.find("\n| ", at)) != std::string::npos; ++at) ++rows;
  CHECK(rows == exit_statuses().size() + 1);
}

TEST_CASE("man pages hold every command and option") {
  const TempDir folder;
  output_of({"help", "--man-pages", folder.path().string()});
  std::vector<std::string> pages = {"edgellm.1"};
  for (const std::string& command : commands()) pages.push_back("edgellm-" + command + ".1");
  std::sort(pages.begin(), pages.end());
  CHECK(names_in(folder) == pages);

  CHECK(read_file(folder / "edgellm.1") == output_of({"help", "--man"}));
  for (const std::string& command : commands()) {
    INFO(command);
    const std::string page = read_file(folder / ("edgellm-" + command + ".1"));
    CHECK(page == output_of({"help", command, "--man"}));
    CHECK(contains(output_of({"help", "--man"}), "\\fB" + command + "\\fR\n"));
    const std::string help = output_of({command, "--help"});
    const std::regex option("--[a-z][a-z-]+");
    const std::string options = help.substr(help.find("\nOptions:"));
    for (std::sregex_iterator hit(options.begin(), options.end(), option), end; hit != end; ++hit) {
      const std::string name = std::regex_replace(hit->str(), std::regex("-"), "\\-");
      INFO(name);
      CHECK(contains(page, name));
    }
  }
  for (const EnvironmentVariable& variable : environment_variables()) {
    CHECK(contains(output_of({"help", "--man"}), "\\fB" + variable.name + "\\fR\n"));
  }
}

TEST_CASE("man pages are clean roff") {
  if (std::system("groff --version >/dev/null 2>&1") != 0) {
    skip("no groff");
    return;
  }
  const TempDir folder;
  output_of({"help", "--man-pages", folder.path().string()});
  for (const std::string& name : names_in(folder)) {
    const std::string errors = folder / "errors";
    const std::string command =
        "groff -ww -man -Tascii -z '" + (folder / name) + "' 2>'" + errors + "'";
    CHECK(std::system(command.c_str()) == 0);
    INFO(name);
    CHECK(read_file(errors).empty());
    std::filesystem::remove(errors);
  }
}

}  // namespace
}  // namespace edgellm::test
