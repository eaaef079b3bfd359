// A batch on several devices: the answers of one, one output, and what becomes of it when a device
// fails.
#include <signal.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <random>

#include "tests/apps/batch_files.h"
#include "tests/support/environment.h"
#include "tests/support/gpu.h"
#include "tests/support/sanitizers.h"

namespace edgellm::test {
namespace {

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// By id, of answers and of failures.
std::map<std::string, std::string> outcomes(const Records& records) {
  std::map<std::string, std::string> all;
  for (const auto& [id, record] : records) {
    const auto& body = record["response"]["body"];
    all[id] = body.contains("choices") ? body["choices"].dump() : record["error"].dump();
  }
  return all;
}

std::map<std::string, std::string> answers(const std::string& path) {
  return answers_of(read_records(path));
}

// Some sampled, some with two answers, some that cannot be answered.
std::string mixed_requests(int n) {
  std::string input = story_requests(n, 12);
  for (int i = 0; i < n / 10; ++i) {
    const std::string id = std::to_string(i);
    input += R"({"id":"s)" + id +
             R"(","prompt":"The fox","max_tokens":9,"temperature":0.9,"n":2})"
             "\n";
    input += R"({"id":"f)" + id +
             R"(","prompt":"The fox","max_tokens":0})"
             "\n";
  }
  return input;
}

TEST_CASE("a batch on several devices gives the answers of one") {
  const TempDir folder;
  const std::string in = write_file(folder, "in.jsonl", mixed_requests(kSanitized ? 40 : 100));
  const std::string one = folder / "one.jsonl";
  run_batch_to(7, in, one, {"--device", "cpu"});
  for (const std::string devices : {"cpu,cpu", "cpu,cpu,cpu"}) {
    INFO(devices);
    const std::string out = folder / (devices + ".jsonl");
    const std::string summary = folder / (devices + ".json");
    const Result result =
        run_batch_to(7, in, out, {"--device", devices, "--sequences", "4", "--summary", summary});
    CHECK(outcomes(read_records(out)) == outcomes(read_records(one)));
    CHECK(contains(result.err, "KV cache of device 2: "));
    const auto json = nlohmann::json::parse(read_file(summary));
    int64_t tokens = 0;
    int64_t requests = 0;
    REQUIRE(json["devices"].size() == (devices.size() + 1) / 4);
    for (const auto& device : json["devices"]) {
      CHECK(device["failure"].is_null());
      CHECK(device["requests"] > 0);
      tokens += device["output_tokens"].get<int64_t>();
      requests += device["requests"].get<int64_t>();
    }
    CHECK(json["tokens"]["output"] == tokens);
    CHECK(requests >= json["requests"]["answered"].get<int64_t>());
    CHECK(json["utilisation"]["sequences"] == 4 * json["devices"].size());
    CHECK(json["utilisation"]["busy"] <= 1.0);
  }
  // In the order of the input, through a pipe.
  const Result piped = run(batch_args(in, "-", {"--device", "cpu,cpu", "--ordered"}));
  CHECK(piped.exit_code == 7);
  CHECK(outcomes(records_of(piped.out)) == outcomes(read_records(one)));
}

TEST_CASE("a device that fails is taken out; all is answered, and exit code and report say so") {
  const TempDir folder;
  const std::string in = write_file(folder, "in.jsonl", story_requests(60, 12));
  const std::string one = folder / "one.jsonl";
  run_batch_to(0, in, one, {"--device", "cpu"});
  const WithVariable drill("EDGELLM_FAIL_DEVICE", "2:9");
  const std::string out = folder / "out.jsonl";
  const std::string summary = folder / "out.json";
  const Result result =
      run_batch_to(5, in, out, {"--device", "cpu,cpu", "--sequences", "4", "--summary", summary});
  CHECK(answers(out) == answers(one));
  CHECK(contains(result.err, "(device 2 of 2) failed and is taken out: the device failed"));
  CHECK(contains(result.err, "60 answered"));
  CHECK(contains(result.err, "failed: the device failed, as it was told to; the others took over"));
  const auto json = nlohmann::json::parse(read_file(summary));
  CHECK(json["complete"] == true);
  CHECK(json["devices"][0]["failure"].is_null());
  CHECK(json["devices"][1]["failure"] == "the device failed, as it was told to");
  CHECK(json["devices"][1]["taken_over"] > 0);
  // The output is complete: the same command has nothing to do.
  CHECK(contains(run_batch_to(0, in, out, {"--device", "cpu,cpu"}).err, "60 answered before"));
}

