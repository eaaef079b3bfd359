// edgellm plan: what a batch of many requests takes on a device, and how many devices a deadline
// needs (docs/cluster.md).
#include <cmath>
#include <memory>
#include <optional>
#include <string>

#include "apps/bench/commands.h"
#include "apps/bench/flags.h"
#include "apps/bench/plan/estimate.h"
#include "apps/bench/plan/measurement.h"
#include "apps/common/duration.h"
#include "apps/common/signals.h"
#include "apps/common/terminal.h"
#include "apps/common/text_format.h"
#include "apps/common/timings.h"
#include "apps/flags/flags.h"
#include "apps/requests/many_sequences.h"
#include "apps/session/sampling_choice.h"
#include "apps/session/session.h"
#include "base/error.h"
#include "base/text.h"
#include "engine/block_pool.h"

namespace edgellm {
namespace {

using bench::DeviceSpeed;
using bench::PlanMeasurement;
using bench::Workload;
using Json = nlohmann::ordered_json;

struct PlanFlags {
  ModelChoice model;
  uint64_t requests = 0;
  int prompt = 0;
  int answer = 0;
  std::optional<double> deadline_s;
  bool json = false;
  SessionOptions engine;
  ManySequences sequences;
  SamplingChoice sampling;
};

// Everything that is said, in text and in JSON.
struct Plan {
  Workload work;
  BackendInfo device;
  MemoryPlan memory;
  uint64_t request_kv_bytes = 0;
  PlanMeasurement measured;
  double seconds = 0;  // of one device
  Measured<double> request_j;
  std::optional<double> deadline_s;
  std::optional<int64_t> devices;  // that meet it

