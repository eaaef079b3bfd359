// The tests of `edgellm bench` on a small model: what is counted, and that every metric is there.
#include "apps/bench/model_test.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <fstream>
#include <set>

#include "apps/bench/report.h"
#include "apps/bench/report_page.h"
#include "engine/generate.h"
#include "engine/token_bytes.h"
#include "model/convert.h"
#include "tests/support/temp_dir.h"

namespace edgellm::bench {
namespace {

using test::TempDir;
using Kind = TestSpec::Kind;

ModelFile tiny_model(const TempDir& folder) {
  std::ofstream(folder / "config.json") << R"({
    "architectures": ["BitNetForCausalLM"], "model_type": "bitnet", "hidden_act": "relu2",
    "hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 97,
    "max_position_embeddings": 128, "rms_norm_eps": 1e-05, "rope_theta": 10000.0,
    "tie_word_embeddings": true
  })";
  SynthOptions options;
  options.shape = folder / "config.json";
  options.context = 300;
  write_synth(options, folder / "tiny.tmac2");
  return ModelFile::open(folder / "tiny.tmac2");
}

struct Fixture {
  TempDir folder;
  ModelFile model = tiny_model(folder);
  std::unique_ptr<Backend> backend;
  RunSetting setting;
  int polls = 0;

  Fixture() {
    EngineOptions options;
    options.context = 300;
    options.sequences = 3;
    options.max_rows = 16;
    options.threads = 1;
    backend = make_cpu_backend(model, options);
    setting.model_name = "tiny";
    setting.threads = 1;
    setting.prefill_chunk = 16;
    setting.bandwidth.gb_s = 10;
    setting.cache_bytes = uint64_t{1} << 20;
    setting.gpu = NotAvailable{"the test ran on the CPU"};
    setting.sensors = setting.gpu.missing();
  }
  TestRunner runner() {
    return TestRunner({backend.get()}, setting.sensors, [this] { ++polls; });
  }
};

void check_reasons(const nlohmann::ordered_json& json, const std::string& path = "") {
  for (const auto& [name, value] : json.items()) {
    INFO(path << "." << name);
    if (name == "not_available") continue;
    if (value.is_object()) check_reasons(value, path + "." + name);
    if (!value.is_null()) continue;
    REQUIRE(json.contains("not_available"));
    REQUIRE(json["not_available"].contains(name));
    CHECK(!json["not_available"][name].get<std::string>().empty());
  }
}

TEST_CASE("a synthetic model may be given a longer context") {
  const Fixture fixture;
  CHECK(fixture.model.config().max_context == 300);
}

TEST_CASE("several backends run a test at the same time, and their tokens are added up") {
  Fixture one;
  Fixture two;
  std::atomic<int> n_polls = 0;
  TestRunner runner({one.backend.get(), two.backend.get()}, one.setting.sensors,
                    [&] { ++n_polls; });
  runner.warm_up();
  n_polls = 0;
  const TestSpec spec = {Kind::kDecode, 6, 3, 2};
  const TestResult result = runner.run(spec, 4, [] {});
  CHECK(result.devices == 2);
  CHECK(result.samples_ns.size() == 4);
  CHECK(result.total_tokens() == 2 * 4 * 6 * 2);
  CHECK(result.inter_token_ns.size() == 2 * 4 * 5);
  CHECK(result.ttft_ns.size() == 2 * 2);  // prefills of two sequences on each
  CHECK(n_polls == 2 * (2 + (1 + 4) * 6));
  for (size_t i = 0; i < 4; ++i) {
    CHECK(result.tokens_per_second()[i] ==
          Approx(1e9 * 24 / static_cast<double>(result.samples_ns[i])));
  }
  const TestResult prefill = runner.run({Kind::kPrefill, 20, 0, 1}, 3, [] {});
  CHECK(prefill.total_tokens() == 2 * 3 * 20);
  CHECK(prefill.ttft_ns.size() == 2 * 3);

  // What ends the work on one backend ends the test.
  TestRunner interrupted({one.backend.get(), two.backend.get()}, one.setting.sensors, [&] {
    if (++n_polls % 7 == 0) throw std::runtime_error("ended");
  });
  CHECK_THROWS_WITH(interrupted.run(spec, 4, [] {}), "ended");
}

