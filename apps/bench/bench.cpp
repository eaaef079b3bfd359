// edgellm bench: how fast a model runs on this machine, and what that speed is compared with.
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <optional>

#include "apps/bench/commands.h"
#include "apps/bench/flags.h"
#include "apps/bench/model_test.h"
#include "apps/bench/ops_command.h"
#include "apps/bench/output.h"
#include "apps/bench/report.h"
#include "apps/bench/report_page.h"
#include "apps/common/signals.h"
#include "apps/common/terminal.h"
#include "apps/common/timings.h"
#include "apps/common/version.h"
#include "apps/flags/flags.h"
#include "apps/session/machine.h"
#include "apps/session/sampling_choice.h"
#include "apps/session/session.h"
#include "base/error.h"
#include "base/output_file.h"
#include "base/text.h"
#include "engine/block_pool.h"
#include "model/convert.h"

namespace edgellm {
namespace {

using bench::TestSpec;
using Json = nlohmann::ordered_json;

// Of a test. Positions are 32-bit numbers, and a depth and a length are added.
constexpr int kMostTokens = 1 << 24;

constexpr int kDefaultPrompt = 512;
constexpr int kDefaultGenerated = 128;
constexpr int kDefaultRepeats = 5;
constexpr int kDefaultDepths[] = {0, 1024, 4096, 8192, 16384};

// ---- Which tests --------------------------------------------------------------------------------

std::vector<TestSpec> tests_of(const BenchFlags& flags, const std::string& name, int max_context,
                               bool is_shape) {
  const auto fits = [&](int positions) { return positions <= max_context; };
  std::vector<TestSpec> tests;
  const std::vector<int> prompts =
      flags.prompts.empty() ? std::vector{std::min(kDefaultPrompt, max_context)} : flags.prompts;
  for (const int tokens : prompts) {
    if (tokens > 0) tests.push_back({TestSpec::Kind::kPrefill, tokens, 0, 1});
  }
  const std::vector<int> generated = flags.generated.empty()
                                         ? std::vector{std::min(kDefaultGenerated, max_context)}
                                         : flags.generated;
  std::vector<int> depths = flags.depths;
  std::vector<std::string> left_out;
  if (depths.empty()) {
    const int longest = *std::max_element(generated.begin(), generated.end());
    for (const int depth : kDefaultDepths) {
      if (depth == 0 || fits(depth + longest)) {
        depths.push_back(depth);
      } else {
        left_out.push_back(std::to_string(depth));
      }
    }
  }
  const std::vector<int> batches = flags.batches.empty() ? std::vector{1} : flags.batches;
  for (const int depth : depths) {
    for (const int tokens : generated) {
      for (const int batch : batches) {
        if (tokens > 0) tests.push_back({TestSpec::Kind::kDecode, tokens, depth, batch});
      }
    }
  }
  if (tests.empty()) {
    throw Error(ExitCode::kUsage, "-p 0 and -n 0 leave no test; give one of them a number above 0");
  }
  if (is_shape) return tests;  // made with the context that they need
  for (const TestSpec& test : tests) {
    if (fits(test.positions())) continue;
    throw Error(ExitCode::kUsage,
                test.name() + " needs a context of " + std::to_string(test.positions()) + ", but " +
                    name + " was made for " + std::to_string(max_context) +
                    "; use smaller -p, -n or -d, or --shape NAME, which may be given a longer one");
  }
  if (!left_out.empty()) {
    print_warning(name + " was made for a context of " + std::to_string(max_context) +
                  ": depths left out are " + join(left_out, ", "));
  }
  return tests;
}

int positions_of(const std::vector<TestSpec>& tests) {
  int most = 0;
  for (const TestSpec& test : tests) most = std::max(most, test.positions());
  return most;
}

// ---- Running them -------------------------------------------------------------------------------

// A combination of the options that needs an engine of its own.
struct Setting {
  SessionOptions options;
  std::vector<Device> devices;  // that work together
};

std::vector<Setting> settings_of(const BenchFlags& flags) {
  std::vector<Setting> settings;
  for (const std::string& device : device_lists(flags.devices)) {
    SessionOptions options;
    options.device = device;
    const std::vector<Device> chosen = choose_devices(device, print_note);
    const auto n_gpus =
        std::ranges::count_if(chosen, [](const Device& d) { return d.gpu.has_value(); });
    if (n_gpus > 0 && static_cast<size_t>(n_gpus) < chosen.size()) {
      throw Error(ExitCode::kUsage, "--device " + device +
                                        ": bench measures GPUs together, or CPU engines, not both; "
                                        "a comma before the CPU measures it by itself");
    }
    for (const int threads : flags.threads) {
      for (const std::string& kv_type : flags.kv_types) {
        for (const int chunk : flags.prefill_chunks) {
          options.threads = threads;
          options.kv_type = kv_type;
          options.prefill_chunk = chunk;
          options.no_graph = flags.no_graph;
          options.full_head = flags.full_head;
          options.no_verify = flags.no_verify;
          settings.push_back({options, chosen});
        }
      }
    }
  }
  return settings;
}

class Bench {
 public:
  explicit Bench(const BenchFlags& flags) : flags_(flags), settings_(settings_of(flags)) {
    header_.json = {
        {"schema", "edgellm.bench/1"}, {"build", build_json()}, {"machine", to_json(machine_)}};
    header_.show_kv_type = flags.kv_types != BenchFlags().kv_types;
    header_.show_prefill_chunk = flags.prefill_chunks != std::vector<int>{0};
  }

