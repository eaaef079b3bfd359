// The narrow calls between the engine's host logic and a device: forward() runs one pass, decode()
// and decode_rows() run many of single ids.
//
// A pass is a batch of rows. Decode is one row per live sequence, prefill many rows of one. Both
// devices run the same five ops a layer (kernels/ops.h). A row gets the same bits on both, and
// beside any other rows. The engine speaks token ids only; text belongs to the tokenizer.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/progress.h"
#include "engine/sampling.h"
#include "kernels/ops.h"
#include "model/model_file.h"

namespace edgellm {

// Positions of a block of the paged KV cache. Attention reads whole tiles, so a tile is the
// smallest block: it lets prompts share the most, and a sequence leave the least unused.
inline constexpr int kKvBlockPositions = kAttentionChunk;

// Which CPU engines copy the weights to the NUMA nodes of the threads that read them, on a machine
// of several nodes. The others read the mapped file, wherever its pages are.
enum class LocalWeightsFor : uint8_t {
  kNobody,
  kSpreadThreads,  // those whose threads are on several nodes
  kEveryEngine,    // also those that are bound to one node: their neighbours are on others
};

struct EngineOptions {
  int context = 0;     // positions per sequence; 0: the model's maximum
  int sequences = 1;   // sequences that can be live at the same time
  int max_rows = 256;  // rows of one pass: the longest prefill chunk
  KvType kv_type = KvType::kI16;
  // > 0: the KV cache is a pool of `kv_blocks` blocks of kKvBlockPositions, and set_blocks() says
  // which of them a sequence holds. 0: each sequence has the memory of a whole context to itself.
  int kv_blocks = 0;
  int threads = 0;          // CPU worker threads; 0: one per core this process may use
  int gpu = 0;              // index of the CUDA device
  bool use_graph = true;    // GPU: replay decode steps as one captured graph
  bool full_head = false;   // every step computes all logits: no certified head
  bool low_memory = false;  // CPU: free weight pages after use (the golden run of a conversion)
  LocalWeightsFor local_weights = LocalWeightsFor::kSpreadThreads;
  std::string sysfs = "/sys";  // where the system describes its NUMA nodes
};

// What a backend is. Nothing here changes after construction.
struct BackendInfo {
  std::string device;  // "cpu (AMD EPYC, avx512, 2 threads)" or "cuda:0 (NVIDIA H200)"
  bool is_gpu = false;
  int context = 0;    // positions that a sequence can hold
  int sequences = 0;  // that can be live at the same time
  int kv_blocks = 0;  // of the pool, kKvBlockPositions each; 0 where sequences share no pool
  int max_rows = 0;   // of one pass
};

// Rows of one pass; the three arrays have one entry per row.
struct Batch {
  std::span<const int32_t> ids;        // token of each row
  std::span<const int32_t> sequences;  // slot of the sequence, 0 .. options.sequences - 1
  // Position of each row, ascending within a sequence. Earlier passes or earlier rows have written
  // all positions before it. No pass writes a block that another sequence of the pass reads.
  std::span<const int32_t> positions;
};

// How the ids of a sequence are chosen.
struct Choice {
  SamplingOptions sampling;
  std::span<const int32_t> banned;  // ids that are never chosen
  std::span<const int32_t> prompt;  // ids that count as the prompt's for the penalties
};

// What a pass is asked for besides filling the KV cache.
struct Outputs {
  // Rows of the batch whose result is wanted; may be empty. Either every row gives both an id and
  // logits, or the first rows give an id and the others logits.
  std::span<const int32_t> rows;
  // Of the first ids.size() of `rows`: chosen as set_choice() says, for the position behind the
  // row's, and counted by the penalties; -1 where every id is banned. A sequence that does not take
  // the plain arg-max gives one id at most. An id without logits may come from the certified
  // head.
  std::span<int32_t> ids;
  std::span<float> logits;          // [n, vocab] of the last n of `rows`
  std::span<float> hidden;          // [layers + 1, batch rows, dim] or empty: embedding, residual
                                    // after layers 1 .. layers - 1, final norm's output
  std::span<float> normed;          // [batch rows, dim] or empty: the final norm's output alone
  std::span<LogprobSums> logprobs;  // [ids.size()] or empty
  std::span<LogprobLogit> top;      // [ids.size(), n] beside `logprobs`, the n largest logits
  // Work of the host for the time in which it would wait for the pass, called once at most. A
  // device that runs passes on the host's threads does not call it. It throws nothing, and leaves
  // the pass's arrays as they are. May be empty.
  std::function<void()> meanwhile;
};

// Bytes that a backend has allocated, for `info` and `--verbose`.
struct MemoryPlan {
  uint64_t weights = 0;
  uint64_t certified_head = 0;  // its copy; on the CPU 0 until it is built
  uint64_t kv_cache = 0;
  uint64_t workspace = 0;

