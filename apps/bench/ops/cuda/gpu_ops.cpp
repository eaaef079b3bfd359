// time_gpu_ops: each op alone in a CUDA Graph of one launch for each layer's weights, and where
// there is one against the unfused chain of the same work (apps/bench/ops/unfused/cuda_unfused.h),
// after their results were compared bit by bit. docs/gpu.md says how to read the times.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/bench/cuda/graph_time.h"
#include "apps/bench/ops/cuda/device_data.h"
#include "apps/bench/ops/op_timing.h"
#include "apps/bench/ops/unfused/cuda_unfused.h"
#include "apps/common/statistics.h"
#include "base/error.h"
#include "engine/cuda/resources.h"
#include "engine/views.h"
#include "kernels/cuda/cuda.h"

namespace edgellm::bench {
namespace {

using cuda::cuda_check;

constexpr int kHeadLaunches = 4;      // in a graph, all of the same head
constexpr int kHeadElementBytes = 2;  // bfloat16

size_t u(int n) { return static_cast<size_t>(n); }

// On the stream that the ops run on: it does not wait for copies that others make.
void send(const Stream& stream, void* to, const void* from, size_t bytes) {
  cuda_check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream), "sending operands");
  stream.wait();
}
void receive(const Stream& stream, void* to, const void* from, size_t bytes) {
  cuda_check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, stream), "reading results");
  stream.wait();
}

// ---- Device memory ------------------------------------------------------------------------------

class Memory {
 public:
  explicit Memory(const Stream& stream) : stream_(stream) {}

  template <class T>
  T* take(size_t n) {
    blocks_.push_back(std::make_unique<DeviceMemory>(std::max<size_t>(n * sizeof(T), 16)));
    return reinterpret_cast<T*>(blocks_.back()->data());
  }
  template <class T>
  T* zeros(size_t n) {
    T* const data = take<T>(n);
    cuda_check(cudaMemsetAsync(data, 0, n * sizeof(T), stream_), "clearing device memory");
    return data;
  }
  template <class T>
  T* copy_of(const std::vector<T>& values) {
    T* const data = take<T>(values.size());
    send(stream_, data, values.data(), values.size() * sizeof(T));
    return data;
  }
  float* floats(size_t n, float scale) {
    float* const data = take<float>(n);
    fill_f32(data, n, scale, ++seed_, stream_);
    return data;
  }
  uint16_t* halves(size_t n, float scale) {
    uint16_t* const data = take<uint16_t>(n);
    fill_f16(data, n, scale, ++seed_, stream_);
    return data;
  }
  uint16_t* bfloats(size_t n, float scale) {
    uint16_t* const data = take<uint16_t>(n);
    fill_bf16(data, n, scale, ++seed_, stream_);
    return data;
  }
  TernaryMatrix ternary(int rows, int cols) {
    const size_t words = u(rows) * cuda::ternary_pitch(cols) / sizeof(uint32_t);
    uint32_t* const data = take<uint32_t>(words);
    fill_ternary(data, words, ++seed_, stream_);
    return {reinterpret_cast<const uint8_t*>(data), copy_of(std::vector<float>{0.02f}), 1, rows,
            cols};
  }

 private:
  const Stream& stream_;
  uint64_t seed_ = 0;
  std::vector<std::unique_ptr<DeviceMemory>> blocks_;
};

// ---- A model's operands -------------------------------------------------------------------------

struct Layer {
  TernaryMatrix q, k, v, o, gate, up, down;
  const float *attn_norm, *attn_sub_norm, *ffn_norm, *ffn_sub_norm;
  uint16_t *keys, *values;
};

// The layers of a shape with random weights, and rows for passes of up to `max_rows`.
class Operands {
 public:
  Operands(const ModelConfig& config, const OpOptions& options, const Stream& stream)
      : config_(config), stream_(stream), memory_(stream) {
    int positions = 0;
    int sequences = 1;
    for (const int rows : options.rows) {
      max_rows_ = std::max(max_rows_, rows);
      for (const int depth : options.depths) {
        const PassShape pass{rows, depth};
        positions = std::max(positions, pass.positions());
        sequences = std::max(sequences, pass.sequences());
      }
    }
    context_ = (positions + kAttentionChunk - 1) / kAttentionChunk * kAttentionChunk;
    make_layers(sequences);
    make_rows(sequences);
    stream_.wait();
  }