TEST_CASE("when all devices fail nothing is recorded as failed, and the batch is resumed") {
  const TempDir folder;
  const std::string in = write_file(folder, "in.jsonl", story_requests(60, 12));
  const std::string one = folder / "one.jsonl";
  run_batch_to(0, in, one, {"--device", "cpu"});
  const std::string out = folder / "out.jsonl";
  {
    const WithVariable drill("EDGELLM_FAIL_DEVICE", "1:30");
    const Result result = run_batch_to(5, in, out, {"--device", "cpu", "--sequences", "4"});
    CHECK(contains(result.err, "the device failed, as it was told to"));
  }
  const Records before = read_records(out);
  CHECK(!before.empty());
  CHECK(before.size() < 60);
  for (const auto& [id, record] : before) CHECK(record["error"].is_null());
  run_batch_to(0, in, out, {"--device", "cpu,cpu"});
  CHECK(answers(out) == answers(one));
}

TEST_CASE("a batch on two devices that is killed while one of them fails resumes whole") {
  const TempDir folder;
  const std::string in = write_file(folder, "in.jsonl", story_requests(kSanitized ? 40 : 200, 16));
  const std::string whole = folder / "whole.jsonl";
  run_batch_to(0, in, whole);
  const std::string out = folder / "out.jsonl";
  std::mt19937 random(5);
  const std::vector<std::string> flags = {"--device", "cpu,cpu", "--sequences", "4"};
  for (int kill = 0; kill < 8; ++kill) {
    const WithVariable drill("EDGELLM_FAIL_DEVICE", std::to_string(1 + random() % 2) + ":" +
                                                        std::to_string(random() % 40));
    Program program(batch_args(in, out, flags), {});
    usleep(static_cast<useconds_t>(20'000 + random() % 200'000));
    program.send_signal(kill % 2 == 0 ? SIGKILL : SIGINT);
    program.wait();
  }
  run_batch_to(0, in, out, flags);
  CHECK(answers(out) == answers(whole));
}

TEST_CASE("a batch on several GPUs, or engines of one, gives the answers of the CPU", "[gpu]") {
  if (no_gpu()) return;
  const TempDir folder;
  const std::string in = write_file(folder, "in.jsonl", mixed_requests(100));
  const std::string one = folder / "one.jsonl";
  run_batch_to(7, in, one, {"--device", "cpu"});
  const std::vector<std::pair<std::string, std::string>> runs = {
      {"cuda:0,0", ""}, {"cuda:all,cpu", ""}, {"cuda:all", ""}, {"cuda:0,0", "2:5"}};
  for (const auto& [devices, fault] : runs) {
    INFO(devices << ", fault " << fault);
    const WithVariable drill("EDGELLM_FAIL_DEVICE", fault);
    const std::string out = folder / ("out" + fault + devices + ".jsonl");
    run_batch_to(7, in, out, {"--device", devices, "--sequences", "8"}, {.sees_gpus = true});
    CHECK(outcomes(read_records(out)) == outcomes(read_records(one)));
  }
}

TEST_CASE("lists of devices are checked") {
  const TempDir folder;
  const std::string in = write_file(folder, "in.jsonl", story_requests(1, 2));
  const auto refused = [&](const std::string& devices, int exit_code, const std::string& part) {
    INFO(devices);
    check_refused(run(batch_args(in, folder / "out.jsonl", {"--device", devices})), exit_code,
                  part);
  };
  refused("cpu,tpu", 2, "unknown device tpu");
  refused("cpu,", 2, "unknown device ");
  refused("auto,cpu", 2, "auto chooses one device");
  refused("cpu,1", 2, "unknown device 1");
  refused("cuda:0,1x", 2, "unknown device 1x");
  refused("cuda:all", 5, "use --device cpu");
  refused("cuda:0,1", 5, "use --device cpu");
  refused("cpu,cuda:1", 5, "--device cuda:1");
  // One device is all that the others take.
  check_refused(run({"run", demo_model(), "x", "--device", "cpu,cpu"}), 2,
                "unknown device cpu,cpu");
  const WithVariable drill("EDGELLM_FAIL_DEVICE", "0:x");
  refused("cpu", 2, "expected DEVICE:PASSES");
}

}  // namespace
}  // namespace edgellm::test