TEST_CASE("tests are named as llama-bench names them") {
  CHECK(TestSpec{Kind::kPrefill, 512, 0, 1}.name() == "pp512");
  CHECK(TestSpec{Kind::kDecode, 128, 0, 1}.name() == "tg128");
  CHECK(TestSpec{Kind::kDecode, 128, 1024, 4}.name() == "tg128 @ d1024 x4");
  CHECK(TestSpec{Kind::kDecode, 128, 1024, 4}.positions() == 1152);
  CHECK(TestSpec{Kind::kDecode, 128, 1024, 4}.run_tokens() == 512);
}

TEST_CASE("a prefill test times each prompt up to its first token") {
  Fixture fixture;
  const TestResult result = fixture.runner().run({Kind::kPrefill, 40, 0, 1}, 4, [] {});
  CHECK(result.samples_ns.size() == 4);
  CHECK(result.ttft_ns == result.samples_ns);
  CHECK(result.inter_token_ns.empty());
  CHECK(result.total_tokens() == 160);
  CHECK(result.head.steps <= 4);  // one arg-max a prompt
  CHECK(fixture.polls == 5 * 3);  // three passes of up to 16 rows a run, warm-up included
}

TEST_CASE("a decode test has every inter-token latency and none of the warm-up") {
  Fixture fixture;
  TestRunner runner = fixture.runner();
  runner.warm_up();
  int runs = 0;
  const TestResult result = runner.run({Kind::kDecode, 20, 0, 1}, 3, [&] { ++runs; });
  CHECK(runs == 3);
  CHECK(result.samples_ns.size() == 3);
  CHECK(result.inter_token_ns.size() == 3 * 19);
  CHECK(result.ttft_ns.size() == 3);  // at depth 0 the first token is the prompt's
  CHECK(result.head.steps == 60);  // all of them by the copy of the head, which was there already
  CHECK(result.cpu_ns > 0);
  int64_t in_tokens = 0;
  for (const int64_t latency : result.inter_token_ns) in_tokens += latency;
  for (const int64_t ttft : result.ttft_ns) in_tokens += ttft;
  int64_t in_samples = 0;
  for (const int64_t sample : result.samples_ns) in_samples += sample;
  CHECK(in_tokens == in_samples);  // no time is lost, none counted twice
}

TEST_CASE("a decode test at a depth fills it once and takes that as the time to a first token") {
  Fixture fixture;
  TestRunner runner = fixture.runner();
  const TestResult one = runner.run({Kind::kDecode, 5, 200, 1}, 2, [] {});
  CHECK(one.ttft_ns.size() == 1);
  CHECK(one.inter_token_ns.size() == 2 * 4);
  const TestResult three = runner.run({Kind::kDecode, 5, 100, 3}, 2, [] {});
  CHECK(three.ttft_ns.size() == 3);
  CHECK(three.inter_token_ns.size() == 2 * 4);
  CHECK(three.total_tokens() == 2 * 3 * 5);
  CHECK_THROWS(runner.run({Kind::kDecode, 101, 200, 1}, 1, [] {}));
}

TEST_CASE("whoever wants to stop is heard") {
  Fixture fixture;
  int left = 7;
  TestRunner runner({fixture.backend.get()}, fixture.setting.sensors, [&] {
    if (--left == 0) throw std::runtime_error("stop");
  });
  CHECK_THROWS_WITH(runner.run({Kind::kDecode, 20, 0, 1}, 3, [] {}), "stop");
}