  // Puts the rows of the next launches to their places.
  void set_pass(const PassShape& pass) {
    pass_ = pass;
    std::vector<int32_t> sequence(u(pass.rows));
    std::vector<int32_t> position(u(pass.rows));
    for (int r = 0; r < pass.rows; ++r) {
      sequence[u(r)] = pass.is_decode() ? r : 0;
      position[u(r)] = pass.is_decode() ? pass.depth : pass.depth + r;
    }
    const size_t bytes = u(pass.rows) * sizeof(int32_t);
    send(stream_, sequences_, sequence.data(), bytes);
    send(stream_, positions_, position.data(), bytes);
  }

  int layers() const { return static_cast<int>(layers_.size()); }

  void fused(LayerOp op, int layer) const {
    switch (op) {
      case LayerOp::kQkv:
        return cuda::qkv(qkv_args(layer), workspace_, stream_);
      case LayerOp::kAttention:
        return cuda::attention({q_, cache(layer), places(), attended_, pass_.rows, config_.heads,
                                pass_.is_decode() ? pass_.rows : 0},
                               workspace_, stream_);
      case LayerOp::kAttnOut:
        return cuda::attn_out(attn_out_args(layer), workspace_, stream_);
      case LayerOp::kFfnUp:
        return cuda::ffn_up(ffn_up_args(layer), workspace_, stream_);
      case LayerOp::kFfnDown:
        return cuda::ffn_down(ffn_down_args(layer), workspace_, stream_);
    }
  }

  // Attention is the fused op here, too.
  void unfused(LayerOp op, int layer) const {
    switch (op) {
      case LayerOp::kQkv:
        return unfused_qkv(qkv_args(layer), between_, stream_);
      case LayerOp::kAttention:
        return fused(op, layer);
      case LayerOp::kAttnOut:
        return unfused_project(attn_out_args(layer), between_, stream_);
      case LayerOp::kFfnUp:
        return unfused_ffn_up(ffn_up_args(layer), between_, stream_);
      case LayerOp::kFfnDown:
        return unfused_project(ffn_down_args(layer), between_, stream_);
    }
  }

  // Throws Error (kVerification) where the unfused chain does not give the bits of the fused op.
  void compare(LayerOp op, int layer) const {
    const std::vector<Output> outputs = outputs_of(op, layer);
    const std::vector<std::byte> before = read(outputs);
    fused(op, layer);
    const std::vector<std::byte> by_fused = read(outputs);
    write(outputs, before);
    unfused(op, layer);
    const std::vector<std::byte> by_unfused = read(outputs);
    write(outputs, before);
    int32_t fault = 0;
    receive(stream_, &fault, fault_, sizeof fault);
    require(fault == 0, "the random operands lead to values that are not finite");
    require(before != by_fused, "a fused op has written nothing");
    if (by_fused == by_unfused) return;
    const auto differs = std::mismatch(by_fused.begin(), by_fused.end(), by_unfused.begin());
    throw Error(ExitCode::kVerification,
                std::string(to_string(op)) + " of " + std::to_string(pass_.rows) +
                    " rows: the fused op and the unfused chain differ from byte " +
                    std::to_string(differs.first - by_fused.begin()) + " of " +
                    std::to_string(by_fused.size()) +
                    " on; run tests/kernels/kernels_gpu_test to see which of them is wrong");
  }

 private:
  struct Output {
    void* data;
    size_t bytes;
  };

  void make_layers(int sequences) {
    const int q_dim = config_.q_dim();
    const int kv_dim = config_.kv_dim();
    const size_t kv_values = u(sequences) * u(context_) * u(kv_dim);
    for (int l = 0; l < config_.layers; ++l) {
      Layer layer{};
      layer.q = memory_.ternary(q_dim, config_.dim);
      layer.k = memory_.ternary(kv_dim, config_.dim);
      layer.v = memory_.ternary(kv_dim, config_.dim);
      layer.o = memory_.ternary(config_.dim, q_dim);
      layer.gate = memory_.ternary(config_.ffn, config_.dim);
      layer.up = memory_.ternary(config_.ffn, config_.dim);
      layer.down = memory_.ternary(config_.dim, config_.ffn);
      layer.attn_norm = memory_.floats(u(config_.dim), 1.0f);
      layer.ffn_norm = memory_.floats(u(config_.dim), 1.0f);
      if (config_.attn_sub_norm) layer.attn_sub_norm = memory_.floats(u(q_dim), 1.0f);
      if (config_.ffn_sub_norm) layer.ffn_sub_norm = memory_.floats(u(config_.ffn), 1.0f);
      layer.keys = memory_.halves(kv_values, 1.0f);
      layer.values = memory_.halves(kv_values, 1.0f);
      layers_.push_back(layer);
    }
  }

