// Messages on stderr: notes as they always were, and lines with time and level for those who ask.

#include <catch2/catch.hpp>
#include <regex>

#include "tests/apps/program.h"
#include "tests/support/environment.h"

namespace edgellm::test {
namespace {

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

Result run_demo() {
  return run({"run", demo_model(), "Once", "-n", "2", "--temp", "0", "--device", "cpu"});
}

TEST_CASE("EDGELLM_LOG=debug shows the load with time and level, and changes no answer") {
  const Result quiet = run_demo();
  REQUIRE(quiet.exit_code == 0);
  CHECK(quiet.err.empty());
  {
    const WithVariable level("EDGELLM_LOG", "");
    CHECK(run_demo().err == quiet.err);
  }
  {
    const WithVariable level("EDGELLM_LOG", "info");
    CHECK(run_demo().err == quiet.err);
  }
  const WithVariable level("EDGELLM_LOG", "debug");
  const Result loud = run_demo();
  CHECK(loud.exit_code == 0);
  CHECK(loud.out == quiet.out);
  CHECK(contains(loud.err, "[debug] opened " + demo_model() + " in "));
  CHECK(contains(loud.err, "[debug] device: the CPU"));
  CHECK(contains(loud.err, "[debug] checked "));
  CHECK(contains(loud.err, "[debug] loaded the tokenizer in "));
  CHECK(contains(loud.err, "[debug] weights ready on cpu"));
  const std::regex line("\\d{4}-\\d\\d-\\d\\d \\d\\d:\\d\\d:\\d\\d\\.\\d{3} \\[debug\\] [^\\n]+");
  std::istringstream lines(loud.err);
  for (std::string text; std::getline(lines, text);) {
    INFO(text);
    CHECK(std::regex_match(text, line));
  }
}

TEST_CASE("a level hides notes, never the line that says why a command failed") {
  const TempDir folder;
  const auto synth = [&] {
    return run(
        {"synth", "smollm-135m", "--layers", "1", "--vocab", "97", "-o", folder / "m.tmac2"});
  };
  for (const char* loud : {"trace", "debug", "info"}) {
    const WithVariable level("EDGELLM_LOG", loud);
    CHECK(contains(synth().err, "edgellm: wrote "));
  }
  for (const char* silent : {"warn", "error", "off"}) {
    const WithVariable level("EDGELLM_LOG", silent);
    const Result result = synth();
    CHECK(result.exit_code == 0);
    CHECK(result.err.empty());
    check_refused(run({"info", folder / "none"}), 3, "edgellm: no model file ");
  }
}

TEST_CASE("a level that is none is a usage error with the list") {
  const WithVariable level("EDGELLM_LOG", "loud\n");
  check_refused(run_demo(), 2,
                "EDGELLM_LOG: 'loud\\x0a' is not one of trace, debug, info, warn, error, off");
}

TEST_CASE("a log line stays one line, whatever it quotes") {
  const TempDir folder;
  const std::string path = folder / "a\n\033[1m{}%v.tmac2";
  REQUIRE(run({"synth", "smollm-135m", "--layers", "1", "--vocab", "97", "-o", path}).exit_code ==
          0);
  const WithVariable level("EDGELLM_LOG", "debug");
  const Result result = run({"info", path});
  CHECK(contains(result.err, "/a\\x0a\\x1b[1m{}%v.tmac2 in "));
  CHECK(result.err.find('\n') == result.err.size() - 1);
}

}  // namespace
}  // namespace edgellm::test