TEST_CASE("every metric has a value or a reason, in tests of every kind the same ones") {
  Fixture fixture;
  TestRunner runner = fixture.runner();
  std::optional<std::set<std::string>> names;
  for (const TestSpec& spec :
       {TestSpec{Kind::kPrefill, 40, 0, 1}, TestSpec{Kind::kDecode, 20, 0, 1},
        TestSpec{Kind::kDecode, 1, 10, 1}, TestSpec{Kind::kDecode, 4, 10, 3}}) {
    INFO(spec.name());
    const auto json = test_json(runner.run(spec, 2, [] {}), *fixture.backend, fixture.setting);
    check_reasons(json);
    std::set<std::string> present;
    for (const auto& [name, value] : flat_fields(json)) present.insert(name);
    if (names) CHECK(present == *names);
    names = present;
  }
  for (const char* name : {"avg_ts",
                           "stddev_ts",
                           "ttft_p50_ns",
                           "itl_mean_ns",
                           "itl_p50_ns",
                           "itl_p90_ns",
                           "itl_p95_ns",
                           "itl_p99_ns",
                           "itl_max_ns",
                           "itl_jitter_ns",
                           "itl_variance_ns2",
                           "itl_longest_stall_ns",
                           "achieved_gb_s",
                           "read_bandwidth_share",
                           "bytes_per_token_total",
                           "launches_per_token",
                           "graph_nodes",
                           "host_resident_bytes",
                           "host_peak_bytes",
                           "memory_plan_total",
                           "gpu_process_memory_bytes_peak",
                           "gpu_device_memory_used_bytes_peak",
                           "copied_to_device_bytes_per_token",
                           "copied_to_host_bytes_per_token",
                           "gpu_pcie_sent_bytes_per_token",
                           "gpu_pcie_received_bytes_per_token",
                           "cpu_ns_per_token",
                           "process_threads",
                           "synchronising_calls_per_token",
                           "gpu_energy_j",
                           "gpu_power_w_mean",
                           "gpu_power_w_peak",
                           "gpu_j_per_token",
                           "gpu_sm_clock_mhz_mean",
                           "gpu_memory_clock_mhz_mean",
                           "gpu_temperature_c_max"}) {
    INFO(name);
    CHECK(names->contains(name));
  }
  check_reasons(run_json(*fixture.backend, fixture.setting));
}

TEST_CASE("bytes of a token: the weights once a step, the cache at the mean depth") {
  Fixture fixture;
  TestResult result;
  result.spec = {Kind::kDecode, 21, 100, 3};
  result.samples_ns = {1'000'000'000};
  const auto json = test_json(result, *fixture.backend, fixture.setting);
  // No greedy step was counted, so it was the full head.
  const double weights = static_cast<double>(weight_bytes_per_token(fixture.model)) / 3;
  // 3 layers, 2 heads, a key and a value of 16 dimensions in 32 codes of 2 bytes each, 3 units of 4
  // bytes; positions 101 to 121 on average.
  const double kv = 3 * 2 * (2 * 32 * 2 + 3 * 4) * 111.0;
  CHECK(json["bytes_per_token"]["weights"].get<double>() == Approx(weights));
  CHECK(json["bytes_per_token"]["kv_cache"].get<double>() == Approx(kv));
  CHECK(json["achieved_gb_s"].get<double>() == Approx((weights + kv) * 63 / 1e9));
  CHECK(json["read_bandwidth_share"].get<double>() == Approx((weights + kv) * 63 / 1e10));
  CHECK(json["step_fits_cache"] == true);
}

TEST_CASE("the slope over the depth is that of a line through the medians") {
  const auto at = [](int depth, int64_t ns) {
    TestResult result;
    result.spec = {Kind::kDecode, 10, depth, 1};
    result.samples_ns = {ns};
    return result;
  };
  // 1 ms a token, and 0.1 ms more for each 1024 positions.
  const auto json =
      degradation_json({at(0, 10'000'000), at(2048, 12'000'000), at(4096, 14'000'000)});
  REQUIRE(json.size() == 1);
  CHECK(json[0]["ns_per_token_per_1k"].get<double>() == Approx(100'000));
  const auto one = degradation_json({at(0, 10'000'000)});
  CHECK(one[0]["ns_per_token_per_1k"].is_null());
  check_reasons(one[0]);
}

TEST_CASE("memory is read at a rate, by one thread or two") {
  for (const int threads : {1, 2}) {
    const ReadBandwidth bandwidth = cpu_read_bandwidth(threads, [] {});
    CHECK(bandwidth.gb_s >= bandwidth.median_gb_s);
    CHECK(bandwidth.median_gb_s > 0.1);
    CHECK(bandwidth.passes >= 5);
    CHECK(bandwidth.buffer_bytes >= uint64_t{16} << 20);
  }
}

}  // namespace
}  // namespace edgellm::bench
