#include "apps/session/model_flags.h"

#include <algorithm>
#include <filesystem>

#include "apps/cli/option_tree.h"
#include "apps/common/near_matches.h"
#include "apps/common/terminal.h"
#include "apps/common/text_format.h"
#include "apps/session/model_folders.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/number_format.h"
#include "base/text.h"
#include "kernels/cpu/machine.h"
#include "kernels/cuda/gpu_list.h"
#include "model/convert.h"

namespace edgellm {

bool is_device_name(const std::string& name) {
  if (name == "auto" || name == "cpu" || name == "cuda") return true;
  constexpr std::string_view kPrefix = "cuda:";
  return name.starts_with(kPrefix) && name.size() > kPrefix.size() && name.size() <= 8 &&
         std::all_of(name.begin() + kPrefix.size(), name.end(),
                     [](char c) { return c >= '0' && c <= '9'; });
}

std::string shape_problem(const std::string& shape) {
  const std::vector<std::string> names = synth_shape_names();
  std::error_code ignored;
  if (std::find(names.begin(), names.end(), shape) != names.end() ||
      std::filesystem::exists(shape, ignored)) {
    return "";
  }
  return "'" + shape + "' is neither a known shape nor a config.json; known are " +
         join(names, ", ") + did_you_mean(shape, names);
}

std::string device_name_problem(const std::string& name) {
  if (is_device_name(name)) return "";
  // The nearest word to gpu is cpu, which nobody means who types it.
  return "unknown device " + name + "; use auto, cpu, cuda or cuda:N" +
         (name == "gpu" ? "; did you mean cuda?" : did_you_mean(name, {"auto", "cpu", "cuda"}));
}

void add_model_argument(CLI::App& app, std::string& path) {
  app.add_option("MODEL", path,
                 "A .tmac2 file, or the name of one in a model folder (edgellm help environment)")
      ->required()
      ->option_text(" ");
}

void add_engine_options(CLI::App& app, EngineFlags& flags) {
  constexpr const char* kGroup = "Engine";
  app.add_option("-c,--ctx", flags.context, "Positions of the context [the model's maximum]")
      ->check(CLI::Range(1, INT32_MAX).description(""))
      ->option_text("N")
      ->group(kGroup);
  app.add_option("--device", flags.device, "Where to run; cuda:N is the GPU of that number [auto]")
      ->check(device_name_problem)
      ->option_text("auto|cpu|cuda|cuda:N")
      ->group(kGroup);
  app.add_option("--threads", flags.threads, "CPU threads [one per usable core]")
      ->check(CLI::Range(1, kMaxThreads).description(""))
      ->option_text("N")
      ->group(kGroup);
  app.add_option("--kv-type", flags.kv_type, "Type of the KV cache [f16]")
      ->check(one_of({"f16", "f32"}))
      ->option_text("f16|f32")
      ->group(kGroup);
  app.add_option("--prefill-chunk", flags.prefill_chunk,
                 "Prompt tokens of one pass; changes speed and memory, never the result [256]")
      ->check(CLI::Range(1, kMaxPrefillChunk).description(""))
      ->option_text("N")
      ->group(kGroup);
  app.add_flag("--no-graph", flags.no_graph,
               "GPU: launch every kernel of a step by itself; changes speed, never the result")
      ->group(kGroup);
  app.add_flag("--no-verify", flags.no_verify, "Do not check the file's hashes while loading")
      ->group(kGroup);
}

Device choose_device(const EngineFlags& flags, const Note& note) {
  if (flags.device == "cpu") {
    log(LogLevel::kDebug, "device: the CPU, as asked for");
    return {};
  }
  const bool demanded = flags.device != "auto";
  const size_t index =
      flags.device.starts_with("cuda:") ? std::stoul(flags.device.substr(5)) : size_t{0};
  const GpuList list = list_gpus();
  std::string problem = list.problem;
  if (problem.empty() && index >= list.gpus.size()) {
    problem = "the GPUs are numbered 0 to " + std::to_string(list.gpus.size() - 1);
  }
  if (problem.empty() && !is_supported(list.gpus[index])) {
    problem = list.gpus[index].name + " is older than compute capability 7.5";
  }
  if (problem.empty()) {
    log(LogLevel::kDebug, "device: GPU " + std::to_string(index) + ", " + list.gpus[index].name);
    return {static_cast<int>(index), list.gpus[index].name};
  }
  if (demanded) {
    throw Error(ExitCode::kDevice,
                "--device " + flags.device + ": " + problem + "; use --device cpu");
  }
  log(LogLevel::kDebug, "device: the CPU, for " + problem);
  if (list.has_driver) note("running on the CPU: " + problem);
  return {};
}

namespace {

std::unique_ptr<Backend> new_backend(const ModelFile& model, const EngineFlags& flags,
                                     const Device& device, EngineOptions options, const Note& note,
                                     const Progress& progress) {
  if (!device.gpu) return make_cpu_backend(model, options);
  options.gpu = *device.gpu;
  if (flags.device == "auto") {
    const std::string problem = cuda_memory_problem(model, options, gpu_free_bytes(*device.gpu));
    if (!problem.empty()) {
      note("running on the CPU: " + problem);
      return make_cpu_backend(model, options);
    }
    note("running on the " + device.gpu_name);
  }
  return make_cuda_backend(model, options, progress);
}

}  // namespace

std::unique_ptr<Backend> make_backend(const ModelFile& model, const EngineFlags& flags,
                                      const Device& device, EngineOptions options, const Note& note,
                                      const Progress& progress) {
  const int64_t start_ns = now_ns();
  auto backend = new_backend(model, flags, device, options, note, progress);
  log(LogLevel::kDebug,
      "weights ready on " + backend->device_name() + " in " + human_ms(now_ns() - start_ns));
  return backend;
}

std::unique_ptr<Backend> make_backend(const ModelFile& model, const EngineFlags& flags,
                                      const Device& device, EngineOptions options) {
  ProgressLine progress;
  return make_backend(model, flags, device, options, print_note, progress.callback());
}

ModelFile open_model(const std::string& name) { return ModelFile::open(find_model(name)); }

std::optional<Tokenizer> load_tokenizer(const ModelFile& model) {
  if (!model.tokenizer().present) return std::nullopt;
  const int64_t start_ns = now_ns();
  auto tokenizer = Tokenizer::from_json(model.tokenizer_json(), model.path() + ": tokenizer");
  log(LogLevel::kDebug, "loaded the tokenizer in " + human_ms(now_ns() - start_ns));
  return tokenizer;
}

void check_contents(const ModelFile& model, const EngineFlags& flags) {
  if (flags.no_verify) return;
  ProgressLine progress;
  model.verify_contents(progress.callback());
}

EngineOptions engine_options(const EngineFlags& flags, const ModelConfig& config, int context) {
  if (flags.context > config.max_context) {
    throw Error(ExitCode::kUsage, "-c " + std::to_string(flags.context) +
                                      " is more than the model was made for; use at most -c " +
                                      std::to_string(config.max_context));
  }
  EngineOptions options;
  options.context = context != 0 ? context : flags.context;
  if (options.context == 0) options.context = config.max_context;
  options.kv_type = flags.kv_type == "f32" ? KvType::kF32 : KvType::kF16;
  options.threads = flags.threads != 0 ? flags.threads : cpu::usable_cores();
  if (flags.prefill_chunk != 0) options.max_rows = flags.prefill_chunk;
  options.max_rows = std::min(options.max_rows, options.context);
  options.use_graph = !flags.no_graph;
  options.full_head = flags.full_head;
  return options;
}

}  // namespace edgellm
