#include "apps/requests/many_sequences.h"

#include <algorithm>
#include <string>
#include <utility>

#include "apps/common/terminal.h"
#include "apps/common/text_format.h"
#include "apps/common/threads.h"
#include "apps/session/machine.h"
#include "base/error.h"
#include "engine/block_pool.h"
#include "kernels/cuda/gpu_list.h"

namespace edgellm {
namespace {

// A CPU's time per token stops falling at about 16 sequences. On a GPU it falls until the KV cache
// is full.
constexpr int kCpuSequences = 16;
constexpr int kGpuSequences = 256;

// Prompt rows of one pass on a GPU: enough to fill a large one. Sequences that decode wait for such
// a pass, on an H200 10 ms (SmolLM-135M's shape) or 54 ms (BitNet-2B's).
constexpr int kGpuRows = 4096;

// CUDA takes memory of its own for graphs and kernels while it runs.
constexpr uint64_t kGpuReserve = uint64_t{256} << 20;

// Half of what is free: the rest is for other programs and for the pages of the model file.
uint64_t cpu_cache_bytes() {
  const auto free_bytes = available_memory_bytes();
  constexpr uint64_t kUnknown = uint64_t{1} << 30;
  return free_bytes ? *free_bytes / 2 : kUnknown;
}

// How many of the devices are the same as this one: they share its memory.
int same_devices(const Session& session, const Device& device) {
  return static_cast<int>(std::ranges::count(session.devices(), device.gpu, &Device::gpu));
}

// A pass on this device, and the sequences that it serves.
EngineOptions sized_for(const Session& session, const ManySequences& wanted, const Device& device) {
  EngineOptions options =
      engine_options(session.options(), session.config(), device.gpu.has_value());
  if (device.gpu) options.gpu = *device.gpu;
  // Rows of a pass are of many sequences: the context does not bound them.
  options.max_rows = session.options().prefill_chunk > 0 ? session.options().prefill_chunk
                     : device.gpu                        ? kGpuRows
                                                         : EngineOptions().max_rows;
  options.sequences = wanted.sequences > 0 ? wanted.sequences
                      : device.gpu         ? kGpuSequences
                                           : kCpuSequences;
  // A pass has a row for each sequence.
  options.max_rows = std::max(options.max_rows, options.sequences);
  return options;
}

// What an engine may take of a GPU, which others of the session may use as well.
uint64_t gpu_share(const Session& session, const Device& device, uint64_t reserve) {
  const uint64_t free_bytes = gpu_free_bytes(*device.gpu);
  const auto sharers = static_cast<uint64_t>(same_devices(session, device));
  return (free_bytes - std::min(free_bytes, reserve)) / sharers;
}

int64_t affordable_blocks(const Session& session, const ManySequences& wanted, const Device& device,
                          const EngineOptions& options, uint64_t block_bytes) {
  if (wanted.kv_memory > 0) {
    const uint64_t blocks = wanted.kv_memory / block_bytes;
    if (blocks == 0) {
      throw Error(ExitCode::kUsage, "--kv-memory " + std::to_string(wanted.kv_memory) +
                                        " is too little: a block of the KV cache takes " +
                                        std::to_string(block_bytes) + " bytes");
    }
    return static_cast<int64_t>(std::min<uint64_t>(blocks, INT32_MAX));
  }
  if (device.gpu) {
    const uint64_t free_bytes = gpu_share(session, device, kGpuReserve);
    return cuda_kv_blocks(session.model(), options, free_bytes) / wanted.sharers;
  }
  const int sharers = wanted.sharers * same_devices(session, device);
  const uint64_t bytes = cpu_cache_bytes() / static_cast<uint64_t>(sharers);
  return static_cast<int64_t>(std::min<uint64_t>(bytes / block_bytes, INT32_MAX));
}

EngineOptions fitted_to(const Session& session, const ManySequences& wanted, const Device& device) {
  EngineOptions fitted = sized_for(session, wanted, device);
  const uint64_t block_bytes = kv_block_bytes(session.config(), fitted.kv_type);
  const int64_t useful = int64_t{fitted.sequences} * BlockPool::blocks_for(fitted.context);
  const int64_t blocks =
      std::min(useful, affordable_blocks(session, wanted, device, fitted, block_bytes));
  fitted.kv_blocks = static_cast<int>(std::clamp<int64_t>(blocks, 1, INT32_MAX));
  return fitted;
}

// The options of each of several devices. Asking a GPU for its free memory makes a context on it,
// which takes a moment: all are asked at the same time.
std::vector<EngineOptions> fitted_to_each(const Session& session, const ManySequences& wanted) {
  const std::vector<Device>& devices = session.devices();
  std::vector<EngineOptions> all(devices.size());
  on_threads(devices.size(), [&](size_t i) {
    all[i] = fitted_to(session, wanted, devices[i]);
    if (!devices[i].gpu) {
      all[i].threads = session.threads_of(i);
    } else if (session.options().prefill_chunk == 0) {
      all[i].max_rows =
          cuda_fitting_rows(session.model(), all[i], gpu_share(session, devices[i], /*reserve=*/0));
    }
  });
  return all;
}

bool has_room_on(const Session& session, const ManySequences& wanted, const Device& device) {
  EngineOptions options = sized_for(session, wanted, device);
  const uint64_t block_bytes = kv_block_bytes(session.config(), options.kv_type);
  options.kv_blocks =
      wanted.kv_memory > 0
          ? static_cast<int>(std::clamp<uint64_t>(wanted.kv_memory / block_bytes, 1, INT32_MAX))
          : BlockPool::blocks_for(options.context);
  if (device.gpu) {
    const uint64_t free_bytes = gpu_share(session, device, kGpuReserve);
    if (session.options().prefill_chunk == 0) {
      options.max_rows = cuda_fitting_rows(session.model(), options, free_bytes);
    }
    return cuda_memory_problem(session.model(), options, free_bytes).empty();
  }
  const auto free_bytes = available_memory_bytes();
  return !free_bytes ||
         session.model().file_bytes() + static_cast<uint64_t>(options.kv_blocks) * block_bytes *
                                            static_cast<uint64_t>(same_devices(session, device)) <=
             *free_bytes;
}

}  // namespace

bool has_room_for_sequences(const Session& session, const ManySequences& wanted) {
  return std::ranges::all_of(session.devices(), [&](const Device& device) {
    return has_room_on(session, wanted, device);
  });
}

std::vector<Dispatcher::Engine> start_many_sequences(Session& session,
                                                     const ManySequences& wanted) {
  std::vector<EngineOptions> all;
  if (session.devices().size() > 1) {
    all = fitted_to_each(session, wanted);
  } else {
    all.push_back(session.fit_device(
        [&](const Device& device) { return fitted_to(session, wanted, device); }));
  }
  for (size_t i = 0; i < all.size(); ++i) {
    const uint64_t block_bytes = kv_block_bytes(session.config(), all[i].kv_type);
    print_note("KV cache" +
               (all.size() > 1 ? " of device " + std::to_string(i + 1) : std::string()) + ": " +
               human_bytes(static_cast<uint64_t>(all[i].kv_blocks) * block_bytes) + " (" +
               session.options().kv_type + ") for " +
               std::to_string(int64_t{all[i].kv_blocks} * kKvBlockPositions) + " positions, " +
               std::to_string(all[i].sequences) + " sequences at a time");
  }
  session.start_all(std::move(all));
  return session.engines();
}

}  // namespace edgellm