  void make_rows(int sequences) {
    const size_t rows = u(max_rows_);
    const size_t q_dim = u(config_.q_dim());
    const size_t heads = u(config_.heads);
    const int widest = std::max({config_.dim, config_.q_dim(), config_.ffn});
    const int chunks = context_ / kAttentionChunk;
    x_ = memory_.floats(rows * u(config_.dim), 1.0f);
    q_ = memory_.floats(rows * q_dim, 1.0f);
    attended_ = memory_.floats(rows * q_dim, 1.0f);
    u_ = memory_.floats(rows * u(config_.ffn), 1.0f);
    const size_t angles = u(context_) * u(config_.head_dim / 2);
    cosines_ = memory_.floats(angles, 1.0f);
    sines_ = memory_.floats(angles, 1.0f);
    sequences_ = memory_.zeros<int32_t>(rows);
    positions_ = memory_.zeros<int32_t>(rows);
    fault_ = memory_.zeros<int32_t>(1);
    std::vector<int32_t> blocks(u(sequences));
    for (int s = 0; s < sequences; ++s) blocks[u(s)] = s;
    block_table_ = memory_.copy_of(blocks);

    const size_t codes = rows * cuda::quantised_row_bytes(widest);
    workspace_.codes = memory_.take<int8_t>(codes);
    workspace_.row_s = memory_.take<float>(rows);
    workspace_.row_r = memory_.take<float>(rows);
    workspace_.row_sum = memory_.take<int32_t>(rows);
    workspace_.attention = memory_.take<float>(u(cuda::kMaxInlineRows) * heads * u(chunks) *
                                               u(cuda::attention_state(config_.head_dim)));
    workspace_.attention_done = memory_.zeros<int32_t>(u(cuda::kMaxInlineRows) * heads);
    workspace_.max_chunks = chunks;

    between_.normed = memory_.take<float>(rows * u(widest));
    between_.rms = memory_.take<float>(rows);
    between_.codes = memory_.take<int8_t>(codes);
    between_.s = memory_.take<float>(rows);
    between_.sum = memory_.take<int32_t>(rows);
    between_.product = memory_.take<float>(rows * u(widest));
    between_.other = memory_.take<float>(rows * u(widest));
  }

  RowPlaces places() const { return {sequences_, positions_}; }
  KvCache cache(int l) const {
    const Layer& layer = layers_[u(l)];
    return {layer.keys, layer.values,     block_table_,     1,
            context_,   config_.kv_heads, config_.head_dim, KvType::kF16};
  }
  QkvArgs qkv_args(int l) const {
    const Layer& w = layers_[u(l)];
    return {x_,       w.attn_norm, config_.norm_eps, w.q,           w.k,
            w.v,      cosines_,    sines_,           places(),      q_,
            cache(l), pass_.rows,  config_.dim,      config_.heads, l,
            fault_};
  }
  ProjectArgs attn_out_args(int l) const {
    const Layer& w = layers_[u(l)];
    return {attended_, w.attn_sub_norm, config_.norm_eps, w.o, x_, pass_.rows, l, fault_};
  }
  FfnUpArgs ffn_up_args(int l) const {
    const Layer& w = layers_[u(l)];
    return {x_, w.ffn_norm, config_.norm_eps, w.gate, w.up, view(config_.act), u_, pass_.rows,
            l,  fault_};
  }
  ProjectArgs ffn_down_args(int l) const {
    const Layer& w = layers_[u(l)];
    return {u_, w.ffn_sub_norm, config_.norm_eps, w.down, x_, pass_.rows, l, fault_};
  }

  std::vector<Output> outputs_of(LayerOp op, int l) const {
    const size_t rows = u(pass_.rows);
    switch (op) {
      case LayerOp::kQkv: {
        const size_t kv_bytes =
            u(pass_.sequences()) * u(context_) * u(config_.kv_dim()) * sizeof(uint16_t);
        return {{q_, rows * u(config_.q_dim()) * sizeof(float)},
                {layers_[u(l)].keys, kv_bytes},
                {layers_[u(l)].values, kv_bytes}};
      }
      case LayerOp::kAttention:
        return {{attended_, rows * u(config_.q_dim()) * sizeof(float)}};
      case LayerOp::kFfnUp:
        return {{u_, rows * u(config_.ffn) * sizeof(float)}};
      case LayerOp::kAttnOut:
      case LayerOp::kFfnDown:
        break;
    }
    return {{x_, rows * u(config_.dim) * sizeof(float)}};
  }
  std::vector<std::byte> read(const std::vector<Output>& outputs) const {
    std::vector<std::byte> all;
    for (const Output& output : outputs) {
      const size_t begin = all.size();
      all.resize(begin + output.bytes);
      receive(stream_, &all[begin], output.data, output.bytes);
    }
    return all;
  }
  void write(const std::vector<Output>& outputs, const std::vector<std::byte>& all) const {
    const std::byte* from = all.data();
    for (const Output& output : outputs) {
      send(stream_, output.data, from, output.bytes);
      from += output.bytes;
    }
  }

