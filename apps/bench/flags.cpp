#include "apps/bench/flags.h"

#include <stdlib.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "apps/common/parse_number.h"
#include "apps/common/terminal.h"
#include "base/error.h"
#include "model/convert.h"

namespace edgellm {
namespace {

// A folder for a random model. It goes with the object.
class ScratchFolder {
 public:
  ScratchFolder() {
    std::error_code error;
    const std::filesystem::path base = std::filesystem::temp_directory_path(error);
    path_ = (base / "edgellm-bench-XXXXXX").string();
    if (error || mkdtemp(path_.data()) == nullptr) {
      throw Error(ExitCode::kRuntime, "no folder for a random model could be made in " +
                                          base.string() + " (" + std::strerror(errno) +
                                          "); set TMPDIR to a folder that can be written");
    }
  }
  ~ScratchFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

std::string plain_name(const std::string& path) {
  return std::filesystem::path(path).stem().string();
}

bool is_number(const std::string& word) { return try_parse_number<uint16_t>(word).has_value(); }

std::string with_commas(std::string word) {
  std::ranges::replace(word, '+', ',');
  return word;
}

}  // namespace

std::string bench_device_problem(const std::string& word) {
  return is_number(word) ? "" : device_list_problem(with_commas(word));
}

std::vector<std::string> device_lists(const std::vector<std::string>& words) {
  std::vector<std::string> lists;
  for (const std::string& word : words) {
    if (!is_number(word)) {
      lists.push_back(with_commas(word));
      continue;
    }
    if (lists.empty() || !lists.back().starts_with("cuda:")) {
      throw Error(ExitCode::kUsage, "--device: " + word +
                                        " is the number of a GPU and stands behind one, as in "
                                        "cuda:0,1");
    }
    lists.back() += "," + word;
  }
  return lists;
}

Subject open_subject(const ModelChoice& choice) {
  auto model = std::make_shared<const ModelFile>(open_model(choice));
  return {plain_name(model->path()), std::move(model)};
}

Subject make_shape(const std::string& shape, const BenchFlags& flags, int context) {
  const ScratchFolder folder;
  const std::string path = folder.path() + "/model.tmac2";
  SynthOptions options;
  options.shape = shape;
  if (flags.layers > 0) options.layers = flags.layers;
  options.context = context;
  {
    ProgressLine progress;
    options.progress = progress.callback();
    write_synth(options, path);
  }
  const bool is_path = shape.ends_with(".json");
  return {is_path ? plain_name(shape) : shape,
          std::make_shared<const ModelFile>(ModelFile::open(path))};
}

void describe_gpu(bench::RunSetting& run, const std::vector<Device>& devices) {
  if (!run.on_gpu) {
    run.gpu = NotAvailable{"the test ran on the CPU"};
    run.sensors = run.gpu.missing();
    return;
  }
  // Several that work together are of one kind.
  const GpuInfo gpu = list_gpus().gpus[static_cast<size_t>(*devices.front().gpu)];
  run.gpu = gpu;
  run.sensors = NotAvailable{"several GPUs were measured together"};
  if (devices.size() == 1) run.sensors = open_nvml_device(gpu.pci_bus_id);
}

}  // namespace edgellm