  int run() {
    std::vector<Subject> subjects;
    for (const std::string& name : flags_.models) {
      subjects.push_back(open_subject({name, flags_.no_cache}));
      const Subject& subject = subjects.back();
      plans_.push_back(tests_of(flags_, subject.name, subject.model->config().max_context, false));
    }
    for (const std::string& shape : flags_.shapes) {
      plans_.push_back(tests_of(flags_, shape, synth_config(shape).max_context, true));
    }
    for (const auto& plan : plans_) {
      total_runs_ += plan.size() * settings_.size() * static_cast<size_t>(repeats());
    }

    for (const Subject& subject : subjects) header_.model_names.push_back(subject.name);
    for (const std::string& shape : flags_.shapes) header_.model_names.push_back(shape);
    for (const auto& plan : plans_) {
      for (const TestSpec& test : plan) header_.test_names.push_back(test.name());
    }
    output_ = make_bench_output(flags_.format, header_);
    Json runs = Json::array();
    for (size_t i = 0; i < plans_.size(); ++i) {
      std::optional<Subject> made;
      if (i >= subjects.size()) {
        const std::string& shape = flags_.shapes[i - subjects.size()];
        made = make_shape(shape, flags_,
                          std::max(positions_of(plans_[i]), synth_config(shape).max_context));
      }
      const Subject& subject = made ? *made : subjects[i];
      for (const Setting& setting : settings_) {
        runs.push_back(run_setting(subject, setting, plans_[i]));
      }
    }
    Json report = header_.json;
    report["runs"] = std::move(runs);
    output_->end(report);
    if (!flags_.html.empty()) write_file(flags_.html, bench::report_page(report));
    return 0;
  }

 private:
  int repeats() const { return flags_.repeats > 0 ? flags_.repeats : kDefaultRepeats; }

