// The narrow calls between the engine's host logic and a device: forward(), one step, and decode()
// and decode_rows(), runs of greedy steps.
//
// A step is a batch of rows. Decode is one row per live sequence, prefill many rows of one. Both
// devices run the same five ops a layer (kernels/ops.h) and give the same bits for a row, whatever
// other rows are with it. The engine speaks token ids only; text belongs to the tokenizer.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/progress.h"
#include "kernels/ops.h"
#include "model/model_file.h"

namespace edgellm {

// Positions of a block of the paged KV cache. One attention chunk: the finest sharing of prompts,
// and the least that a sequence leaves unused.
inline constexpr int kKvBlockPositions = kAttentionChunk;

struct EngineOptions {
  int context = 0;     // positions per sequence; 0: the model's maximum
  int sequences = 1;   // sequences that can be live at the same time
  int max_rows = 256;  // rows of one pass: the longest prefill chunk
  KvType kv_type = KvType::kF16;
  // > 0: the KV cache is a pool of so many blocks of kKvBlockPositions, which set_blocks() gives to
  // sequences. 0: each sequence has the room of a whole context to itself.
  int kv_blocks = 0;
  int threads = 0;          // CPU worker threads; 0: one per core this process may use
  int gpu = 0;              // index of the CUDA device
  bool use_graph = true;    // GPU: replay decode steps as one captured graph
  bool full_head = false;   // greedy steps compute every logit: no int8 copy of the head
  bool low_memory = false;  // give weight pages back after use (the golden run of a conversion)
};

// What a backend is; nothing of it changes after construction.
struct BackendInfo {
  std::string device;  // "cpu (AMD EPYC, avx512, 2 threads)" or "cuda:0 (NVIDIA H200)"
  bool is_gpu = false;
  int context = 0;    // positions that a sequence can hold
  int sequences = 0;  // that can be live at the same time
  int kv_blocks = 0;  // of kKvBlockPositions in the pool; 0 where sequences do not share one
  int max_rows = 0;   // of one pass at most
};

// Rows of one pass; the three arrays have one entry per row.
struct Batch {
  std::span<const int32_t> ids;        // token of each row
  std::span<const int32_t> sequences;  // slot of the sequence, 0 .. options.sequences - 1
  // Of a sequence ascending; all positions before them are in the cache, by earlier passes or
  // earlier rows. A block that several sequences hold is not written and read in the same pass.
  std::span<const int32_t> positions;
};

// What a pass is asked for besides filling the KV cache.
struct Outputs {
  // Rows of the batch whose result is wanted; may be empty. Either every one gives both arg-max and
  // logits, or the first ones give an arg-max (which may come from the certified head) and the
  // others logits.
  std::span<const int32_t> rows;
  std::span<const int32_t> banned;  // ids the arg-max may not choose
  std::span<int32_t> argmax;        // of the first argmax.size() of `rows`
  std::span<float> logits;          // [n, vocab] of the last n of `rows`
  std::span<float> hidden;          // [layers + 1, batch rows, dim] or empty: embedding, residual
                                    // after layers 1 .. layers - 1, final norm's output
};

// Bytes that a backend took, for `info` and `--verbose`.
struct MemoryPlan {
  uint64_t weights = 0;
  uint64_t certified_head = 0;  // for greedy steps; on the CPU 0 until it is built
  uint64_t kv_cache = 0;
  uint64_t workspace = 0;

  uint64_t total() const { return weights + certified_head + kv_cache + workspace; }
};

// How often the certified head (kernels/ops.h, CertifiedHeadArgs) was used, and how many rows of
// the vocabulary it computed from the original. A step that a GPU began before the run ended
// counts, too.
struct HeadStats {
  int64_t steps = 0;  // arg-maxes that it found
  int64_t rescored = 0;
  int32_t most_rescored = 0;

