#include "apps/bench/ops_command.h"

#include <algorithm>
#include <cstdio>

#include "apps/bench/ops/op_timing.h"
#include "apps/bench/output.h"
#include "apps/common/signals.h"
#include "apps/common/terminal.h"
#include "apps/common/version.h"
#include "base/error.h"
#include "base/number_format.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/machine.h"
#include "model/convert.h"

namespace edgellm {
namespace {

using bench::table_cell;
using Json = nlohmann::ordered_json;

constexpr int kDefaultOpRepeats = 20;
constexpr int kDefaultRows[] = {1, 8, 512};
constexpr int kDefaultOpDepths[] = {128, 2048};

// Positions that the passes need.
int positions_of(const bench::OpOptions& options) {
  int most = 0;
  for (const int depth : options.depths) {
    for (const bench::PassShape& pass : options.passes(depth)) {
      most = std::max(most, pass.positions());
    }
  }
  return most;
}

bench::OpOptions options_of(const BenchFlags& flags) {
  bench::OpOptions options;
  options.rows = flags.rows;
  options.sequences = flags.batches;
  if (options.rows.empty() && options.sequences.empty()) {
    options.rows.assign(std::begin(kDefaultRows), std::end(kDefaultRows));
  }
  options.depths = flags.depths;
  if (options.depths.empty()) {
    options.depths.assign(std::begin(kDefaultOpDepths), std::end(kDefaultOpDepths));
  }
  options.repeats = flags.repeats > 0 ? flags.repeats : kDefaultOpRepeats;
  options.poll = throw_if_interrupted;
  return options;
}

// The unfused chain beside which ops are timed computes int8 activations and no other norms.
void check_arithmetic(const ModelConfig& config, const std::string& name) {
  if (config.activation_quant == ActivationQuant::kInt8Row && !config.qk_norm &&
      !config.input_norms) {
    return;
  }
  throw Error(ExitCode::kUnsupported,
              "--ops times models with int8 activations, without norms of heads and without input "
              "norms; " +
                  name + " is another; leave --ops out");
}

// Leaves of the default depths those that a model's context allows. Throws Error (kUsage) where
// none is left, or where a depth that was asked for does not fit.
void fit_to(bench::OpOptions& options, const BenchFlags& flags, const Subject& subject) {
  const int max_context = subject.model->config().max_context;
  const auto fits = [&](int depth) {
    return std::ranges::all_of(options.passes(depth), [&](const bench::PassShape& pass) {
      return pass.positions() <= max_context;
    });
  };
  if (flags.depths.empty()) std::erase_if(options.depths, [&](int depth) { return !fits(depth); });
  if (!options.depths.empty() && std::all_of(options.depths.begin(), options.depths.end(), fits)) {
    return;
  }
  throw Error(ExitCode::kUsage, "the rows and depths need more positions than the context of " +
                                    std::to_string(max_context) + " that " + subject.name +
                                    " was made for; use smaller --rows or -d, or --shape NAME, "
                                    "which may be given a longer one");
}

class Ops {
 public:
  explicit Ops(const BenchFlags& flags) : flags_(flags) {}

  int run() {
    // A device that cannot be used is refused before the work begins.
    std::vector<Device> devices;
    for (const std::string& name : device_lists(flags_.devices)) {
      if (const std::string problem = device_name_problem(name); !problem.empty()) {
        throw Error(ExitCode::kUsage, "--ops measures one device at a time; " + problem);
      }
      devices.push_back(choose_device(name, print_note));
    }
    for (const std::string& name : flags_.models) {
      const Subject subject = open_subject({name, flags_.no_cache});
      check_arithmetic(subject.model->config(), subject.name);
      bench::OpOptions options = options_of(flags_);
      fit_to(options, flags_, subject);
      SessionOptions session;
      session.no_verify = flags_.no_verify;
      Session(subject.model, session, std::vector{Device()}).check_contents();
      measure(subject, devices, options);
    }
    for (const std::string& shape : flags_.shapes) {
      const bench::OpOptions options = options_of(flags_);
      check_arithmetic(synth_config(shape), shape);
      const int context = std::max(positions_of(options), synth_config(shape).max_context);
      measure(make_shape(shape, flags_, context), devices, options);
    }
    if (flags_.format == "json") {
      Json report = header_;
      report["runs"] = std::move(runs_);
      print_json(report);
    } else if (flags_.format == "md") {
      write_stdout("\n" + build_line(header_["build"]));
    }
    return 0;
  }