  const ModelConfig& config_;
  const Stream& stream_;
  Memory memory_;
  int max_rows_ = 0;
  int context_ = 0;
  PassShape pass_;
  std::vector<Layer> layers_;
  float *x_ = nullptr, *q_ = nullptr, *attended_ = nullptr, *u_ = nullptr;
  float *cosines_ = nullptr, *sines_ = nullptr;
  int32_t *sequences_ = nullptr, *positions_ = nullptr, *block_table_ = nullptr, *fault_ = nullptr;
  cuda::Workspace workspace_;
  UnfusedRows between_;
};

// ---- The benchmark ------------------------------------------------------------------------------

class GpuOps {
 public:
  GpuOps(const ModelConfig& config, const OpOptions& options, uint64_t cache_bytes,
         const OpSink& sink)
      : config_(config), options_(options), cache_bytes_(cache_bytes), sink_(sink) {}

  void run_layers() const {
    Operands operands(config_, options_, stream_);
    for (const int rows : options_.rows) {
      for (size_t d = 0; d < options_.depths.size(); ++d) {
        const PassShape pass{rows, options_.depths[d]};
        operands.set_pass(pass);
        for (const LayerOp op : kLayerOps) {
          // The depth changes nothing for the products but the place of new keys and values.
          if (op != LayerOp::kAttention && d > 0) continue;
          if (op != LayerOp::kAttention) {
            operands.compare(op, 0);
            operands.compare(op, operands.layers() - 1);
          }
          sink_(time_op(operands, op, pass));
        }
        sink_(time_layer(operands, pass));
      }
    }
  }

  // The engine computes logits of at most kMaxDecodeRows rows at a time.
  void run_head() const;

 private:
  OpResult time_op(const Operands& operands, LayerOp op, const PassShape& pass) const {
    const int layers = operands.layers();
    OpResult result{to_string(op), pass, layers, {}, {}, false};
    result.fused.bytes = fused_bytes(config_, op, pass, Engine::kCuda);
    result.fused.time_us = time_us(layers, [&](int l) { operands.fused(op, l); });
    if (op != LayerOp::kAttention) {
      result.unfused.emplace();
      result.unfused->bytes = unfused_bytes(config_, op, pass, Engine::kCuda);
      result.unfused->time_us = time_us(layers, [&](int l) { operands.unfused(op, l); });
    }
    result.stays_in_cache = stays_in_cache(result.fused.bytes, layers, cache_bytes_);
    return result;
  }

  // All ops of a layer, one after the other, as in a pass.
  OpResult time_layer(const Operands& operands, const PassShape& pass) const {
    const int layers = operands.layers();
    OpResult result{"layer", pass, layers, {}, OpTime{}, false};
    for (const LayerOp op : kLayerOps) {
      result.fused.bytes += fused_bytes(config_, op, pass, Engine::kCuda);
      result.unfused->bytes += unfused_bytes(config_, op, pass, Engine::kCuda);
    }
    result.fused.time_us = time_us(layers, [&](int l) {
      for (const LayerOp op : kLayerOps) operands.fused(op, l);
    });
    result.unfused->time_us = time_us(layers, [&](int l) {
      for (const LayerOp op : kLayerOps) operands.unfused(op, l);
    });
    result.stays_in_cache = stays_in_cache(result.fused.bytes, layers, cache_bytes_);
    return result;
  }

  double time_us(int layers, const std::function<void(int layer)>& op) const {
    const std::vector<double> times = graph_times_us(
        stream_, options_.repeats,
        [&] {
          for (int l = 0; l < layers; ++l) op(l);
        },
        options_.poll);
    return summarise(times).median / layers;
  }

  std::vector<int32_t> read(const int32_t* from, int n) const {
    std::vector<int32_t> values(u(n));
    receive(stream_, values.data(), from, values.size() * sizeof(int32_t));
    return values;
  }