  void add(std::span<const int32_t> rescored_rows) {
    for (int32_t n : rescored_rows) {
      ++steps;
      rescored += n;
      if (n > most_rescored) most_rescored = n;
    }
  }
};

// How a GPU is told to run a decode step; zeros where there was none of so many rows yet.
struct StepLaunches {
  size_t launches = 0;     // by the host, per step
  size_t graph_nodes = 0;  // 0 where kernels are launched one by one
};

// What the host had to do for a GPU up to now: all zeros on the CPU.
struct HostWork {
  uint64_t to_device_bytes = 0;   // copied, of inputs of passes
  uint64_t to_host_bytes = 0;     // copied or written by the GPU, of results
  uint64_t synchronisations = 0;  // calls that wait for the GPU
  uint64_t polls = 0;             // calls that ask whether it is still at work
};

// A value stopped being finite. The pass has no result, and what it wrote into the cache is not
// defined; other positions of the cache are as they were.
class NotFiniteError : public Error {
 public:
  explicit NotFiniteError(const std::string& message) : Error(ExitCode::kRuntime, message) {}
};

class Backend {
 public:
  // `model` must outlive the backend.
  Backend(const ModelFile& model, BackendInfo info) : model_(model), info_(std::move(info)) {}
  virtual ~Backend() = default;

  const ModelFile& model() const { return model_; }
  const BackendInfo& info() const { return info_; }

  // Of a paged cache: positions 0 .. of `sequence` lie in these blocks of the pool, in this order,
  // from the next pass on. Replaces what the sequence had; its contents stay in the pool.
  virtual void set_blocks(int sequence, std::span<const int32_t> blocks) = 0;

  // Throws NotFiniteError, which names the layer.
  virtual void forward(const Batch& batch, const Outputs& outputs) = 0;

  // Greedy decode: feeds `id` to `sequence` at `position`, then each chosen id at the place after
  // it. Every chosen id is handed to `on_token`, which returns whether to go on; ends also after
  // `n_max` ids, when the context is full, and after an id of -1 (every id is banned). Afterwards
  // the sequence holds `id` and the ids handed over, the last one left out; what lies behind them
  // in the cache is not defined. As forward() does, throws NotFiniteError, after the ids of the
  // steps before were handed over; lets what on_token throws pass.
  void decode(int sequence, int32_t id, int position, int n_max, std::span<const int32_t> banned,
              const std::function<bool(int32_t id)>& on_token);

  // The same for several sequences, a row of `first` for each: `on_ids` gets the chosen ids of a
  // step, one for each row, -1 where every id is banned (what comes after it in that row means
  // nothing), and returns whether to go on. Every row has places for n_max steps. A device may have
  // begun a step when on_ids ends the run: that one's ids are handed over, too, unless it met a
  // fault, which then counts as not begun.
  virtual void decode_rows(const Batch& first, int n_max, std::span<const int32_t> banned,
                           const std::function<bool(std::span<const int32_t> ids)>& on_ids);

  virtual MemoryPlan memory() const = 0;
  virtual StepLaunches step_launches(size_t rows) const {
    static_cast<void>(rows);
    return {};
  }
  virtual HostWork host_work() const { return {}; }
  virtual HeadStats head_stats() const = 0;

 private:
  const ModelFile& model_;
  const BackendInfo info_;
};

// `model` must outlive the backend.
std::unique_ptr<Backend> make_cpu_backend(const ModelFile& model, const EngineOptions& options);

// Throws Error (kDevice) where the GPU is missing, too old or too small, and says what would fit.
// `progress` reports the copying of the weights and may throw to end it.
std::unique_ptr<Backend> make_cuda_backend(const ModelFile& model, const EngineOptions& options,
                                           const Progress& progress = {});

// Bytes of a block of the paged KV cache: keys and values of kKvBlockPositions in every layer.
uint64_t kv_block_bytes(const ModelConfig& config, KvType type);

// What make_cuda_backend() would allocate on the device. Needs no GPU; all zeros in a build without
// CUDA.
MemoryPlan plan_cuda_memory(const ModelFile& model, const EngineOptions& options);

// Blocks of a paged KV cache for which `free_bytes` of a GPU have room beside weights and
// workspace; 0 where there is none for even one. `options.kv_blocks` plays no part.
int cuda_kv_blocks(const ModelFile& model, const EngineOptions& options, uint64_t free_bytes);

// Why a GPU with so many free bytes cannot run the model, and the longest context, or the largest
// pool of a paged cache, that it could run it with. Empty where there is no such reason.
std::string cuda_memory_problem(const ModelFile& model, const EngineOptions& options,
                                uint64_t free_bytes);

}  // namespace edgellm
