// A device as `edgellm bench --ops` sees it: memory, weights, launches and a clock. What is
// launched on which data, what is checked and what is reported is written once for all devices
// (layer_ops.h, op_benchmark.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "apps/bench/ops/op_bytes.h"
#include "kernels/ops.h"

namespace edgellm::bench {

// A count of ours as a size of the standard library.
inline size_t to_size(int n) { return static_cast<size_t>(n); }

// The weights of a layer in the device's own order. Gains are null where the model has none.
struct LayerOperands {
  TernaryMatrix q, k, v, o, gate, up, down;
  const float* attn_norm = nullptr;
  const float* attn_sub_norm = nullptr;
  const float* ffn_norm = nullptr;
  const float* ffn_sub_norm = nullptr;
};

struct StackOperands {
  std::vector<LayerOperands> layers;
  const float* rope_cos = nullptr;  // [PassLimits::context, head_dim / 2]
  const float* rope_sin = nullptr;
};

struct HeadOperands {
  const float* gain = nullptr;
  DenseMatrix w;
  CertifiedHead copy;         // codes are null where rows are too wide for the certified head
  size_t copy_row_bytes = 0;  // of a row's codes
};

// The largest pass of a benchmark.
struct PassLimits {
  int rows = 1;
  int sequences = 1;
  int context = 0;  // positions of a sequence, a multiple of kAttentionChunk
};

struct DeviceFacts {
  RowPadding padding;
  int head_steps = 0;             // of the full head (full_head_bytes())
  int head_executions = 1;        // in one timing
  const char* kernels_test = "";  // says which of two differing results is wrong
};

class OpDevice {
 public:
  virtual ~OpDevice() = default;
  virtual DeviceFacts facts() const = 0;

  // Memory for the device to read and write. It lives as long as this object. Copies end before
  // they return.
  virtual std::byte* allocate(size_t bytes) = 0;
  virtual float* random_floats(size_t n) = 0;   // from -1 to 1
  virtual int16_t* random_codes(size_t n) = 0;  // of keys or values, type i16
  virtual void upload(void* to, const void* from, size_t bytes) = 0;
  virtual void download(void* to, const void* from, size_t bytes) = 0;

  // Each makes the weights, and allocates what the ops below need between their steps. To be called
  // once, before the ops.
  virtual StackOperands prepare_layers(const PassLimits& limits) = 0;
  virtual HeadOperands prepare_head(int max_rows) = 0;

  virtual void qkv(const QkvArgs& args) = 0;
  virtual void attention(const AttentionArgs& args) = 0;
  virtual void attn_out(const ProjectArgs& args) = 0;
  virtual void ffn_up(const FfnUpArgs& args) = 0;
  virtual void ffn_down(const ProjectArgs& args) = 0;
  virtual void head(const HeadArgs& args) = 0;
  virtual void certified_head(const CertifiedHeadArgs& args) = 0;

  // Chains of plain steps of the same work, to the same bits.
  virtual void unfused_qkv(const QkvArgs& args) = 0;
  virtual void unfused_project(const ProjectArgs& args) = 0;
  virtual void unfused_ffn_up(const FfnUpArgs& args) = 0;

  // The steps (op_bytes.h) of `op`, which `run` executes.
  virtual int steps(LayerOp op, const std::function<void()>& run) = 0;

  // Times in microseconds of OpOptions::repeats runs of `work`, after a warm-up.
  virtual std::vector<double> run_times_us(const std::function<void()>& work) = 0;
};

}  // namespace edgellm::bench
