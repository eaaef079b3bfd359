#include "apps/session/session.h"

#include <algorithm>
#include <mutex>
#include <thread>
#include <utility>

#include "apps/common/parse_number.h"
#include "apps/common/terminal.h"
#include "apps/common/threads.h"
#include "apps/session/cached_model.h"
#include "apps/session/model_folders.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "base/number_format.h"
#include "base/text.h"
#include "engine/failing_backend.h"
#include "engine/kv_type.h"
#include "kernels/cpu/affinity.h"
#include "kernels/cpu/machine.h"
#include "kernels/cuda/gpu_list.h"

namespace edgellm {

std::optional<DeviceFault> parse_device_fault(const std::string& text) {
  if (text.empty()) return std::nullopt;
  const size_t colon = std::min(text.find(':'), text.size());
  const auto number = try_parse_number<uint32_t>(text.substr(0, colon));
  const auto passes = try_parse_number<uint32_t>(text.substr(std::min(colon + 1, text.size())));
  if (!number || !passes || *number == 0) {
    throw Error(ExitCode::kUsage, "EDGELLM_FAIL_DEVICE is \"" + printable(text, 40) +
                                      "\", expected DEVICE:PASSES, as in 2:100");
  }
  return DeviceFault{*number - 1, *passes};
}

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
  if (options.no_numa) engine.local_weights = LocalWeightsFor::kNobody;
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

namespace {

// Another device's loading has failed.
struct LoadingEnded {};

// Copying to several GPUs has one progress line, that of the first. All end when it says so.
class SharedProgress {
 public:
  explicit SharedProgress(const Progress& progress) : progress_(progress) {}

  Progress of(size_t device) {
    return [this, device](std::string_view what, uint64_t done, uint64_t total) {
      const std::lock_guard guard(mutex_);
      if (has_ended_) throw LoadingEnded();
      if (!progress_ || device > 0) return;
      try {
        progress_(what, done, total);
      } catch (...) {
        has_ended_ = true;
        throw;
      }
    };
  }
  void end() {
    const std::lock_guard guard(mutex_);
    has_ended_ = true;
  }

 private:
  const Progress& progress_;
  std::mutex mutex_;
  bool has_ended_ = false;
};

std::unique_ptr<Backend> with_fault(std::unique_ptr<Backend> backend,
                                    const std::optional<DeviceFault>& fault, size_t device) {
  if (!fault || fault->device != device) return backend;
  return make_failing_backend(std::move(backend), fault->n_passes);
}

}  // namespace

// The devices come first: one that cannot be used ends a command before other work begins.
Session::Session(const ModelChoice& model, const SessionOptions& options, Messages messages)
    : devices_(choose_devices(options.device, messages.note)) {
  model_ = std::make_shared<const ModelFile>(open_model(model, messages));
  options_ = options;
  messages_ = std::move(messages);
}

Session::Session(const ModelChoice& model, const SessionOptions& options, Device device,
                 Messages messages)
    : Session(std::make_shared<const ModelFile>(open_model(model, messages)), options,
              std::vector{std::move(device)}, messages) {}

Session::Session(std::shared_ptr<const ModelFile> model, SessionOptions options,
                 std::vector<Device> devices, Messages messages)
    : model_(std::move(model)),
      options_(std::move(options)),
      devices_(std::move(devices)),
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
      edgellm::engine_options(options_, config(), device().gpu.has_value(), context);
  if (device().gpu) engine.gpu = *device().gpu;
  return engine;
}

int Session::threads_of(size_t device) const {
  const auto is_cpu = [](const Device& one) { return !one.gpu; };
  const auto n_cpus = static_cast<int>(std::ranges::count_if(devices_, is_cpu));
  const int n_gpus = static_cast<int>(devices_.size()) - n_cpus;
  const int all = options_.threads > 0 ? options_.threads : cpu::usable_cores() - n_gpus;
  // The first of the CPU engines take what is left over.
  const auto before = static_cast<int>(
      std::count_if(devices_.begin(), devices_.begin() + static_cast<ptrdiff_t>(device), is_cpu));
  return std::max(1, all / n_cpus + (before < all % n_cpus ? 1 : 0));
}

EngineOptions Session::fit_device(const std::function<EngineOptions(const Device&)>& options_for) {
  EngineOptions engine = options_for(device());
  if (!device().gpu) return engine;
  const uint64_t free_bytes = gpu_free_bytes(*device().gpu);
  if (options_.prefill_chunk == 0) {
    engine.max_rows = cuda_fitting_rows(*model_, engine, free_bytes);
  }
  if (options_.device == "auto") {
    const std::string problem = cuda_memory_problem(*model_, engine, free_bytes);
    if (!problem.empty()) {
      messages_.note("running on the CPU: " + problem);
      devices_ = {Device()};
      engine = options_for(device());
    }
  }
  return engine;
}