 private:
  void measure(const Subject& subject, const std::vector<Device>& devices,
               const bench::OpOptions& options) {
    for (const Device& device : devices) {
      // Threads mean nothing to a GPU.
      const std::vector<int> threads = device.gpu ? std::vector{0} : flags_.threads;
      for (const int n_threads : threads) run_on(subject, device, n_threads, options);
    }
  }

  void run_on(const Subject& subject, const Device& device, int n_threads,
              const bench::OpOptions& options) {
    bench::RunSetting run;
    run.on_gpu = device.gpu.has_value();
    run.threads = run.on_gpu ? 0 : n_threads > 0 ? n_threads : cpu::usable_cores();
    describe_gpu(run, {device});
    run.cache_bytes = run.on_gpu ? run.gpu.map([](const GpuInfo& gpu) { return gpu.l2_bytes; })
                                 : machine_.last_level_cache_bytes;
    run.bandwidth = run.on_gpu ? bench::gpu_read_bandwidth(*device.gpu, throw_if_interrupted)
                               : bench::cpu_read_bandwidth(run.threads, throw_if_interrupted);
    Json json = {{"model", bench::model_json(*subject.model, subject.name)},
                 {"backend", run.on_gpu ? "CUDA" : "CPU"},
                 {"threads", run.threads},
                 {"repeats", options.repeats},
                 {"read_bandwidth", to_json(run.bandwidth)}};
    if (run.on_gpu) json["device"] = device.gpu_name;
    const std::string place = run.on_gpu ? device.gpu_name
                                         : "the CPU (" + machine_.cpu + ", " + machine_.isa + ", " +
                                               counted(run.threads, "thread") + ")";
    if (flags_.format == "md") {
      write_stdout((runs_.empty() ? "" : "\n") + subject.name + " on " + place +
                   ", memory read at " + fixed(run.bandwidth.gb_s, 1) + " GB/s\n\n" + kTitles);
    }
    Json results = Json::array();
    const bench::OpSink sink = [&](const bench::OpResult& result) {
      results.push_back(to_json(result, run.bandwidth.gb_s));
      print(json, results.back());
    };
    // Where the size is not known, nothing counts as staying in the cache.
    const uint64_t cache_bytes = run.cache_bytes ? *run.cache_bytes : 0;
    if (run.on_gpu) {
      bench::time_gpu_ops(subject.model->config(), options, *device.gpu, cache_bytes, sink);
    } else {
      cpu::Pool pool(run.threads, cpu::primitives());
      bench::time_cpu_ops(*subject.model, options, pool, cache_bytes, sink);
    }
    json["ops"] = std::move(results);
    runs_.push_back(std::move(json));
  }

  void print(const Json& run, const Json& op) {
    if (flags_.format == "md") {
      write_stdout(markdown_row(op));
    } else if (flags_.format == "csv") {
      write_stdout(csv_lines(header_, run, op, first_row_));
    } else if (flags_.format == "jsonl") {
      print_json({{"schema", "edgellm.bench-op/1"},
                  {"build", header_["build"]},
                  {"machine", header_["machine"]},
                  {"run", run},
                  {"op", op}});
    }
    first_row_ = false;
  }

  static constexpr const char* kTitles =
      "| op | rows | depth | us | MB | GB/s | of mem BW | unfused us | time x | MB x |\n"
      "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n";

  static std::string markdown_row(const Json& op) {
    const Json& fused = op["fused"];
    const Json& unfused = op["unfused"];
    const double bytes = fused["weight_bytes"].get<double>() + fused["kv_bytes"].get<double>() +
                         fused["activation_bytes"].get<double>();
    return "| " + op["op"].get<std::string>() + " | " + op["rows"].dump() + " | " +
           op["depth"].dump() + " | " + table_cell(fused["time_us"], 1, 2) + " | " +
           fixed(bytes / 1e6, 3) + " | " + table_cell(fused["gb_s"], 1, 1) + " | " +
           table_cell(fused["read_bandwidth_share"], 0.01, 0) + " %" +
           (op["stays_in_cache"] == true ? "*" : "") + " | " +
           table_cell(unfused["time_us"], 1, 2) + " | " + table_cell(op["time_ratio"], 1, 2) +
           " | " + table_cell(op["bytes_ratio"], 1, 3) + " |\n";
  }

  const BenchFlags& flags_;
  const Machine machine_ = read_machine();
  const Json header_ = {
      {"schema", "edgellm.bench-ops/1"}, {"build", build_json()}, {"machine", to_json(machine_)}};
  Json runs_ = Json::array();
  bool first_row_ = true;
};

}  // namespace

int bench_ops(const BenchFlags& flags) { return Ops(flags).run(); }

}  // namespace edgellm
