#include "apps/requests/many_sequences.h"

#include <algorithm>

#include "apps/common/terminal.h"
#include "apps/common/text_format.h"
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

// A pass on this device, and the sequences that it serves.
EngineOptions sized_for(const Session& session, const ManySequences& wanted, const Device& device) {
  EngineOptions options = session.engine_options();
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

uint64_t without_reserve(uint64_t free_bytes) {
  return free_bytes - std::min(free_bytes, kGpuReserve);
}

int64_t affordable_blocks(const ModelFile& model, const ManySequences& wanted, const Device& device,
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
    const uint64_t free_bytes = gpu_free_bytes(*device.gpu);
    return cuda_kv_blocks(model, options, without_reserve(free_bytes)) / wanted.sharers;
  }
  const uint64_t bytes = cpu_cache_bytes() / static_cast<uint64_t>(wanted.sharers);
  return static_cast<int64_t>(std::min<uint64_t>(bytes / block_bytes, INT32_MAX));
}

}  // namespace

bool has_room_for_sequences(const Session& session, const ManySequences& wanted) {
  const Device& device = session.device();
  EngineOptions options = sized_for(session, wanted, device);
  const uint64_t block_bytes = kv_block_bytes(session.config(), options.kv_type);
  options.kv_blocks =
      wanted.kv_memory > 0
          ? static_cast<int>(std::clamp<uint64_t>(wanted.kv_memory / block_bytes, 1, INT32_MAX))
          : BlockPool::blocks_for(options.context);
  if (device.gpu) {
    const uint64_t free_bytes = without_reserve(gpu_free_bytes(*device.gpu));
    if (session.options().prefill_chunk == 0) {
      options.max_rows = cuda_fitting_rows(session.model(), options, free_bytes);
    }
    return cuda_memory_problem(session.model(), options, free_bytes).empty();
  }
  const auto free_bytes = available_memory_bytes();
  return !free_bytes ||
         session.model().file_bytes() + static_cast<uint64_t>(options.kv_blocks) * block_bytes <=
             *free_bytes;
}

Backend& start_many_sequences(Session& session, const ManySequences& wanted) {
  const uint64_t block_bytes = kv_block_bytes(session.config(), session.engine_options().kv_type);
  const EngineOptions options = session.fit_device([&](const Device& device) {
    EngineOptions fitted = sized_for(session, wanted, device);
    const int64_t useful = int64_t{fitted.sequences} * BlockPool::blocks_for(fitted.context);
    const int64_t blocks =
        std::min(useful, affordable_blocks(session.model(), wanted, device, fitted, block_bytes));
    fitted.kv_blocks = static_cast<int>(std::clamp<int64_t>(blocks, 1, INT32_MAX));
    return fitted;
  });
  print_note("KV cache: " + human_bytes(static_cast<uint64_t>(options.kv_blocks) * block_bytes) +
             " (" + session.options().kv_type + ") for " +
             std::to_string(int64_t{options.kv_blocks} * kKvBlockPositions) + " positions, " +
             std::to_string(options.sequences) + " sequences at a time");
  return session.start(options);
}

}  // namespace edgellm
