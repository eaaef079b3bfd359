// edgellm plan: its arithmetic, and the command as its user meets it.
#include <catch2/catch.hpp>
#include <cmath>

#include "apps/bench/plan/estimate.h"
#include "apps/common/duration.h"
#include "tests/apps/program.h"

namespace edgellm::test {
namespace {

using bench::batch_seconds;
using bench::devices_for;
using bench::DeviceSpeed;
using bench::Workload;

TEST_CASE("plan: the time of a batch is its start, its prompts and its rounds of answers") {
  const DeviceSpeed speed = {.sequences = 4, .prefill_ids_s = 100, .step_s = 0.5, .start_s = 3};
  const Workload work = {.requests = 10, .prompt = 20, .answer = 6};
  // 3 + 10 * 20 / 100 + 3 rounds of 6 steps of 0.5 s
  CHECK(batch_seconds(work, speed, 10) == Approx(14));
  CHECK(batch_seconds(work, speed, 8) == Approx(3 + 1.6 + 6));
  CHECK(batch_seconds(work, speed, 1) == Approx(3 + 0.2 + 3));
}

TEST_CASE("plan: the fewest devices that meet a deadline, against trying them all") {
  const DeviceSpeed speed = {.sequences = 7, .prefill_ids_s = 1000, .step_s = 0.01, .start_s = 0.5};
  const Workload work = {.requests = 211, .prompt = 33, .answer = 17};
  for (const double deadline_s : {0.1, 0.70, 0.71, 1.0, 2.0, 5.0, 12.0, 1000.0}) {
    INFO(deadline_s);
    std::optional<int64_t> expected;
    for (int64_t devices = 1; devices <= work.requests && !expected; ++devices) {
      const int64_t share = static_cast<int64_t>(std::ceil(211.0 / static_cast<double>(devices)));
      if (batch_seconds(work, speed, share) <= deadline_s) expected = devices;
    }
    CHECK(devices_for(work, speed, deadline_s) == expected);
  }
  CHECK(devices_for(work, speed, 1000) == 1);
  CHECK_FALSE(devices_for(work, speed, 0.1));
}

TEST_CASE("durations") {
  CHECK(parse_duration_ms("90s") == 90e3);
  CHECK(parse_duration_ms("1h30m") == 5400e3);
  CHECK(parse_duration_ms("2d") == 172800e3);
  CHECK(parse_duration_ms("300ms") == 300);
  CHECK(parse_duration_ms("1.5") == 1500);
  for (const char* bad : {"", "-1", "5x", "h", "1h-3m", "inf", "nan", "1e9"}) {
    INFO(bad);
    CHECK_FALSE(parse_duration_ms(bad));
  }
}

TEST_CASE("plan measures a model and reckons with what it measured") {
  const TempDir folder;
  const Result result =
      run({"plan", tiny_model(folder), "--requests", "1000", "--prompt", "20", "--answer", "30",
           "--deadline", "1h", "--json", "--device", "cpu", "--sequences", "3", "--threads", "1"});
  INFO(result.err);
  REQUIRE(result.exit_code == 0);
  const auto json = nlohmann::json::parse(result.out);
  CHECK(json["schema"] == "edgellm.plan/1");
  CHECK(json["device"]["sequences"] == 3);
  const auto& measured = json["measured"];
  CHECK(measured["prefill_tokens_per_s"] > 0);
  CHECK(measured["decode_tokens_per_s"].get<double>() ==
        Approx(3 / measured["step_s"].get<double>()));
  const auto& memory = json["memory"];
  CHECK(memory["total"] == memory["weights"].get<int64_t>() + memory["head_copy"].get<int64_t>() +
                               memory["kv_cache"].get<int64_t>() +
                               memory["workspace"].get<int64_t>());
  const double seconds = json["one_device"]["seconds"];
  // 334 rounds of 30 steps.
  CHECK(seconds == Approx(json["device"]["start_s"].get<double>() +
                          20'000 / measured["prefill_tokens_per_s"].get<double>() +
                          334 * 30 * measured["step_s"].get<double>()));
  CHECK(json["one_device"]["answer_tokens_per_s"].get<double>() == Approx(30'000 / seconds));
  CHECK(json["one_device"]["joules"].is_null());
  CHECK(json["one_device"]["not_available"]["joules"] == "energy is read on GPUs alone");
  CHECK(json["deadline"]["deadline_s"] == 3600);
  CHECK(json["deadline"]["devices"] == 1);
}

TEST_CASE("plan answers as many requests at a time as the KV cache holds") {
  const TempDir folder;
  const std::string model = tiny_model(folder);
  const auto plan = [&](const std::vector<std::string>& more) {
    std::vector<std::string> args = {"plan",     model, "--requests", "50",  "--prompt",  "60",
                                     "--answer", "10",  "--device",   "cpu", "--threads", "1"};
    args.insert(args.end(), more.begin(), more.end());
    return run(args);
  };
  const auto json = nlohmann::json::parse(plan({"--json", "--sequences", "5"}).out);
  CHECK(json["device"]["sequences"] == 5);
  const auto request_bytes = json["memory"]["request_kv_cache"].get<int64_t>();
  const auto memory_for = [&](double requests) {
    return std::to_string(std::llround(requests * static_cast<double>(request_bytes)));
  };
  const Result few = plan({"--kv-memory", memory_for(2.5), "--deadline", "1us"});
  INFO(few.err);
  REQUIRE(few.exit_code == 0);
  CHECK(few.out.find("sequences   2 at a time") != std::string::npos);
  CHECK(few.out.find("not met by any number of devices; one request takes") != std::string::npos);
  CHECK(few.out.find("energy      n/a: energy is read on GPUs alone") != std::string::npos);
  const Result none = plan({"--kv-memory", memory_for(0.5)});
  CHECK(none.exit_code == 6);
  CHECK(none.err.find("of KV cache, more than there is") != std::string::npos);
}

TEST_CASE("plan refuses what is no plan, in one line") {
  const TempDir folder;
  const std::string model = tiny_model(folder);
  const auto plan = [&](const std::vector<std::string>& more) {
    std::vector<std::string> args = {"plan",     model, "--requests", "5",
                                     "--prompt", "10",  "--answer",   "5"};
    args.insert(args.end(), more.begin(), more.end());
    return run(args);
  };
  check_refused(plan({"--deadline", "soon"}), 2, "'soon' is no duration above 0");
  check_refused(plan({"--deadline", "0s"}), 2, "no duration above 0");
  check_refused(plan({"--requests", "0"}), 2, "expected at least 1");
  check_refused(plan({"--requests", "9999999999999999"}), 2, "more than 10^15");
  check_refused(plan({"--prompt", "0"}), 2, "--prompt");
  check_refused(plan({"--max-batch-tokens", "64"}), 2,
                "--max-batch-tokens");  // measures no mixture
  check_refused(plan({"--answer", "1000000"}), 6, "but the context has");
  check_refused(run({"plan", model, "--prompt", "1", "--answer", "1"}), 2, "--requests");
}

}  // namespace
}  // namespace edgellm::test
