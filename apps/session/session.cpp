#include "apps/session/session.h"

#include <algorithm>
#include <utility>

#include "apps/common/terminal.h"
#include "apps/session/cached_model.h"
#include "apps/session/model_folders.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "base/number_format.h"
#include "base/text.h"
#include "engine/kv_type.h"
#include "kernels/cpu/machine.h"
#include "kernels/cuda/gpu_list.h"

namespace edgellm {

std::optional<Tokenizer> load_tokenizer(const ModelFile& model) {
  if (!model.tokenizer().present) return std::nullopt;
  const int64_t start_ns = now_ns();
  auto tokenizer = Tokenizer::from_json(model.tokenizer_json(), model.path() + ": tokenizer");
  log(LogLevel::kDebug, "loaded the tokenizer in " + human_ms(now_ns() - start_ns));
  return tokenizer;
}

EngineOptions engine_options(const SessionOptions& options, const ModelConfig& config, bool on_gpu,
                             int context) {
  if (options.context > config.max_context) {
    throw Error(ExitCode::kUsage, "-c " + std::to_string(options.context) +
                                      " is more than the model was made for; use at most -c " +
                                      std::to_string(config.max_context));
  }
  EngineOptions engine;
  engine.context = context != 0 ? context : options.context;
  if (engine.context == 0) engine.context = config.max_context;
  engine.kv_type = kv_type_of(options.kv_type);
  engine.threads = options.threads != 0 ? options.threads : cpu::usable_cores();
  if (on_gpu) engine.max_rows = kGpuPrefillChunk;
  if (options.prefill_chunk != 0) engine.max_rows = options.prefill_chunk;
  engine.max_rows = std::min(engine.max_rows, engine.context);
  engine.use_graph = !options.no_graph;
  engine.full_head = options.full_head;
  return engine;
}

Messages messages_to_stderr() {
  return {.note = print_note, .with_progress = [](const auto& work) {
            ProgressLine line;
            work(line.callback());
          }};
}

ModelFile open_model(const ModelChoice& choice, const Messages& messages) {
  const std::string path = find_model(choice.name);
  if (!is_convertible(path)) return ModelFile::open(path);
  if (choice.no_cache) {
    throw Error(ExitCode::kModelFile,
                printable_path(path) +
                    (is_folder(path) ? " is a Hugging Face folder" : " is a GGUF file") +
                    ", expected a .tmac2 file; make one with: edgellm convert " +
                    printable_path(path) + " -o NAME.tmac2");
  }
  return ModelFile::open(cached_conversion(path, messages));
}

// The device comes first: one that cannot be used ends a command before other work begins.
Session::Session(const ModelChoice& model, const SessionOptions& options, Messages messages)
    : Session(model, options, choose_device(options.device, messages.note), messages) {}

Session::Session(const ModelChoice& model, const SessionOptions& options, Device device,
                 Messages messages)
    : Session(std::make_shared<const ModelFile>(open_model(model, messages)), options,
              std::move(device), messages) {}

Session::Session(std::shared_ptr<const ModelFile> model, SessionOptions options, Device device,
                 Messages messages)
    : model_(std::move(model)),
      options_(std::move(options)),
      device_(std::move(device)),
      messages_(std::move(messages)) {}

const Tokenizer* Session::tokenizer() {
  if (!tokenizer_is_loaded_) {
    tokenizer_ = load_tokenizer(*model_);
    tokenizer_is_loaded_ = true;
  }
  return tokenizer_ ? &*tokenizer_ : nullptr;
}

EngineOptions Session::engine_options(int context) const {
  EngineOptions engine =
      edgellm::engine_options(options_, config(), device_.gpu.has_value(), context);
  if (device_.gpu) engine.gpu = *device_.gpu;
  return engine;
}

EngineOptions Session::fit_device(const std::function<EngineOptions(const Device&)>& options_for) {
  EngineOptions engine = options_for(device_);
  if (!device_.gpu) return engine;
  const uint64_t free_bytes = gpu_free_bytes(*device_.gpu);
  if (options_.prefill_chunk == 0) {
    engine.max_rows = cuda_fitting_rows(*model_, engine, free_bytes);
  }
  if (options_.device == "auto") {
    const std::string problem = cuda_memory_problem(*model_, engine, free_bytes);
    if (!problem.empty()) {
      messages_.note("running on the CPU: " + problem);
      device_ = {};
      engine = options_for(device_);
    }
  }
  return engine;
}

void Session::check_contents() {
  if (options_.no_verify || contents_are_checked_) return;
  messages_.with_progress([&](const Progress& progress) { model_->verify_contents(progress); });
  contents_are_checked_ = true;
}

Backend& Session::start(const EngineOptions& options) {
  check_contents();
  const int64_t start_ns = now_ns();
  EngineOptions engine = fit_device([&](const Device&) { return options; });
  if (!device_.gpu) {
    backend_ = make_cpu_backend(*model_, engine);
  } else {
    engine.gpu = *device_.gpu;
    if (options_.device == "auto") messages_.note("running on the " + device_.gpu_name);
    messages_.with_progress(
        [&](const Progress& progress) { backend_ = make_cuda_backend(*model_, engine, progress); });
  }
  log(LogLevel::kDebug,
      "weights ready on " + backend_->info().device + " in " + human_ms(now_ns() - start_ns));
  return *backend_;
}

}  // namespace edgellm
