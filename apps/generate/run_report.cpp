#include "apps/generate/run_report.h"

#include <cstdio>
#include <string>

#include "apps/common/text_format.h"
#include "apps/common/version.h"
#include "apps/session/sampling_choice.h"
#include "base/hash.h"
#include "base/text.h"
#include "engine/kv_type.h"
#include "engine/token_bytes.h"

namespace edgellm {
namespace {

// "label:                value"
class Lines {
 public:
  void operator()(const char* label, const std::string& value) {
    std::string start = label;
    start.resize(22, ' ');
    text_ += start + value + "\n";
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

void add_ollamas_lines(Lines& line, const RunReport& report) {
  const GenerateResult& result = *report.result;
  line("total duration:", go_duration(report.timings.total_ns));
  line("load duration:", go_duration(report.timings.load_ns));
  line("prompt eval count:", std::to_string(report.prompt_count()) + " token(s)");
  line("prompt eval duration:", go_duration(result.prompt_eval_ns));
  line("prompt eval rate:", fixed(report.prompt_tps(), 2) + " tokens/s");
  if (report.eval_count() > 0) {
    line("eval count:", std::to_string(report.eval_count()) + " token(s)");
  }
  if (report.timed_tokens() > 0) {
    line("eval duration:", go_duration(result.eval_ns));
    line("eval rate:", fixed(report.eval_tps(), 2) + " tokens/s");
  }
}

void add_our_lines(Lines& line, const RunReport& report) {
  const GenerateResult& result = *report.result;
  const Percentiles latencies = percentiles(result.inter_token_ns);
  const MemoryPlan memory = report.backend->memory();
  const HeadStats head = report.backend->head_stats();
  const uint64_t token_bytes = weight_bytes_per_token(*report.model, memory.certified_head);
  line("time to first token:", go_duration(result.ttft_ns));
  if (report.timed_tokens() > 0) {
    line("inter-token p50:", go_duration(latencies.p50));
    line("inter-token p99:", go_duration(latencies.p99));
    line("weights read:", human_bytes(token_bytes) + " per token, " +
                              fixed(static_cast<double>(token_bytes) * report.eval_tps() / 1e9, 2) +
                              " GB/s");
  }
  const SamplingOptions& sampling = *report.sampling;
  line("sampling:", sampling.is_argmax() ? "greedy" : edgellm::to_json(sampling).dump());
  line("head:",
       head.steps == 0
           ? "full"
           : "certified copy; rows rescored: mean " +
                 fixed(static_cast<double>(head.rescored) / static_cast<double>(head.steps), 1) +
                 ", most " + std::to_string(head.most_rescored) + " of " +
                 std::to_string(report.model->config().vocab));
  line("memory:",
       human_bytes(memory.weights) + " weights, " +
           (memory.certified_head > 0 ? human_bytes(memory.certified_head) + " copy of the head, "
                                      : "") +
           human_bytes(memory.kv_cache) + " KV cache, " + human_bytes(memory.workspace) +
           " workspace");
  const StepLaunches step = report.backend->step_launches(1);
  if (step.launches > 0) {
    line("launches:",
         std::to_string(step.launches) + " per token" +
             (step.graph_nodes > 0 ? ", a graph of " + std::to_string(step.graph_nodes) + " nodes"
                                   : std::string()));
  }
  line("context:", std::to_string(report.backend->info().context) + " tokens");
  line("device:", report.backend->info().device);
}

// Hash of the generated ids as little-endian int32 (the only byte order this program runs on).
std::string output_hash(std::span<const int32_t> ids) {
  return hex64(xxh3(ids.data(), ids.size_bytes()));
}

}  // namespace

void print_verbose(const RunReport& report) {
  Lines lines;
  add_ollamas_lines(lines, report);
  add_our_lines(lines, report);
  std::fputs(lines.text().c_str(), stderr);
}

nlohmann::ordered_json to_json(const RunReport& report, const nlohmann::ordered_json& text) {
  const ModelFile& model = *report.model;
  const GenerateResult& result = *report.result;
  const Percentiles latencies = percentiles(result.inter_token_ns);
  return {{"schema", "edgellm.run/1"},
          {"version", build_info().version},
          {"model",
           {{"path", model.path()},
            {"id", hex64(model.id())},
            {"architecture", model.config().architecture},
            {"params", model.parameter_count()},
            {"bytes", model.file_bytes()}}},
          {"prompt_ids", report.prompt_ids},
          {"token_ids", result.token_ids},
          {"text", text},
          {"finish_reason", to_string(result.finish_reason)},
          {"timings",
           {{"total_ns", report.timings.total_ns},
            {"load_ns", report.timings.load_ns},
            {"prompt_eval_count", report.prompt_count()},
            {"prompt_eval_ns", result.prompt_eval_ns},
            {"prompt_tps", report.prompt_tps()},
            {"eval_count", report.eval_count()},
            {"eval_ns", result.eval_ns},
            {"eval_tps", report.eval_tps()},
            {"ttft_ns", result.ttft_ns},
            {"itl_ns",
             {{"p50", latencies.p50},
              {"p90", latencies.p90},
              {"p99", latencies.p99},
              {"max", latencies.max}}}}},
          {"device", report.backend->info().device},
          {"threads", report.options->threads},
          {"kv_type", to_string(report.options->kv_type)},
          {"context", report.backend->info().context},
          {"sampling", edgellm::to_json(*report.sampling)},
          {"output_hash", output_hash(result.token_ids)}};
}

}  // namespace edgellm