  uint64_t total() const { return weights + certified_head + kv_cache + workspace; }
};

// What the certified head (kernels/ops.h, CertifiedHeadArgs and CertifiedChooseArgs) did. The step
// that a GPU had begun when a run ended counts as well.
struct HeadStats {
  int64_t steps = 0;          // ids that it chose
  int64_t rescored = 0;       // rows of the vocabulary that it computed from the original head
  int32_t most_rescored = 0;  // of one step

  void add(std::span<const int32_t> rescored_rows) {
    for (int32_t n : rescored_rows) {
      ++steps;
      rescored += n;
      if (n > most_rescored) most_rescored = n;
    }
  }
};

// How the host launches a decode step on a GPU. Zeros where no such step has run.
struct StepLaunches {
  size_t launches = 0;     // per step
  size_t graph_nodes = 0;  // 0 where kernels are launched one by one
};

// What the host has done for a GPU so far. All zeros on the CPU.
struct HostWork {
  uint64_t to_device_bytes = 0;   // inputs of passes, copied
  uint64_t to_host_bytes = 0;     // results, copied or written by the GPU
  uint64_t synchronisations = 0;  // calls that wait for the GPU
  uint64_t polls = 0;             // calls that ask the driver whether the GPU is still at work
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

  // From the next pass on, positions 0 .. of `sequence` lie in these blocks of the pool, in this
  // order. They replace the blocks that the sequence had, whose contents stay as they are. Only for
  // a paged cache.
  virtual void set_blocks(int sequence, std::span<const int32_t> blocks) = 0;

  // Throws NotFiniteError, which names the layer.
  virtual void forward(const Batch& batch, const Outputs& outputs) = 0;

  // From the next pass on, the ids of `sequence` are chosen so, and counting begins anew. Before
  // the first call it is greedy.
  virtual void set_choice(int sequence, const Choice& choice) = 0;

  // Decode: feeds `id` to `sequence` at `position`, then each chosen id at the position
  // after it. `on_token` gets every chosen id and returns whether to continue. The run also ends
  // after `n_max` ids, when the context is full, and after an id of -1 (every id is banned).
  //
  // Afterwards the cache holds `id` and all ids that on_token got but the last; what lies behind
  // them is not defined, nor is what the penalties have counted: set_choice() comes before the next
  // pass. Throws NotFiniteError as forward() does, once on_token has got the ids of the steps
  // before. What on_token throws passes through.
  void decode(int sequence, int32_t id, int position, int n_max,
              const std::function<bool(int32_t id)>& on_token);

  // The same for several sequences, with a row of `first` for each. Every sequence has blocks for
  // n_max steps. `on_ids` gets the chosen ids of a step, one for each row, and returns whether to
  // continue. An id of -1 says that every id is banned; later ids of that row mean nothing.
  //
  // A device may have begun another step when on_ids ends the run. on_ids then gets the ids of that
  // step as well, unless the step met a fault: such a step counts as not begun.
  virtual void decode_rows(const Batch& first, int n_max,
                           const std::function<bool(std::span<const int32_t> ids)>& on_ids);

  virtual MemoryPlan memory() const = 0;
  // Of the decode step that serves `rows` rows.
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

// Bytes of a block of the paged KV cache: keys and values of kKvBlockPositions, with
// their units, in every layer.
uint64_t kv_block_bytes(const ModelConfig& config, KvType type);

// What make_cuda_backend() would allocate on the device. Needs no GPU; all zeros in a build without
// CUDA.
MemoryPlan plan_cuda_memory(const ModelFile& model, const EngineOptions& options);

// The largest pool, in blocks, that fits into `free_bytes` of a GPU beside weights and workspace; 0
// where not even one block fits. `options.kv_blocks` plays no part.
int cuda_kv_blocks(const ModelFile& model, const EngineOptions& options, uint64_t free_bytes);

// Rows of a pass for a GPU with `free_bytes`: options.max_rows, halved until all fits, but no less
// than kLeastGpuRows and a row for each sequence, unless options.max_rows is less itself.
inline constexpr int kLeastGpuRows = 256;
int cuda_fitting_rows(const ModelFile& model, const EngineOptions& options, uint64_t free_bytes);

// Why the model does not fit into `free_bytes` of a GPU, and the longest context, or the largest
// pool of a paged cache, with which it would. Empty where it fits.
std::string cuda_memory_problem(const ModelFile& model, const EngineOptions& options,
                                uint64_t free_bytes);

}  // namespace edgellm