  double per_second(double count) const { return count / seconds; }
  double answer_ids() const {
    return static_cast<double>(work.requests) * static_cast<double>(work.answer);
  }
};

// "12.3 s", "4 min", "3.5 h", "17 days".
std::string human_seconds(double seconds) {
  if (seconds < 120) return fixed(seconds, 1) + " s";
  if (seconds < 7200) return fixed(seconds / 60, 1) + " min";
  if (seconds < 172800) return fixed(seconds / 3600, 1) + " h";
  return fixed(seconds / 86400, 1) + " days";
}

std::string human_joules(double joules) {
  if (joules < 3.6e6) return fixed(joules, joules < 100 ? 2 : 0) + " J";
  return fixed(joules / 3.6e6, 1) + " kWh";
}

std::string human_rate(double rate) {
  return rate < 100 ? fixed(rate, 2) : human_count(static_cast<uint64_t>(std::llround(rate)));
}

void check(const PlanFlags& flags, const Session& session) {
  const int64_t positions = int64_t{flags.prompt} + flags.answer;
  const int context = session.engine_options().context;
  if (positions > context) {
    throw Error(ExitCode::kPromptDoesNotFit,
                "a prompt of " + std::to_string(flags.prompt) + " and an answer of " +
                    std::to_string(flags.answer) + " tokens take " + std::to_string(positions) +
                    " positions, but the context has " + std::to_string(context) +
                    "; use smaller --prompt or --answer");
  }
}

Plan make_plan(const PlanFlags& flags, Session& session) {
  check(flags, session);
  const Stopwatch start;
  start_many_sequences(session, flags.sequences);
  const Backend& loaded = session.backend();
  Plan plan;
  plan.work = {static_cast<int64_t>(flags.requests), flags.prompt, flags.answer};
  plan.device = loaded.info();
  const uint64_t block_bytes = kv_block_bytes(session.config(), session.engine_options().kv_type);
  const int blocks = BlockPool::blocks_for(int64_t{flags.prompt} + flags.answer);
  plan.request_kv_bytes = static_cast<uint64_t>(blocks) * block_bytes;
  const int sequences = bench::fitting_sequences(loaded, plan.work);
  if (sequences == 0) {
    throw Error(ExitCode::kPromptDoesNotFit,
                "a request takes " + human_bytes(plan.request_kv_bytes) +
                    " of KV cache, more than there is; use a larger --kv-memory or smaller "
                    "--prompt or --answer");
  }
  const double start_s = static_cast<double>(start.elapsed_ns()) / 1e9;
  bench::RunSetting run;
  run.on_gpu = plan.device.is_gpu;
  describe_gpu(run, session.devices());
  if (!run.on_gpu) run.sensors = NotAvailable{"energy is read on GPUs alone"};
  print_note("measuring prompts of " + std::to_string(flags.prompt) + " tokens, then " +
             counted(sequences, "sequence") + " at a time");
  plan.measured = bench::measure_plan(
      session.backend(), plan.work, sequences,
      sampling_options(flags.sampling, session.model().tokenizer(), session.model().path()),
      run.sensors, throw_if_interrupted);
  plan.measured.speed.start_s = start_s;
  plan.memory = session.backend().memory();
  plan.seconds = bench::batch_seconds(plan.work, plan.measured.speed, plan.work.requests);
  plan.request_j =
      plan.measured.prefill_j && plan.measured.decode_j
          ? Measured<double>(*plan.measured.prefill_j * flags.prompt +
                             *plan.measured.decode_j * flags.answer)
          : Measured<double>(plan.measured.prefill_j ? plan.measured.decode_j.missing()
                                                     : plan.measured.prefill_j.missing());
  plan.deadline_s = flags.deadline_s;
  if (plan.deadline_s) {
    plan.devices = bench::devices_for(plan.work, plan.measured.speed, *plan.deadline_s);
  }
  return plan;
}

Json to_json(const Plan& plan, const Session& session) {
  const DeviceSpeed& speed = plan.measured.speed;
  Json json = {{"schema", "edgellm.plan/1"},
               {"model", {{"path", session.model().path()}, {"id", hex64(session.model().id())}}},
               {"requests", plan.work.requests},
               {"prompt_tokens", plan.work.prompt},
               {"answer_tokens", plan.work.answer}};
  json["device"] = {{"name", plan.device.device},
                    {"kv_type", session.options().kv_type},
                    {"start_s", speed.start_s},
                    {"sequences", speed.sequences}};
  json["memory"] = {
      {"weights", plan.memory.weights},   {"head_copy", plan.memory.certified_head},
      {"kv_cache", plan.memory.kv_cache}, {"workspace", plan.memory.workspace},
      {"total", plan.memory.total()},     {"request_kv_cache", plan.request_kv_bytes}};
  json["measured"] = {{"prefill_tokens_per_s", speed.prefill_ids_s},
                      {"step_s", speed.step_s},
                      {"decode_tokens_per_s", speed.sequences / speed.step_s}};
  put(json["measured"], "prefill_j_per_token", plan.measured.prefill_j);
  put(json["measured"], "decode_j_per_token", plan.measured.decode_j);
  Json one = {{"seconds", plan.seconds},
              {"requests_per_s", plan.per_second(static_cast<double>(plan.work.requests))},
              {"answer_tokens_per_s", plan.per_second(plan.answer_ids())}};
  put(one, "j_per_request", plan.request_j);
  put(one, "j_per_answer_token",
      plan.request_j.map([&](double j) { return j / plan.work.answer; }));
  put(one, "joules",
      plan.request_j.map([&](double j) { return j * static_cast<double>(plan.work.requests); }));
  json["one_device"] = std::move(one);
  if (!plan.deadline_s) return json;
  json["deadline"] = {{"deadline_s", *plan.deadline_s}, {"devices", nullptr}, {"seconds", nullptr}};
  if (plan.devices) {
    json["deadline"]["devices"] = *plan.devices;
    json["deadline"]["seconds"] =
        bench::batch_seconds(plan.work, speed, bench::largest_share(plan.work, *plan.devices));
  }
  return json;
}

// A heading and what stands beside it.
std::string row(const std::string& heading, const std::string& text) {
  std::string line = heading;
  line.resize(12, ' ');
  return line + text + "\n";
}

std::string deadline_text(const Plan& plan) {
  const DeviceSpeed& speed = plan.measured.speed;
  const std::string wanted = human_seconds(*plan.deadline_s) + ": ";
  if (!plan.devices) {
    return wanted + "not met by any number of devices; one request takes " +
           human_seconds(bench::batch_seconds(plan.work, speed, 1));
  }
  const int64_t share = bench::largest_share(plan.work, *plan.devices);
  return wanted + counted(*plan.devices, "device") + " such as this, each " +
         counted(share, "request") + " at most, in " +
         human_seconds(bench::batch_seconds(plan.work, speed, share));
}

std::string to_text(const Plan& plan) {
  const DeviceSpeed& speed = plan.measured.speed;
  const MemoryPlan& memory = plan.memory;
  std::string text = row("device", plan.device.device);
  text += row("memory", human_bytes(memory.total()) + ": weights " + human_bytes(memory.weights) +
                            ", copy of the head " + human_bytes(memory.certified_head) +
                            ", KV cache " + human_bytes(memory.kv_cache) + ", workspace " +
                            human_bytes(memory.workspace));
  text += row("sequences", std::to_string(speed.sequences) + " at a time; a request takes " +
                               human_bytes(plan.request_kv_bytes) + " of KV cache");
  text += row("measured", "prompts " + human_rate(speed.prefill_ids_s) + " tok/s; answers " +
                              human_rate(speed.sequences / speed.step_s) + " tok/s, a step " +
                              fixed(speed.step_s * 1e3, 2) + " ms");
  text +=
      row("one device",
          human_seconds(plan.seconds) + " for " + counted(plan.work.requests, "request") + ": " +
              human_rate(plan.per_second(static_cast<double>(plan.work.requests))) +
              " requests/s, " + human_rate(plan.per_second(plan.answer_ids())) + " answer tok/s");
  text += row("energy",
              plan.request_j
                  ? human_joules(*plan.request_j) + " a request, " +
                        fixed(*plan.request_j / plan.work.answer, 4) + " J an answer token, " +
                        human_joules(*plan.request_j * static_cast<double>(plan.work.requests)) +
                        " in all"
                  : "n/a: " + plan.request_j.reason());
  if (plan.deadline_s) text += row("deadline", deadline_text(plan));
  return text;
}

void read_deadline(const std::string& text, PlanFlags& flags) {
  const std::optional<double> ms = parse_duration_ms(text);
  if (!ms || !(*ms > 0)) {
    throw Error(ExitCode::kUsage, "--deadline: '" + printable(text, 40) +
                                      "' is no duration above 0; use 90m, 8h or 7d, for example");
  }
  flags.deadline_s = *ms / 1e3;
}

int run(const PlanFlags& flags) {
  check_sampling(flags.sampling);
  Session session(flags.model, flags.engine);
  const Plan plan = make_plan(flags, session);
  if (flags.json) {
    print_json(to_json(plan, session));
  } else {
    write_stdout(to_text(plan));
  }
  return 0;
}

}  // namespace

void add_plan(Program& program) {
  Command& command = program.add(
      "plan", "Say what many requests take on a device, and how many devices a deadline needs",
      "  edgellm plan model.tmac2 --requests 1000000 --prompt 300 --answer 100 --deadline 8h\n"
      "  edgellm plan model.tmac2 --requests 5000 --prompt 2000 --answer 1 --device cuda:0 --json\n"
      "  From a short measurement on this machine; the model is loaded as `edgellm batch` loads "
      "it.");
  auto flags = std::make_shared<PlanFlags>();
  add_model_argument(command, flags->model);
  constexpr int kMostTokens = 1 << 24;
  command.option("--requests", flags->requests, "Requests to answer")
      .required()
      .check([](const std::string& text) {
        const size_t first = text.find_first_not_of('0');
        if (first == std::string::npos) return "is 0, expected at least 1";
        return text.size() - first > 15 ? "is more than 10^15 requests" : "";
      })
      .value("N");
  command.option("--prompt", flags->prompt, "Tokens of a prompt")
      .required()
      .range(1, kMostTokens)
      .value("N");
  command.option("--answer", flags->answer, "Tokens of an answer")
      .required()
      .range(1, kMostTokens)
      .value("N");
  command
      .parsed_option(
          "--deadline", [flags](const std::string& text) { read_deadline(text, *flags); },
          "Time in which all are to be answered: 90m, 8h, 7d; says how many devices that needs")
      .value("DURATION");
  command.flag("--json", flags->json, "One object on standard output");
  add_engine_options(command, flags->engine);
  add_cache_options(command, flags->sequences);
  add_full_head_flag(command, flags->engine);
  add_sampling_options(command, flags->sampling);
  command.runs([flags] { return run(*flags); });
}

}  // namespace edgellm