  Json run_setting(const Subject& subject, const Setting& setting,
                   const std::vector<TestSpec>& tests) {
    Session session(subject.model, setting.options, setting.devices);
    EngineOptions options = session.engine_options(positions_of(tests));
    for (const TestSpec& test : tests) options.sequences = std::max(options.sequences, test.batch);
    options.max_rows = std::max(options.max_rows, options.sequences);
    // Several sequences have their cache in blocks, as in `edgellm batch`.
    if (options.sequences > 1) {
      options.kv_blocks = options.sequences * BlockPool::blocks_for(options.context);
    }
    const Stopwatch load;
    std::vector<EngineOptions> each(setting.devices.size(), options);
    for (size_t i = 0; i < each.size(); ++i) {
      if (each.size() > 1 && !setting.devices[i].gpu) each[i].threads = session.threads_of(i);
    }
    session.start_all(each);
    const Backend& backend = session.backend();
    std::vector<Backend*> backends;
    bench::RunSetting run;
    for (const Dispatcher::Engine& engine : session.engines()) {
      backends.push_back(engine.backend);
      run.devices.push_back(engine.backend->info().device);
    }
    run.load_ns = load.elapsed_ns();
    run.model_name = subject.name;
    // `auto` takes the CPU where a model does not fit the GPU.
    run.on_gpu = backend.info().is_gpu;
    describe_gpu(run, setting.devices);
    run.threads = options.threads;
    run.kv_type = options.kv_type;
    run.prefill_chunk = options.max_rows;
    run.sampling =
        sampling_options(flags_.sampling, subject.model->tokenizer(), subject.model->path());
    run.cache_bytes = run.on_gpu ? run.gpu.map([](const GpuInfo& gpu) { return gpu.l2_bytes; })
                                 : machine_.last_level_cache_bytes;
    run.bandwidth =
        run.on_gpu ? bench::gpu_read_bandwidth(*setting.devices.front().gpu, throw_if_interrupted)
                   : bench::cpu_read_bandwidth(options.threads, throw_if_interrupted);

    if (run.on_gpu) run.bandwidth.gb_s *= static_cast<double>(backends.size());
    bench::TestRunner runner(backends, run.sensors, throw_if_interrupted);
    runner.sample(run.sampling);
    Json json = bench::run_json(backend, run);
    const Json identity = json;
    Json of_tests = Json::array();
    std::vector<bench::TestResult> results;
    runner.warm_up();
    for (const TestSpec& test : tests) {
      {
        ProgressLine line;
        const Progress progress = line.callback();
        const std::string what = subject.name + " " + test.name();
        progress(what, done_runs_, total_runs_);
        results.push_back(
            runner.run(test, repeats(), [&] { progress(what, ++done_runs_, total_runs_); }));
      }
      of_tests.push_back(bench::test_json(results.back(), backend, run));
      output_->test(identity, of_tests.back());
    }
    json["degradation"] = bench::degradation_json(results);
    json["tests"] = std::move(of_tests);
    return json;
  }

