// A model on a GPU: where weights, KV cache and workspace lie in one allocation, and how the
// weights get there.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/progress.h"
#include "engine/backend.h"
#include "kernels/cuda/cuda.h"

namespace edgellm {

// Rows of logits that one launch of the head writes: one for each sequence, but at most 256 and no
// more than 64 MiB; kMaxInlineRows always.
inline size_t logit_rows(const EngineOptions& options, const ModelConfig& config) {
  const size_t most = (size_t{64} << 20) / (sizeof(float) * static_cast<size_t>(config.vocab));
  return std::clamp<size_t>(static_cast<size_t>(options.sequences), cuda::kMaxInlineRows,
                            std::clamp<size_t>(most, cuda::kMaxInlineRows, 256));
}

// Words of DeviceModel::results.
inline size_t result_count(const EngineOptions& options) {
  return 1 + 2 * static_cast<size_t>(options.max_rows);
}

struct DeviceLayer {
  const float* attn_norm;
  TernaryMatrix q, k, v;
  const float* q_norm;  // null where the model has none, as k_norm
  const float* k_norm;
  const float* attn_sub_norm;  // null where the model has none
  TernaryMatrix o;
  const float* ffn_norm;
  TernaryMatrix gate, up;
  const float* ffn_sub_norm;  // null where the model has none
  TernaryMatrix down;
  // Null where the model has no input norms.
  struct InputNorms {
    const float *q, *k, *v, *o, *gate, *up, *down;
  } input_norms;
};

// Hands out 256-aligned parts of one allocation. Without memory it only counts.
class Arena {
 public:
  explicit Arena(std::byte* base) : base_(base) {}

  std::byte* allocate(size_t bytes) {
    std::byte* begin = base_ == nullptr ? nullptr : base_ + used_;
    used_ += (bytes + 255) / 256 * 256;
    return begin;
  }
  template <class T>
  T* allocate(size_t count) {
    return reinterpret_cast<T*>(allocate(count * sizeof(T)));
  }
  size_t used() const { return used_; }

 private:
  std::byte* base_;
  size_t used_ = 0;
};

// What changes from pass to pass, as one block of words. The host writes its copy, the kernels read
// the device's.
struct StepInputs {
  int32_t* ids = nullptr;        // [max_rows]
  int32_t* sequences = nullptr;  // [max_rows]
  int32_t* positions = nullptr;  // [max_rows]
  int32_t* row_list = nullptr;   // [max_rows]
  uint32_t* step = nullptr;      // [1] cuda::MailboxArgs
  uint32_t* n_used = nullptr;    // [1] cuda::MailboxArgs
  int32_t* banned = nullptr;     // [vocab]

  StepInputs() = default;
  StepInputs(int32_t* base, size_t rows)
      : ids(base),
        sequences(base + rows),
        positions(base + 2 * rows),
        row_list(base + 3 * rows),
        step(reinterpret_cast<uint32_t*>(base + 4 * rows)),
        n_used(step + 1),
        banned(base + 4 * rows + 2) {}
  // Words of the block with `n_banned` banned ids.
  static size_t count(size_t rows, size_t n_banned) { return 4 * rows + 2 + n_banned; }
};

struct DeviceModel {
  DenseMatrix embedding, head;  // without data where the model has ternary ones
  TernaryMatrix ternary_embedding, ternary_head;
  CertifiedHead certified_head;  // no rows where there is none
  const float* final_norm = nullptr;
  std::vector<DeviceLayer> layers;

  std::byte* kv = nullptr;  // per layer: keys, then values
  StepInputs inputs;
  int32_t* block_table = nullptr;  // [table_rows, blocks_per_sequence], written by the backend
  int32_t* all_rows = nullptr;     // [max_rows]: 0, 1, 2, ...
  float* rope_cos = nullptr;       // [context, head_dim / 2]
  float* rope_sin = nullptr;
  ChoiceRule* rules = nullptr;  // [sequences + 1], written by the backend as what follows
  uint16_t* marks = nullptr;    // [sequences + 1, vocab]
  LogitBias* biases = nullptr;  // [sequences + 1, kMaxBiases]
  LogprobSums* sums = nullptr;  // [logit_rows()]
  LogprobLogit* top = nullptr;  // [logit_rows(), kMaxTopLogprobs]
  float* x = nullptr;           // [max_rows, dim] residual stream
  float* q = nullptr;           // [max_rows, q_dim]
  float* k = nullptr;           // [max_rows, kv_dim]
  float* v = nullptr;           // [max_rows, kv_dim]
  float* attention = nullptr;   // [max_rows, q_dim]
  float* u = nullptr;           // [max_rows, ffn]
  float* h = nullptr;           // [max_rows, dim] x through a norm, of a model with input norms
  float* normed = nullptr;      // [max_rows, dim], where q is
  float* logits = nullptr;      // [logit_rows(), vocab], where u is
  // [result_count()]: the fault; the id of each output row; the number of rows that the certified
  // head rescored for each output row.
  int32_t* results = nullptr;
  cuda::RescoredTotals* rescored_totals = nullptr;  // [max_rows] of all decode steps
  cuda::Workspace workspace;
  size_t max_rows;
  MemoryPlan plan;

  int32_t* fault() const { return results; }
  int32_t* chosen() const { return results + 1; }
  int32_t* rescored() const { return results + 1 + max_rows; }

  // Lays everything out in `memory`, of plan.total() bytes. Without memory it only makes the plan.
  DeviceModel(const ModelFile& model, const EngineOptions& options, std::byte* memory = nullptr);

  // Copies the weights to the device, repacks the ternary codes there and clears what has to be
  // zero. Then frees the file's pages. Throws Error (kModelFile) where the file holds codes that
  // are no ternary value. This thread calls `progress`, which may throw to end the work.
  void upload(const ModelFile& model, const EngineOptions& options, cudaStream_t stream,
              const Progress& progress);

 private:
  // Rows of the host's memory that go to the device at a pitch, zeros between them.
  struct Piece {
    std::byte* to;
    const std::byte* from;
    size_t rows, row_bytes, pitch;
  };
  struct Codes {
    uint8_t* codes;
    int rows, cols;
  };
  struct Range {
    void* begin;
    size_t bytes;
  };

  void allocate_certified_head();
  void allocate_workspace(const ModelConfig& config, const EngineOptions& options, int context);
  void add_bytes(void* to, const void* from, size_t bytes);
  void add_rows(void* to, const void* from, size_t rows, size_t row_bytes, size_t pitch);
  const float* put(std::span<const float> values);
  DenseMatrix put(const DenseTensor& tensor);
  TernaryMatrix put(const TernaryTensor& tensor);
  void copy_pieces(const EngineOptions& options, const Progress& progress) const;
  void repack_codes(const ModelFile& model, cudaStream_t stream) const;

  Arena arena_;
  bool has_memory_;
  std::vector<Piece> pieces_;
  std::vector<Codes> ternary_;
  std::vector<Range> zeroed_;
  int8_t* head_codes_ = nullptr;  // of certified_head, not const
  CertifiedRow* head_bounds_ = nullptr;
};

}  // namespace edgellm