  const ModelConfig& config_;
  const OpOptions& options_;
  const uint64_t cache_bytes_;
  const OpSink& sink_;
  const Stream stream_;
};

void GpuOps::run_head() const {
  const ModelConfig& config = config_;
  Memory memory(stream_);
  constexpr size_t kRows = kMaxDecodeRows;
  const size_t vocab = u(config.vocab);
  const size_t dim = u(config.dim);
  HeadArgs args;
  args.x = memory.floats(kRows * dim, 1.0f);
  std::vector<int32_t> row_list(kRows);
  for (size_t r = 0; r < kRows; ++r) row_list[r] = static_cast<int32_t>(r);
  args.row_list = memory.copy_of(row_list);
  args.gain = memory.floats(dim, 1.0f);
  args.eps = config.norm_eps;
  args.w = {memory.bfloats(vocab * dim, 0.05f), DenseType::kBF16, config.vocab, config.dim};
  args.normed = memory.take<float>(kRows * dim);
  args.logits = memory.take<float>(kRows * vocab);
  args.argmax = memory.zeros<int32_t>(kRows);
  args.layers = config.layers;
  args.fault = memory.zeros<int32_t>(1);
  cuda::Workspace workspace;
  workspace.best = memory.zeros<unsigned long long>(kRows);
  workspace.head_done = memory.zeros<int32_t>(1);
  workspace.steps = memory.take<int16_t>(kRows * CertifiedHead::pitch_of(config.dim));
  workspace.hidden = memory.take<HiddenBound>(kRows);
  workspace.lower = memory.zeros<uint32_t>(kRows);
  workspace.rescored = memory.zeros<int32_t>(kRows);
  const bool certifies = config.dim <= kMaxCertifiedCols;
  int8_t* const codes =
      certifies ? memory.take<int8_t>(vocab * CertifiedHead::pitch_of(config.dim)) : nullptr;
  CertifiedRow* const bounds = certifies ? memory.take<CertifiedRow>(vocab) : nullptr;
  if (certifies) cuda::build_certified_head(args.w, codes, bounds, stream_);
  const CertifiedHead copy{codes, bounds, config.vocab, config.dim};
  int32_t* const rescored = memory.zeros<int32_t>(kRows);

  for (const int rows : options_.rows) {
    if (rows > kMaxDecodeRows) continue;
    args.rows = rows;
    const auto time_head = [&](const char* name, const std::function<void()>& head) {
      OpResult result{name, {rows, 0}, kHeadLaunches, {}, {}, false};
      result.fused.time_us = time_us(kHeadLaunches, [&](int) { head(); });
      return result;
    };
    OpResult full = time_head("head", [&] { cuda::head(args, workspace, stream_); });
    full.fused.bytes = full_head_bytes(config, rows, kHeadElementBytes);
    full.stays_in_cache = stays_in_cache(full.fused.bytes, 1, cache_bytes_);
    sink_(full);
    if (!certifies) continue;
    const std::vector<int32_t> by_full = read(args.argmax, rows);
    OpResult certified = time_head("head certified", [&] {
      cuda::certified_head({args, copy, rescored}, workspace, stream_);
    });
    if (read(args.argmax, rows) != by_full) {
      throw Error(ExitCode::kVerification,
                  "the certified head chooses other ids than the full head; run "
                  "tests/kernels/kernels_gpu_test");
    }
    uint64_t n_rescored = 0;
    for (const int32_t n : read(rescored, rows)) n_rescored += static_cast<uint64_t>(n);
    certified.fused.bytes = certified_head_bytes(config, rows, kHeadElementBytes, n_rescored);
    certified.stays_in_cache = stays_in_cache(certified.fused.bytes, 1, cache_bytes_);
    sink_(certified);
  }
}

}  // namespace

void time_gpu_ops(const ModelConfig& config, const OpOptions& options, int gpu,
                  uint64_t cache_bytes, const OpSink& sink) {
  static_assert(kMaxDecodeRows == cuda::kMaxInlineRows);
  if (config.dim % 4 != 0 || config.q_dim() % 4 != 0 || config.ffn % 4 != 0) {
    throw Error(ExitCode::kUnsupported,
                "on a GPU the unfused chain needs hidden, query and ffn sizes that are multiples "
                "of 4, and the model has others; use --device cpu");
  }
  cuda_check(cudaSetDevice(gpu), "selecting the GPU");
  cuda::require_code();
  const GpuOps ops(config, options, cache_bytes, sink);
  ops.run_layers();
  ops.run_head();
}

}  // namespace edgellm::bench
