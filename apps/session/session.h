// A model that is open: the file, its tokenizer, the device it runs on and the back end that runs
// it, by options that know nothing of a command line.
//
// Opening goes in two steps, because a front end can refuse a request before weights are loaded.
// The constructor chooses the device and checks the file's header and metadata; start() checks the
// file's contents and loads the weights.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/session/device.h"
#include "base/progress.h"
#include "engine/backend.h"
#include "engine/dispatcher.h"
#include "model/model_file.h"
#include "tokenizer/tokenizer.h"

namespace edgellm {

inline constexpr int kMaxThreads = 1024;
inline constexpr int kMaxPrefillChunk = 65536;
// Rows of a pass that fill a large GPU.
inline constexpr int kGpuPrefillChunk = 2048;

// A drill: a device of the session fails after some passes (docs/batch.md).
struct DeviceFault {
  size_t device = 0;  // of Session::devices()
  int64_t n_passes = 0;
};

// What EDGELLM_FAIL_DEVICE says: "I:N", where devices are counted from 1; empty for an empty text.
// Throws Error (kUsage).
std::optional<DeviceFault> parse_device_fault(const std::string& text);

struct SessionOptions {
  std::string device = "auto";  // or several (device_list_problem())
  int context = 0;              // positions; 0: the model's maximum
  int threads = 0;              // of all CPU engines together; 0: every core this process may use
  std::string kv_type = "i16";  // engine/kv_type.h
  int prefill_chunk = 0;        // rows of a pass; 0: the device's default
  bool no_graph = false;
  bool full_head = false;  // every step computes all logits
  bool no_numa = false;    // weights are read where the file's pages are (LocalWeightsFor)
  bool no_verify = false;  // the file's hashes are not checked
  std::optional<DeviceFault> fault = {};
};

// Empty where the file holds none.
std::optional<Tokenizer> load_tokenizer(const ModelFile& model);

// What a back end for `config` on a GPU or a CPU is made from. `context`
// overrides the options where it is not 0: for commands that know how many positions they need.
// Throws Error (kUsage) where the options ask for more positions than the model was made for.
EngineOptions engine_options(const SessionOptions& options, const ModelConfig& config, bool on_gpu,
                             int context = 0);

// Whom a session tells what it does.
struct Messages {
  Note note;
  // Does the work, which reports its progress to the callback it is given (perhaps an empty one).
  std::function<void(const std::function<void(const Progress&)>& work)> with_progress;
};

// A note is a line on stderr, progress a line on a terminal.
Messages messages_to_stderr();

// What the user gives as MODEL.
struct ModelChoice {
  std::string name;  // as model_folders.h reads it
  // Refuses what would have to be converted first, with the command to type.
  bool no_cache = false;
};

// A `.tmac2` file, or the cached conversion of a GGUF file or a Hugging Face folder
// (cached_model.h). Checks the header and the metadata, reads no weights.
ModelFile open_model(const ModelChoice& choice, const Messages& messages = messages_to_stderr());

class Session {
 public:
  // Throws Error: kDevice for a device that cannot be used, before the model is looked for.
  Session(const ModelChoice& model, const SessionOptions& options,
          Messages messages = messages_to_stderr());

  // On a device that is chosen already.
  Session(const ModelChoice& model, const SessionOptions& options, Device device,
          Messages messages = messages_to_stderr());

  // The same of a model that is open already, on several devices perhaps.
  Session(std::shared_ptr<const ModelFile> model, SessionOptions options,
          std::vector<Device> devices, Messages messages = messages_to_stderr());

  const ModelFile& model() const { return *model_; }
  const SessionOptions& options() const { return options_; }
  const ModelConfig& config() const { return model_->config(); }
  // The first, for commands that use one. The constructor takes as many as the options name.
  const Device& device() const { return devices_.front(); }
  const std::vector<Device>& devices() const { return devices_; }

  // Loaded at the first call. Null where the file holds none.
  const Tokenizer* tokenizer();

  // Threads of the CPU engine on a device of several: they share what there is. Each GPU keeps a
  // core for the thread that waits for it.
  int threads_of(size_t device) const;

  // engine_options() of this session.
  EngineOptions engine_options(int context = 0) const;

  // For a device of `auto` on which the model would not fit: takes the CPU instead and says so.
  // `options_for` gives what the back end is to be made from on a device.
  EngineOptions fit_device(const std::function<EngineOptions(const Device&)>& options_for);

  // Checks every byte of the file, once, unless the options say not to.
  void check_contents();

  // check_contents(), then loads the weights. Where there are several devices: on the first.
  Backend& start(const EngineOptions& options);

  // The same on every device, on all at the same time; `options` are those of each. The file is
  // mapped once. Each back end is made on the cores where engines() wants its thread.
  void start_all(std::vector<EngineOptions> options);

  // The back end, or the first of several.
  Backend& backend() const { return *backends_.front(); }
  // A back end for each device, and the cores for its thread: where there are several devices,
  // those near a GPU, and for CPUs a share of all.
  std::vector<Dispatcher::Engine> engines() const;

 private:
  std::shared_ptr<const ModelFile> model_;
  SessionOptions options_;
  std::vector<Device> devices_;
  Messages messages_;
  bool contents_are_checked_ = false;
  bool tokenizer_is_loaded_ = false;
  std::optional<Tokenizer> tokenizer_;
  std::vector<std::unique_ptr<Backend>> backends_;
  std::vector<std::vector<int>> cpus_;  // of each of several back ends
};

}  // namespace edgellm