void Session::check_contents() {
  if (options_.no_verify || contents_are_checked_) return;
  // The GPUs' contexts are made in the meantime: each of the two takes some tenths of a second.
  std::vector<std::jthread> contexts;
  for (const Device& device : devices_) {
    if (device.gpu) contexts.emplace_back(make_gpu_context, *device.gpu);
  }
  messages_.with_progress([&](const Progress& progress) { model_->verify_contents(progress); });
  contents_are_checked_ = true;
}

Backend& Session::start(const EngineOptions& options) {
  check_contents();
  const int64_t start_ns = now_ns();
  EngineOptions engine = fit_device([&](const Device&) { return options; });
  std::unique_ptr<Backend> backend;
  if (!device().gpu) {
    backend = make_cpu_backend(*model_, engine);
  } else {
    engine.gpu = *device().gpu;
    if (options_.device == "auto") messages_.note("running on the " + device().gpu_name);
    messages_.with_progress(
        [&](const Progress& progress) { backend = make_cuda_backend(*model_, engine, progress); });
  }
  backends_.clear();
  backends_.push_back(with_fault(std::move(backend), options_.fault, 0));
  log(LogLevel::kDebug, "weights ready on " + backends_.front()->info().device + " in " +
                            human_ms(now_ns() - start_ns));
  return *backends_.front();
}

// ---- Several devices ------------------------------------------------------------------------

namespace {

// The cores of each device's threads. Those of CPUs are shared out where that leaves a core for
// each thread.
std::vector<std::vector<int>> cpus_of(const std::vector<Device>& devices,
                                      const std::vector<EngineOptions>& options) {
  const std::vector<int> allowed = cpu::allowed_cpus();
  int n_cpus = 0;
  size_t n_threads = 0;
  for (size_t i = 0; i < devices.size(); ++i) {
    if (devices[i].gpu) continue;
    ++n_cpus;
    n_threads += static_cast<size_t>(options[i].threads);
  }
  std::vector<std::vector<int>> shares;
  if (n_cpus > 1 && n_threads <= allowed.size()) shares = cpu::share_out(allowed, n_cpus);
  std::vector<std::vector<int>> cpus;
  for (const Device& device : devices) {
    if (device.gpu) {
      cpus.push_back(cpu::near_pci_device(allowed, device.pci_bus_id));
    } else {
      cpus.push_back(shares.empty() ? std::vector<int>() : shares.back());
      if (!shares.empty()) shares.pop_back();
    }
  }
  return cpus;
}

}  // namespace

void Session::start_all(std::vector<EngineOptions> options) {
  require(options.size() == devices_.size(), "every device has options");
  if (devices_.size() == 1) {
    start(options.front());
    return;
  }
  check_contents();
  const int64_t start_ns = now_ns();
  cpus_ = cpus_of(devices_, options);
  std::vector<std::unique_ptr<Backend>> backends(devices_.size());
  messages_.with_progress([&](const Progress& progress) {
    SharedProgress shared(progress);
    on_threads(devices_.size(), [&](size_t i) {
      try {
        cpu::bind_this_thread(cpus_[i]);
        if (devices_[i].gpu) options[i].gpu = *devices_[i].gpu;
        if (!options_.no_numa) options[i].local_weights = LocalWeightsFor::kEveryEngine;
        backends[i] =
            with_fault(devices_[i].gpu ? make_cuda_backend(*model_, options[i], shared.of(i))
                                       : make_cpu_backend(*model_, options[i]),
                       options_.fault, i);
      } catch (const LoadingEnded&) {
        // What ended it is thrown by another thread.
      } catch (...) {
        shared.end();
        throw;
      }
    });
  });
  backends_ = std::move(backends);
  log(LogLevel::kDebug, "weights ready on " + std::to_string(backends_.size()) + " devices in " +
                            human_ms(now_ns() - start_ns));
}

std::vector<Dispatcher::Engine> Session::engines() const {
  std::vector<Dispatcher::Engine> engines;
  for (size_t i = 0; i < backends_.size(); ++i) {
    engines.push_back({backends_[i].get(), cpus_.empty() ? std::vector<int>() : cpus_[i]});
  }
  return engines;
}

}  // namespace edgellm
