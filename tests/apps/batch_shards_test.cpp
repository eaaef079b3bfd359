// One input over several processes, and their outputs joined.
#include <catch2/catch.hpp>
#include <cstdlib>
#include <map>
#include <set>

#include "apps/batch/cluster_shard.h"
#include "tests/apps/batch_files.h"
#include "tests/support/environment.h"
#include "tests/support/skip.h"

namespace edgellm::test {
namespace {

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

Result merge(int exit_code, const std::vector<std::string>& parts, const std::string& out,
             const std::vector<std::string>& more = {}) {
  std::vector<std::string> args = {"batch", "--merge"};
  args.insert(args.end(), parts.begin(), parts.end());
  args.insert(args.end(), {"-o", out});
  args.insert(args.end(), more.begin(), more.end());
  const Result result = run(args);
  INFO(result.err);
  CHECK(result.exit_code == exit_code);
  return result;
}

std::vector<std::string> ids_in_order(const std::string& path) {
  std::vector<std::string> ids;
  std::istringstream lines(read_file(path));
  for (std::string line; std::getline(lines, line);) {
    ids.push_back(nlohmann::json::parse(line)["custom_id"]);
  }
  return ids;
}

Shard auto_shard(std::optional<int> count, const std::map<std::string, std::string>& variables,
                 std::string* source = nullptr) {
  const ClusterShard found = cluster_shard(count, [&](const char* name) {
    const auto variable = variables.find(name);
    return variable == variables.end() ? "" : variable->second;
  });
  if (source != nullptr) *source = found.source;
  return found.shard;
}

TEST_CASE("a shard by the variables of a cluster") {
  std::string source;
  const std::map<std::string, std::string> array = {{"SLURM_ARRAY_TASK_ID", "9"},
                                                    {"SLURM_ARRAY_TASK_MIN", "3"},
                                                    {"SLURM_ARRAY_TASK_MAX", "11"},
                                                    {"SLURM_ARRAY_TASK_STEP", "2"},
                                                    {"SLURM_ARRAY_TASK_COUNT", "5"}};
  CHECK(auto_shard({}, array, &source) == Shard{4, 5});
  CHECK(source ==
        "SLURM_ARRAY_TASK_ID=9 SLURM_ARRAY_TASK_MIN=3 SLURM_ARRAY_TASK_COUNT=5 "
        "SLURM_ARRAY_TASK_STEP=2 SLURM_ARRAY_TASK_MAX=11");
  // A step within the array's task.
  auto both = array;
  both.insert({{"SLURM_PROCID", "1"}, {"SLURM_STEP_NUM_TASKS", "2"}, {"SLURM_NTASKS", "8"}});
  CHECK(auto_shard({}, both) == Shard{8, 10});
  both["SLURM_STEP_NUM_TASKS"] = "3";
  CHECK(auto_shard({}, both) == Shard{11, 15});
  CHECK(auto_shard(15, both) == Shard{11, 15});
  // A job's script, which srun has not started: SLURM_NTASKS is there if -n was given.
  CHECK(auto_shard({}, {{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "1"}}) == Shard{1, 1});
  CHECK(auto_shard({}, {{"SLURM_PROCID", "0"}}) == Shard{1, 1});
  auto script = array;
  script["SLURM_PROCID"] = "0";
  CHECK(auto_shard({}, script) == auto_shard({}, array));
  CHECK(auto_shard(8, {{"JOB_COMPLETION_INDEX", "7"}}) == Shard{8, 8});
  // Every process has a shard of its own, and none is left over.
  std::set<int> indices;
  for (int task = 3; task <= 11; task += 2) {
    for (int process = 0; process < 3; ++process) {
      both["SLURM_ARRAY_TASK_ID"] = std::to_string(task);
      both["SLURM_PROCID"] = std::to_string(process);
      indices.insert(auto_shard({}, both).index);
    }
  }
  CHECK(indices.size() == 15);
  CHECK(*indices.begin() == 1);
  CHECK(*indices.rbegin() == 15);

  const auto refused = [](std::optional<int> count,
                          const std::map<std::string, std::string>& variables,
                          const std::string& part) {
    CHECK_THROWS_WITH(auto_shard(count, variables), Catch::Contains(part));
  };
  refused({}, {}, "neither SLURM_ARRAY_TASK_ID");
  refused({}, {{"JOB_COMPLETION_INDEX", "7"}}, "auto/N");
  refused(7, {{"JOB_COMPLETION_INDEX", "7"}}, "process 7 from 0 on is none of 7");
  refused({}, {{"JOB_COMPLETION_INDEX", "0"}, {"SLURM_PROCID", "0"}}, "of Slurm and of Kubernetes");
  refused({}, {{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}}, "write srun before edgellm");
  const auto step = [](const char* index, const char* n) {
    return std::map<std::string, std::string>{{"SLURM_PROCID", index}, {"SLURM_STEP_NUM_TASKS", n}};
  };
  refused({}, step("two", "4"), "'two'");
  refused({}, step("-1", "4"), "'-1'");
  refused({}, step("4", "4"), "none of the step's");
  refused({}, step("0", "0"), "none of the step's");
  refused(3, step("0", "4"), "there are 4 processes, not 3");
  auto uneven = array;
  uneven["SLURM_ARRAY_TASK_MAX"] = "12";
  refused({}, uneven, "no even distance");
  uneven = array;
  uneven["SLURM_ARRAY_TASK_ID"] = "6";
  refused({}, uneven, "no even distance");
  uneven["SLURM_ARRAY_TASK_ID"] = "1";
  refused({}, uneven, "no even distance");
}

TEST_CASE("processes of a cluster find their shards, and name their outputs by them") {
  const TempDir folder;
  const std::string in = write_file(folder, "in.jsonl", story_requests(12, 3));
  std::vector<std::string> parts;
  for (int process = 0; process < 3; ++process) {
    const WithVariable index("SLURM_PROCID", std::to_string(process));
    const WithVariable count("SLURM_STEP_NUM_TASKS", "3");
    const Result result = run({"batch", demo_model(), "-i", in, "-o", folder / "out.{shard}.jsonl",
                               "--shard", "auto", "--device", "cpu"});
    INFO(result.err);
    CHECK(result.exit_code == 0);
    CHECK(contains(result.err, "shard " + std::to_string(process + 1) +
                                   "/3, by SLURM_PROCID=" + std::to_string(process)));
    parts.push_back(folder / ("out." + std::to_string(process + 1) + ".jsonl"));
  }
  merge(0, parts, folder / "all.jsonl");
  CHECK(ids_in_order(folder / "all.jsonl").size() == 12);
  for (const char* bad : {"auto/0", "auto/x", "autos", "auto/", "0/3"}) {
    check_refused(run({"batch", demo_model(), "-i", in, "-o", "x.jsonl", "--shard", bad}), 2,
                  "is not a shard");
  }
}

TEST_CASE("shards have every request once, and are merged in the input's order") {
  const TempDir folder;
  // Also requests without an id and one that fails.
  const std::string in = write_file(
      folder, "in.jsonl", story_requests(20, 4) + "{\"prompt\":\"x\",\"max_tokens\":2}\n\nbad\n");
  const std::string whole = folder / "whole.jsonl";
  run_batch_to(7, in, whole, {"--ordered"});
  std::vector<std::string> parts;
  size_t n_records = 0;
  for (int i = 1; i <= 3; ++i) {
    parts.push_back(folder / ("out." + std::to_string(i) + ".jsonl"));
    const Result result = run(batch_args(in, parts.back(), {"--shard", std::to_string(i) + "/3"}));
    CHECK((result.exit_code == 0 || result.exit_code == 7));
    n_records += read_records(parts.back()).size();
  }
  CHECK(n_records == 22);
  const std::string all = folder / "all.jsonl";
  const Result merged = merge(7, {parts[2], parts[0], parts[1]}, all);
  CHECK(contains(merged.err, "22 records, 1 of them failed"));
  CHECK(ids_in_order(all) == ids_in_order(whole));
  merge(7, parts, all, {"-i", in});
  CHECK(ids_in_order(all) == ids_in_order(whole));
  CHECK(ids_in_order(all).size() == 22);

  // Whatever is not whole is found.
  const auto refused = [&](int code, const std::vector<std::string>& of,
                           const std::vector<std::string>& more, const std::string& part) {
    const std::string other = folder / "other.jsonl";
    const Result result = merge(code, of, other, more);
    CHECK(contains(result.err, part));
    CHECK(!std::filesystem::exists(other));
  };
  refused(8, {parts[0], parts[2]}, {}, "shard 2/3 is missing");
  refused(8, {parts[0], parts[2]}, {"-i", in}, "no record of ");
  refused(2, {parts[0], parts[0], parts[1]}, {}, "are both shard 1/3");
  refused(2, {parts[0], whole}, {}, "not of the same run");
  refused(2, {in}, {}, "has no " + in + ".manifest.json");
  refused(2, {parts[0], parts[1], folder / "none"}, {}, "No such file");
  CHECK(merge(2, {parts[0], parts[1], parts[2]}, parts[0]).exit_code == 2);
  CHECK(merge(2, parts, whole).exit_code == 2);  // the output of a run

  const std::string second = read_file(parts[1]);
  const std::string line = second.substr(0, second.find('\n') + 1);
  write_file(folder, "out.2.jsonl", second + line);
  refused(8, parts, {}, "there are two records of ");
  write_file(folder, "out.2.jsonl", second.substr(line.size()));
  refused(8, parts, {}, "the input has 22 requests, but there are 21 records");
  write_file(folder, "out.2.jsonl", second.substr(0, second.size() - 1));
  refused(8, parts, {}, "a line that is not whole");
}

TEST_CASE("an interrupted shard is not merged") {
  const TempDir folder;
  const std::string in = write_file(folder, "in.jsonl", story_requests(8, 4) + "bad\n");
  std::vector<std::string> parts;
  for (int i = 1; i <= 2; ++i) {
    parts.push_back(folder / ("out." + std::to_string(i) + ".jsonl"));
    run(batch_args(in, parts.back(), {"--shard", std::to_string(i) + "/2"}));
  }
  for (const std::string& part : parts) {
    std::string manifest = read_file(part + ".manifest.json");
    const size_t at = manifest.find("\"complete\": true");
    REQUIRE(at != std::string::npos);
    write_file(folder, std::filesystem::path(part).filename().string() + ".manifest.json",
               manifest.substr(0, at) + "\"complete\": false" + manifest.substr(at + 16));
    const Result result = merge(8, parts, folder / "all.jsonl");
    CHECK(contains(result.err, " is not complete"));
    break;
  }
}

// The recipe of docs/batch.md.
TEST_CASE("GNU parallel runs the shards of one input") {
  if (std::system("parallel --version 2>/dev/null | grep -q 'GNU parallel'") != 0) {
    return skip("GNU parallel is not installed");
  }
  const TempDir folder;
  const std::string in = write_file(folder, "in.jsonl", story_requests(24, 6));
  const std::string whole = folder / "whole.jsonl";
  run_batch_to(0, in, whole);
  const std::string command = "cd " + folder.path().string() +
                              " && CUDA_VISIBLE_DEVICES= parallel --will-cite -j3 " +
                              EDGELLM_PROGRAM + " batch " + demo_model() +
                              " -i in.jsonl -o out.{}.jsonl --shard {}/3 ::: 1 2 3 2>/dev/null";
  CHECK(std::system(command.c_str()) == 0);
  const std::string all = folder / "all.jsonl";
  merge(0, {folder / "out.1.jsonl", folder / "out.2.jsonl", folder / "out.3.jsonl"}, all);
  CHECK(answers_of(read_records(all)) == answers_of(read_records(whole)));
}

}  // namespace
}  // namespace edgellm::test
