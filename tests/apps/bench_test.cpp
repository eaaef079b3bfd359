// edgellm bench as its user meets it: forms of output, refusals, Ctrl-C, nothing left behind.
#include <signal.h>

#include <catch2/catch.hpp>
#include <set>
#include <sstream>

#include "tests/apps/program.h"
#include "tests/support/environment.h"

namespace edgellm::test {
namespace {

const std::vector<std::string> kQuick = {"-p", "20", "-n", "6", "-r", "2", "--threads", "1"};

std::vector<std::string> bench(std::vector<std::string> args) {
  args.insert(args.begin(), "bench");
  args.insert(args.end(), kQuick.begin(), kQuick.end());
  return args;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

size_t columns_of(const std::string& csv_line) {
  size_t columns = 1;
  bool quoted = false;
  for (const char c : csv_line) {
    if (c == '"') quoted = !quoted;
    if (c == ',' && !quoted) ++columns;
  }
  return columns;
}

void refused(const std::vector<std::string>& args, const std::string& part) {
  const Result result = run(args);
  INFO(result.err);
  CHECK(result.exit_code == 2);
  CHECK(result.out.empty());
  CHECK(lines_of(result.err).size() == 1);
  CHECK(result.err.find(part) != std::string::npos);
}

TEST_CASE("bench prints a table in llama-bench's columns") {
  const TempDir folder;
  const Result result = run(bench({tiny_model(folder), "-d", "0,50", "-b", "1,2"}));
  INFO(result.err);
  REQUIRE(result.exit_code == 0);
  const std::vector<std::string> lines = lines_of(result.out);
  REQUIRE(lines.size() >= 7);
  CHECK(lines[0].starts_with("| model | size | params | backend | threads | test | t/s |"));
  for (size_t i = 0; i < 7; ++i) {
    CHECK(std::count(lines[i].begin(), lines[i].end(), '|') ==
          std::count(lines[0].begin(), lines[0].end(), '|'));
  }
  CHECK(lines[2].find("| pp20 |") != std::string::npos);
  CHECK(lines[3].find("| tg6 |") != std::string::npos);
  CHECK(lines[4].find("| tg6 x2 |") != std::string::npos);
  CHECK(lines[5].find("| tg6 @ d50 |") != std::string::npos);
  CHECK(lines[6].find("| tg6 @ d50 x2 |") != std::string::npos);
  CHECK(result.out.find("± ") != std::string::npos);
  CHECK(result.err.empty());
}

TEST_CASE("bench as JSON, JSON lines and CSV says the same of each test") {
  const TempDir folder;
  const std::string model = tiny_model(folder);
  const auto json =
      json_of(run(bench({model, "-d", "0,9", "-o", "json", "--kv-type", "i16,i8,f32"})));
  CHECK(json["schema"] == "edgellm.bench/1");
  for (const char* part : {"build", "machine", "runs"}) CHECK(json.contains(part));
  REQUIRE(json["runs"].size() == 3);
  CHECK(json["runs"][1]["kv_type"] == "i8");
  CHECK(json["runs"][2]["kv_type"] == "f32");
  for (const auto& one : json["runs"]) {
    REQUIRE(one["tests"].size() == 3);
    CHECK(one["tests"][1]["samples_ns"].size() == 2);
    CHECK(one["tests"][1]["gaps_ns"].size() == 2 * 5);
    CHECK(one["degradation"].size() == 1);
    CHECK(one["read_bandwidth"]["gb_s"].get<double>() > 0);
    CHECK(one["model"]["random"] == true);
    CHECK(one["gpu"]["not_available"]["driver"] == "the test ran on the CPU");
  }

  const Result rows = run(bench({model, "-d", "0,9", "-o", "jsonl"}));
  REQUIRE(lines_of(rows.out).size() == 3);
  for (const std::string& line : lines_of(rows.out)) {
    const auto object = nlohmann::json::parse(line);
    CHECK(object["schema"] == "edgellm.bench-test/1");
    CHECK(object["run"]["model"]["id"] == json["runs"][0]["model"]["id"]);
    CHECK(object["test"].contains("avg_ts"));
  }

  const Result csv = run(bench({model, "-d", "0,9", "-o", "csv"}));
  const std::vector<std::string> lines = lines_of(csv.out);
  REQUIRE(lines.size() == 4);
  CHECK(lines[0].find(",itl_p99_ns,") != std::string::npos);
  for (const std::string& line : lines) CHECK(columns_of(line) == columns_of(lines[0]));
}

TEST_CASE("bench: names of CSV columns are unique") {
  const TempDir folder;
  const Result csv = run(bench({tiny_model(folder), "-o", "csv"}));
  std::istringstream names(lines_of(csv.out).at(0));
  std::set<std::string> seen;
  for (std::string name; std::getline(names, name, ',');) {
    INFO(name);
    CHECK(seen.insert(name).second);
  }
  CHECK(seen.contains("read_bandwidth_gb_s"));
  CHECK(seen.contains("test_read_bandwidth_gb_s"));
}

// Where each word of a line ends, of columns that stand to the right.
TEST_CASE("bench: the table for terminals has its columns below each other") {
  const Result result = run(bench({demo_model(), "-d", "0,1024", "-o", "table"}));
  REQUIRE(result.exit_code == 0);
  const std::vector<std::string> lines = lines_of(result.out);
  REQUIRE(lines.size() > 4);
  const auto columns = [](std::string line) {  // of the terminal
    std::erase_if(line, [](char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; });
    return line.size();
  };
  for (size_t i = 0; i < 4; ++i) {
    INFO(lines[i]);
    CHECK(columns(lines[i]) <= 80);
    CHECK(lines[i].find('|') == std::string::npos);
    if (!lines[i].ends_with('*')) CHECK(columns(lines[i]) == columns(lines[0]));
  }
  CHECK(lines[0].starts_with("on       test"));
  CHECK(lines[1].starts_with("CPU x1   pp20"));
  CHECK(lines[3].starts_with("CPU x1   tg6 @ d1024"));
  CHECK(result.out.find("\nstoryteller, 7.5 MB, 17.3 M parameters, on cpu (") != std::string::npos);
  // Sizes have one unit everywhere.
  CHECK(run(bench({demo_model()})).out.find("| storyteller | 7.5 MB | 17.3 M |") !=
        std::string::npos);
  const auto json = json_of(run(bench({demo_model(), "--json"})));
  CHECK(json["schema"] == "edgellm.bench/1");
}

TEST_CASE("bench measures models and shapes, and leaves nothing behind") {
  const TempDir folder;
  const std::string model = tiny_model(folder);
  const TempDir scratch;
  const WithVariable place("TMPDIR", scratch.path().string());
  const auto both = json_of(
      run(bench({model, "--shape", (folder / "config.json"), "-o", "json", "--layers", "2"})));
  REQUIRE(both["runs"].size() == 2);
  CHECK(both["runs"][0]["model"]["layers"] == 3);
  CHECK(both["runs"][1]["model"]["layers"] == 2);
  // Beyond what the shape says: the model is made with as long a context as the tests need.
  const auto shape = json_of(run(
      bench({"--shape", (folder / "config.json"), "-d", "150", "-o", "json", "--layers", "2"})));
  CHECK(shape["runs"][0]["model"]["max_context"] == 156);
  CHECK(shape["runs"][0]["model"]["layers"] == 2);
  CHECK(shape["runs"][0]["model"]["name"] == "config");
  CHECK(shape["runs"][0]["tests"][1]["test"] == "tg6 @ d150");
  CHECK(names_in(scratch).empty());

  const WithVariable nowhere("TMPDIR", (folder / "nowhere"));
  const Result result = run(bench({"--shape", (folder / "config.json")}));
  CHECK(result.exit_code == 1);
  CHECK(result.err.find("set TMPDIR") != std::string::npos);
}

TEST_CASE(
    "bench takes the default depths that a model's context allows, and says which it leaves") {
  const TempDir folder;
  const Result result =
      run({"bench", tiny_model(folder), "-r", "1", "--threads", "1", "-o", "json"});
  const auto json = json_of(result);
  REQUIRE(json["runs"][0]["tests"].size() == 2);
  CHECK(json["runs"][0]["tests"][0]["test"] == "pp128");
  CHECK(json["runs"][0]["tests"][1]["test"] == "tg128");
  CHECK(result.err.find("depths left out are 1024, 4096, 8192, 16384") != std::string::npos);
}

TEST_CASE("bench writes a page that is whole and without scripts") {
  const TempDir folder;
  const std::string page = folder / "report.html";
  const Result result = run(bench({tiny_model(folder), "-d", "0,50", "--html", page}));
  INFO(result.err);
  REQUIRE(result.exit_code == 0);
  const std::string text = read_file(page);
  CHECK(text.starts_with("<!DOCTYPE html>"));
  CHECK(text.ends_with("</html>\n"));
  CHECK(text.find("<script") == std::string::npos);
  CHECK(text.find("http") == std::string::npos);
  for (const char* part : {"Decode speed against depth", "Time between two tokens: distribution",
                           "Bytes read against", "n/a: the test ran on the CPU", "Test setup"}) {
    INFO(part);
    CHECK(text.find(part) != std::string::npos);
  }
  const Result nowhere = run(bench({demo_model(), "--html", "/nonexistent/report.html"}));
  CHECK(nowhere.exit_code == 1);
  CHECK(nowhere.out.empty());
}

TEST_CASE("bench refuses what it cannot measure, in one line") {
  const TempDir folder;
  const std::string model = tiny_model(folder);
  refused({"bench"}, "needs a MODEL or --shape NAME");
  refused({"bench", "--shape", "smollm-135"}, "did you mean smollm-135m?");
  refused({"bench", model, "-p", "1x"}, "'1x' is not a whole number from 0 to");
  refused({"bench", model, "-d", "1,,2"}, "'' is not a whole number");
  refused({"bench", model, "-n", "99999999999"}, "'99999999999' is not a whole number");
  refused({"bench", model, "-n", "-1"}, "'-1' is not a whole number");
  refused({"bench", model, "-b", "0"}, "from 1 to 1024");
  refused({"bench", model, "-r", "0"}, "--repetitions");
  refused({"bench", model, "-o", "xml"}, "'xml' is not one of table, md, csv, json, jsonl");
  refused({"bench", model, "--device", "cpu,gpu"}, "did you mean cuda?");
  refused({"bench", model, "--device", "cpu,1"}, "1 is the number of a GPU and stands behind one");
  refused({"bench", model, "--device", "cpu+auto"}, "auto chooses one device");
  refused({"bench", model, "--ops", "--device", "cpu+cpu"}, "--ops measures one device at a time");
  refused({"bench", model, "--kv-type", "f8"}, "'f8' is not one of i16, i8, f32");
  refused({"bench", model, "--kv-type", "i16,f16"}, "use --kv-type i16");
  refused({"bench", model, "-p", "0", "-n", "0"}, "leave no test");
  refused({"bench", model, "-d", "128", "-n", "1"}, "needs a context of 129");
  refused({"bench", model, "-p", "129"}, "pp129 needs a context of 129");
  CHECK(run({"bench", (folder / "none.tmac2")}).exit_code == 3);
  CHECK(run({"bench", model, "--device", "cuda"}).exit_code == 5);
}

TEST_CASE("bench measures devices one after the other, or together") {
  const TempDir folder;
  const Result result =
      run({"bench", tiny_model(folder), "-p", "0", "-n", "8", "-d", "0", "-b", "2", "-r", "2",
           "--device", "cpu,cpu+cpu", "--threads", "2", "--json"});
  REQUIRE(result.exit_code == 0);
  const auto runs = nlohmann::json::parse(result.out)["runs"];
  REQUIRE(runs.size() == 2);
  CHECK(runs[0]["devices"] == 1);
  CHECK(runs[1]["devices"] == 2);
  CHECK(runs[1]["device"].get<std::string>().find(") + cpu (") != std::string::npos);
  const auto& test = runs[1]["tests"][0];
  CHECK(test["test"] == "tg8 x2");
  CHECK(test["gaps_ns"].size() == 2 * 2 * 7);
  CHECK(test["samples_ts"][0].get<double>() ==
        Approx(1e9 * 2 * 2 * 8 / test["samples_ns"][0].get<double>()));
}

TEST_CASE("bench --ops times each op beside its unfused chain, which gives the same bits") {
  const TempDir folder;
  const std::string model = tiny_model(folder);
  const auto ops = [&](const std::vector<std::string>& more) {
    std::vector<std::string> args = {"bench", "--ops",     model, "--rows", "1,3,20", "-d",
                                     "70",    "--threads", "2",   "-r",     "2"};
    args.insert(args.end(), more.begin(), more.end());
    return run(args);
  };
  const auto json = json_of(ops({"-o", "json"}));
  CHECK(json["schema"] == "edgellm.bench-ops/1");
  std::vector<std::string> names;
  for (const auto& op : json["runs"][0]["ops"]) {
    names.push_back(op["op"].get<std::string>() + " " + op["rows"].dump());
    CHECK(op["fused"]["time_us"].get<double>() > 0);
    CHECK(op["fused"]["gb_s"].get<double>() > 0);
    const bool has_chain = op["op"] != "attention" && op["op"].get<std::string>()[0] != 'h';
    CHECK(op["unfused"]["time_us"].is_null() == !has_chain);
    CHECK(op["bytes_ratio"].is_null() == !has_chain);
    if (has_chain) CHECK(op["bytes_ratio"].get<double>() > 1);
  }
  CHECK(names == std::vector<std::string>{
                     "qkv 1",       "attention 1",     "attn_out 1",  "ffn_up 1",
                     "ffn_down 1",  "layer 1",         "qkv 3",       "attention 3",
                     "attn_out 3",  "ffn_up 3",        "ffn_down 3",  "layer 3",
                     "qkv 20",      "attention 20",    "attn_out 20", "ffn_up 20",
                     "ffn_down 20", "layer 20",        "head 1",      "head certified 1",
                     "head 3",      "head certified 3"});
  CHECK(lines_of(ops({"-o", "jsonl"}).out).size() == names.size());
  const std::vector<std::string> csv = lines_of(ops({"-o", "csv"}).out);
  REQUIRE(csv.size() == names.size() + 1);
  for (const std::string& line : csv) CHECK(columns_of(line) == columns_of(csv[0]));
  const Result table = ops({});
  CHECK(table.exit_code == 0);
  CHECK(table.out.find("| head certified | 3 | 0 |") != std::string::npos);

  // Sub-norms, odd widths, grouped heads: the comparison inside would end with exit 8.
  for (const char* shape : {"head-dim-80", "hidden-4-times-prime", "seven-queries-per-kv-head"}) {
    INFO(shape);
    const Result result =
        run({"bench", "--ops", "--shape",
             EDGELLM_SOURCE_DIR "/tests/data/shapes/" + std::string(shape) + ".json", "--rows",
             "1,2,33", "-d", "0,65", "-r", "1", "--threads", "2"});
    INFO(result.err);
    CHECK(result.exit_code == 0);
  }
  for (const std::string shape :
       {"ternary-bonsai-1.7b", EDGELLM_SOURCE_DIR "/tests/data/shapes/input-norms.json"}) {
    INFO(shape);
    check_refused(run({"bench", "--ops", "--shape", shape}), 4,
                  "--ops times models with int8 activations");
  }
  refused({"bench", "--ops", model, "-p", "5"}, "--n-prompt and --ops exclude each other");
  refused({"bench", model, "--rows", "5"}, "--rows requires --ops");
  refused({"bench", "--ops", model, "-d", "128"}, "the context of 128");
}

TEST_CASE("Ctrl-C ends bench with 130 and leaves neither a page nor a model") {
  const TempDir folder;
  const TempDir scratch;
  const WithVariable place("TMPDIR", scratch.path().string());
  Program program({"bench", "--shape", "smollm-135m", "--layers", "1", "-r", "10000", "-p", "0",
                   "-n", "64", "--html", (folder / "page.html")},
                  {});
  program.read_output(20);  // the table has begun
  program.send_signal(SIGINT);
  const Result result = program.wait();
  CHECK(result.exit_code == 130);
  CHECK(result.err.find("interrupted; the tests above are whole") != std::string::npos);
  CHECK(names_in(folder).empty());
  CHECK(names_in(scratch).empty());
}

}  // namespace
}  // namespace edgellm::test