  const BenchFlags& flags_;
  std::vector<Setting> settings_;
  Machine machine_ = read_machine();
  BenchHeader header_;
  std::vector<std::vector<TestSpec>> plans_;  // of each model, then of each shape
  std::unique_ptr<BenchOutput> output_;
  uint64_t done_runs_ = 0;
  uint64_t total_runs_ = 0;
};

int bench_command(BenchFlags flags) {
  if (flags.json) flags.format = "json";
  if (flags.format.empty()) flags.format = is_terminal(STDOUT_FILENO) ? "table" : "md";
  // --ops has one table, which Markdown reads as well.
  if (flags.ops && flags.format == "table") flags.format = "md";
  if (flags.models.empty() && flags.shapes.empty()) {
    throw Error(ExitCode::kUsage, "bench needs a MODEL or --shape NAME (one of " +
                                      join(synth_shape_names(), ", ") +
                                      "); see edgellm bench --help");
  }
  check_sampling(flags.sampling);
  if (flags.ops) {
    if (flags.sampling.temperature || flags.sampling.model_defaults) {
      throw Error(ExitCode::kUsage, "--ops times no sampling; leave --temp and --sample out");
    }
    return bench_ops(flags);
  }
  if (!flags.html.empty()) require_writable(flags.html);
  try {
    return Bench(flags).run();
  } catch (const Interrupted&) {
    print_note("interrupted; the tests above are whole");
    throw;
  }
}

}  // namespace

void add_bench(Program& program) {
  Command& command = program.add(
      "bench", "Measure how fast a model runs",
      "  edgellm bench model.tmac2\n"
      "  edgellm bench model.tmac2 -p 512 -n 128 -d 0,1024 --threads 1,2 -o json\n"
      "  edgellm bench --shape bitnet-2b-4t -n 64 -d 0,2048 --html report.html\n"
      "  edgellm bench --ops --shape llama3-8b --layers 4 --rows 1,8\n"
      "-p, -n, -d, -b, --rows, --device, --kv-type, --threads and --prefill-chunk take\n"
      "several values with commas between them; every combination is measured.");
  auto flags = std::make_shared<BenchFlags>();
  command.words("MODEL", flags->models, "Models to measure, each a .tmac2 file or its name");
  add_no_cache_flag(command, flags->no_cache);
  command
      .word_list("--shape", flags->shapes,
                 "Random models of these shapes: " + join(synth_shape_names(), ", ") +
                     ", or a config.json",
                 shape_problem)
      .value(shape_value());
  command.option("--layers", flags->layers, "Layers of the shapes instead of their own")
      .range(1, 1000)
      .value("N");
  const Option ops = command.flag(
      "--ops", flags->ops,
      "Time each op of a layer by itself, fused and as a chain of plain steps, in place "
      "of prompts and decoding");
  command
      .number_list("--rows", flags->rows,
                   "With --ops: rows of a pass; up to 8 belong to one sequence each, more are of "
                   "one prompt [1,8,512]",
                   1, 4096)
      .needs(ops)
      .value("N");
  command
      .number_list("-p,--n-prompt", flags->prompts,
                   "Tokens of a prompt, for its prefill; 0: no such test [512]", 0, kMostTokens)
      .value("N")
      .excludes(ops);
  command
      .number_list("-n,--n-gen", flags->generated, "Tokens to decode; 0: no such test [128]", 0,
                   kMostTokens)
      .value("N")
      .excludes(ops);
  command
      .number_list(
          "-d,--n-depth", flags->depths,
          "Tokens that are in the context before decoding begins [of "
          "0,1024,4096,8192,16384 those that the model's context allows; with --ops of 128,2048]",
          0, kMostTokens)
      .value("N");
  command
      .number_list("-b,--batch", flags->batches,
                   "Sequences that are decoded together [1]; with --ops: rows of a decode step, in "
                   "place of --rows or beside them",
                   1, 1024)
      .value("N");
  command
      .option("-r,--repetitions", flags->repeats,
              "Runs of each test that count, after a warm-up [5; 20 with --ops]")
      .range(1, 10000)
      .value("N");
  const Option format = command
                            .option("-o,--output", flags->format,
                                    "Form of the result on standard output [table on a "
                                    "terminal, else md]")
                            .check(one_of({"table", "md", "csv", "json", "jsonl"}))
                            .value("table|md|csv|json|jsonl");
  command.flag("--json", flags->json, "The same as -o json").excludes(format);
  command.option("--html", flags->html, "Also write a page with charts to this file")
      .value("OUT.html")
      .excludes(ops);
  constexpr const char* kGroup = "Engine";
  command
      .word_list("--device", flags->devices,
                 "Where to run; cuda:0,1 and cuda:all are GPUs at the same time, and so are "
                 "devices joined by + (cpu+cpu) [auto]",
                 bench_device_problem)
      .value("auto|cpu|cuda|cuda:N|cuda:all")
      .group(kGroup);
  command
      .number_list("--threads", flags->threads, "CPU threads [one per usable core]", 1, kMaxThreads)
      .value("N")
      .group(kGroup);
  command.word_list("--kv-type", flags->kv_types, kKvTypeHelp, kv_type_problem)
      .value(kv_type_value())
      .group(kGroup)
      .excludes(ops);
  command
      .number_list("--prefill-chunk", flags->prefill_chunks,
                   "Prompt tokens of one pass [256; 2048 on a GPU]", 1, kMaxPrefillChunk)
      .value("N")
      .group(kGroup)
      .excludes(ops);
  command.flag("--no-graph", flags->no_graph, "GPU: launch every kernel of a step by itself")
      .group(kGroup)
      .excludes(ops);
  command
      .flag("--full-head", flags->full_head,
            "Compute every logit of every token, without a smaller copy of the head")
      .group(kGroup)
      .excludes(ops);
  add_sampling_options(command, flags->sampling);
  command.flag("--no-verify", flags->no_verify, "Do not check the file's hashes while loading")
      .group(kGroup);
  command.runs([flags] { return bench_command(*flags); });
}

}  // namespace edgellm
