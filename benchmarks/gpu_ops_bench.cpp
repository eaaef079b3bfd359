// Times every fused op of a layer, and the head, on the GPU: alone in a CUDA Graph of one launch
// for each layer's weights, and where there is one against the unfused chain of the same work
// (benchmarks/unfused.h), after their results were compared bit by bit. docs/gpu.md says how to
// read the table.
#include <cuda_runtime.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <functional>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "bench/cuda/graph_time.h"
#include "bench/read_bandwidth.h"
#include "bench/statistics.h"
#include "benchmarks/device_data.h"
#include "benchmarks/op_bytes.h"
#include "benchmarks/unfused.h"
#include "engine/cuda/resources.h"
#include "engine/views.h"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/gpu_list.h"
#include "model/convert.h"

namespace edgellm::bench {
namespace {

using cuda::cuda_check;

constexpr int kHeadLaunches = 4;  // in a graph, all of the same head

struct Options {
  std::vector<std::string> shapes = {"smollm-135m", "bitnet-2b-4t", "falcon3-3b", "llama3-8b"};
  std::vector<int> rows = {1, 8, 512};
  std::vector<int> depths = {128, 2048};
  int layers = 0;  // 0: the shape's own
  int repeats = 30;
  bool json = false;
  std::string csv;
};

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

// ---- Time ---------------------------------------------------------------------------------------

// Median time of what `work` launches, as one graph.
double graph_time_us(const Stream& stream, int repeats, const std::function<void()>& work) {
  return summarise(graph_times_us(stream, repeats, work, [] {})).median;
}

struct Device {
  std::string name;
  uint64_t l2_bytes = 0;
  double read_gb_s = 0;
};

Device measure_device(const GpuInfo& gpu) {
  return {gpu.name, gpu.l2_bytes, gpu_read_bandwidth(gpu.index, [] {}).median_gb_s};
}

// ---- A model's operands -------------------------------------------------------------------------

struct Layer {
  TernaryMatrix q, k, v, o, gate, up, down;
  const float *attn_norm, *attn_sub_norm, *ffn_norm, *ffn_sub_norm;
  uint16_t *keys, *values;
};

// The layers of a shape with random weights, and rows for passes of up to `max_rows`.
class Operands {
 public:
  Operands(const ModelConfig& config, const Options& options, const Stream& stream)
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
        return cuda::attention({q_, cache(layer), places(), attended_, pass_.rows, config_.heads},
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

// ---- Results ------------------------------------------------------------------------------------

struct Timed {
  double time_us = 0;
  OpBytes bytes;

  double gb_s() const { return static_cast<double>(bytes.total()) / time_us / 1000.0; }
};

struct Result {
  std::string shape;
  std::string op;
  PassShape pass;
  int launches = 0;  // of the op, in a graph
  Timed fused;
  std::optional<Timed> unfused;
  bool stays_in_l2 = false;  // all that the graph's launches read fits into the L2 cache

  double time_ratio() const { return unfused->time_us / fused.time_us; }
  double bytes_ratio() const {
    return static_cast<double>(unfused->bytes.total()) / static_cast<double>(fused.bytes.total());
  }
};

bool stays_in_l2(const Device& device, const OpBytes& bytes, int copies) {
  return (bytes.weights + bytes.kv) * static_cast<uint64_t>(copies) < device.l2_bytes;
}

void print_header(const Options& options, const ModelConfig& config, const std::string& shape,
                  const Device& device) {
  if (options.json) return;
  std::printf(
      "\n%s: hidden %d, ffn %d, %d query and %d key heads of %d, %d layers; %s, reads %.0f GB/s\n",
      shape.c_str(), config.dim, config.ffn, config.heads, config.kv_heads, config.head_dim,
      config.layers, device.name.c_str(), device.read_gb_s);
  std::printf("%-15s %5s %6s %9s %9s %7s %6s %3s | %9s %6s %6s | %11s %11s\n", "op", "rows",
              "depth", "us", "MB", "GB/s", "share", "", "unfused", "time x", "MB x", "act. kB",
              "unfused");
}

void print(const Options& options, const Result& result, const Device& device) {
  if (options.json) return;
  const double share = 100.0 * result.fused.gb_s() / device.read_gb_s;
  std::printf("%-15s %5d %6d %9.2f %9.3f %7.0f %5.0f%% %3s |", result.op.c_str(), result.pass.rows,
              result.pass.depth, result.fused.time_us,
              static_cast<double>(result.fused.bytes.total()) / 1e6, result.fused.gb_s(), share,
              result.stays_in_l2 ? "L2" : "");
  const double activations_kb = static_cast<double>(result.fused.bytes.activations) / 1e3;
  if (result.unfused) {
    std::printf(" %9.2f %6.2f %6.3f | %11.1f %11.1f\n", result.unfused->time_us,
                result.time_ratio(), result.bytes_ratio(), activations_kb,
                static_cast<double>(result.unfused->bytes.activations) / 1e3);
  } else {
    std::printf(" %9s %6s %6s | %11.1f %11s\n", "", "", "", activations_kb, "");
  }
  std::fflush(stdout);
}

nlohmann::ordered_json to_json(const Timed& timed) {
  return {{"time_us", timed.time_us},
          {"weight_bytes", timed.bytes.weights},
          {"kv_bytes", timed.bytes.kv},
          {"activation_bytes", timed.bytes.activations},
          {"gb_s", timed.gb_s()}};
}

nlohmann::ordered_json to_json(const Result& result) {
  nlohmann::ordered_json json = {
      {"shape", result.shape},         {"op", result.op},
      {"rows", result.pass.rows},      {"depth", result.pass.depth},
      {"launches", result.launches},   {"stays_in_l2", result.stays_in_l2},
      {"fused", to_json(result.fused)}};
  if (result.unfused) {
    json["unfused"] = to_json(*result.unfused);
    json["time_ratio"] = result.time_ratio();
    json["bytes_ratio"] = result.bytes_ratio();
  }
  return json;
}

void write_csv(const std::string& path, const Device& device, const std::vector<Result>& results) {
  std::ofstream file(path);
  file << "shape,op,rows,depth,stays_in_l2,time_us,weight_bytes,kv_bytes,activation_bytes,gb_s,"
          "read_share,unfused_time_us,unfused_weight_bytes,unfused_kv_bytes,"
          "unfused_activation_bytes\n";
  for (const Result& r : results) {
    file << r.shape << ',' << r.op << ',' << r.pass.rows << ',' << r.pass.depth << ','
         << r.stays_in_l2 << ',' << r.fused.time_us << ',' << r.fused.bytes.weights << ','
         << r.fused.bytes.kv << ',' << r.fused.bytes.activations << ',' << r.fused.gb_s() << ','
         << r.fused.gb_s() / device.read_gb_s << ',';
    if (r.unfused) {
      file << r.unfused->time_us << ',' << r.unfused->bytes.weights << ',' << r.unfused->bytes.kv
           << ',' << r.unfused->bytes.activations;
    } else {
      file << ",,,";
    }
    file << '\n';
  }
  file.close();
  if (!file) {
    throw Error(ExitCode::kRuntime,
                "cannot write " + path + "; give -o a path that can be written");
  }
}

// ---- The benchmark ------------------------------------------------------------------------------

class Benchmark {
 public:
  Benchmark(const Options& options, const Device& device, const Stream& stream)
      : options_(options), device_(device), stream_(stream) {}

  void run(const std::string& shape) {
    ModelConfig config = synth_config(shape);
    if (options_.layers > 0) config.layers = options_.layers;
    validate(config);
    if (config.dim % 4 != 0 || config.q_dim() % 4 != 0 || config.ffn % 4 != 0) {
      throw Error(ExitCode::kUnsupported,
                  "the unfused chain needs hidden, query and ffn sizes that are multiples of 4; '" +
                      shape + "' has others; give another --shape");
    }
    print_header(options_, config, shape, device_);
    run_layers(shape, config);
    run_head(shape, config);
  }

  const std::vector<Result>& results() const { return results_; }

 private:
  void run_layers(const std::string& shape, const ModelConfig& config) {
    Operands operands(config, options_, stream_);
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
          add(time_op(shape, config, operands, op, pass));
        }
        add(time_layer(shape, config, operands, pass));
      }
    }
  }

  Result time_op(const std::string& shape, const ModelConfig& config, const Operands& operands,
                 LayerOp op, const PassShape& pass) const {
    const int layers = operands.layers();
    Result result{shape, to_string(op), pass, layers, {}, {}, false};
    result.fused.bytes = fused_bytes(config, op, pass);
    result.fused.time_us = time_us(layers, [&](int l) { operands.fused(op, l); });
    if (op != LayerOp::kAttention) {
      result.unfused.emplace();
      result.unfused->bytes = unfused_bytes(config, op, pass);
      result.unfused->time_us = time_us(layers, [&](int l) { operands.unfused(op, l); });
    }
    result.stays_in_l2 = stays_in_l2(device_, result.fused.bytes, layers);
    return result;
  }

  // All ops of a layer, one after the other, as in a pass.
  Result time_layer(const std::string& shape, const ModelConfig& config, const Operands& operands,
                    const PassShape& pass) const {
    const int layers = operands.layers();
    Result result{shape, "layer", pass, layers, {}, Timed{}, false};
    for (const LayerOp op : kLayerOps) {
      result.fused.bytes += fused_bytes(config, op, pass);
      result.unfused->bytes += unfused_bytes(config, op, pass);
    }
    result.fused.time_us = time_us(layers, [&](int l) {
      for (const LayerOp op : kLayerOps) operands.fused(op, l);
    });
    result.unfused->time_us = time_us(layers, [&](int l) {
      for (const LayerOp op : kLayerOps) operands.unfused(op, l);
    });
    result.stays_in_l2 = stays_in_l2(device_, result.fused.bytes, layers);
    return result;
  }

  double time_us(int layers, const std::function<void(int layer)>& op) const {
    return graph_time_us(stream_, options_.repeats,
                         [&] {
                           for (int l = 0; l < layers; ++l) op(l);
                         }) /
           layers;
  }

  // The engine computes logits of at most kMaxDecodeRows rows at a time.
  void run_head(const std::string& shape, const ModelConfig& config) {
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
    workspace.steps = memory.take<int16_t>(kRows * CompressedHead::pitch_of(config.dim));
    workspace.hidden = memory.take<HiddenBound>(kRows);
    workspace.lower = memory.zeros<uint32_t>(kRows);
    workspace.rescored = memory.zeros<int32_t>(kRows);
    const bool certifies = config.dim <= kMaxCompressedCols;
    int8_t* const codes =
        certifies ? memory.take<int8_t>(vocab * CompressedHead::pitch_of(config.dim)) : nullptr;
    CompressedRow* const bounds = certifies ? memory.take<CompressedRow>(vocab) : nullptr;
    if (certifies) cuda::compress_head(args.w, codes, bounds, stream_);
    const CompressedHead copy{codes, bounds, config.vocab, config.dim};
    int32_t* const rescored = memory.zeros<int32_t>(kRows);

    for (const int rows : options_.rows) {
      if (rows > kMaxDecodeRows) continue;
      args.rows = rows;
      const auto time_head = [&](const char* name, const std::function<void()>& head) {
        Result result{shape, name, {rows, 0}, kHeadLaunches, {}, {}, false};
        result.fused.time_us = time_us(kHeadLaunches, [&](int) { head(); });
        return result;
      };
      Result full = time_head("head", [&] { cuda::head(args, workspace, stream_); });
      full.fused.bytes = full_head_bytes(config, rows);
      full.stays_in_l2 = stays_in_l2(device_, full.fused.bytes, 1);
      add(full);
      if (!certifies) continue;
      const std::vector<int32_t> by_full = read(args.argmax, rows);
      Result certified = time_head("head certified", [&] {
        cuda::greedy_head({args, copy, rescored}, workspace, stream_);
      });
      if (read(args.argmax, rows) != by_full) {
        throw Error(ExitCode::kVerification,
                    "the certified head chooses other ids than the full head; run "
                    "tests/kernels/kernels_gpu_test");
      }
      uint64_t n_rescored = 0;
      for (const int32_t n : read(rescored, rows)) n_rescored += static_cast<uint64_t>(n);
      certified.fused.bytes = certified_head_bytes(config, rows, n_rescored);
      certified.stays_in_l2 = stays_in_l2(device_, certified.fused.bytes, 1);
      add(certified);
    }
  }

  std::vector<int32_t> read(const int32_t* from, int n) const {
    std::vector<int32_t> values(u(n));
    receive(stream_, values.data(), from, values.size() * sizeof(int32_t));
    return values;
  }

  void add(const Result& result) {
    print(options_, result, device_);
    results_.push_back(result);
  }

  const Options& options_;
  const Device& device_;
  const Stream& stream_;
  std::vector<Result> results_;
};

void benchmark(const Options& options) {
  static_assert(kMaxDecodeRows == cuda::kMaxInlineRows);
  const GpuList list = list_gpus();
  if (!list.problem.empty()) {
    throw Error(ExitCode::kDevice,
                list.problem +
                    "; this benchmark needs an NVIDIA GPU of compute capability 7.5 or "
                    "newer");
  }
  if (!is_supported(list.gpus.front())) {
    throw Error(ExitCode::kDevice, "the GPU " + list.gpus.front().name +
                                       " is older than compute capability 7.5; choose another "
                                       "with CUDA_VISIBLE_DEVICES");
  }
  cuda_check(cudaSetDevice(list.gpus.front().index), "selecting the GPU");
  cuda::require_code();
  const Stream stream;
  const Device device = measure_device(list.gpus.front());
  Benchmark benchmark(options, device, stream);
  for (const std::string& shape : options.shapes) benchmark.run(shape);
  if (!options.csv.empty()) write_csv(options.csv, device, benchmark.results());
  if (!options.json) return;
  nlohmann::ordered_json json = {{"gpu", device.name},
                                 {"l2_bytes", device.l2_bytes},
                                 {"read_gb_s", device.read_gb_s},
                                 {"repeats", options.repeats},
                                 {"results", nlohmann::ordered_json::array()}};
  for (const Result& result : benchmark.results()) json["results"].push_back(to_json(result));
  std::cout << json.dump() << '\n';
}

int run(int argc, char** argv) {
  Options options;
  CLI::App app(
      "Times each fused op of a layer and the head on the first GPU, with bytes and GB/s, and "
      "against the unfused chain of the same work.\n"
      "Example: edgellm_gpu_ops_bench --shape smollm-135m --rows 1 --depth 128 -o ops.csv",
      "edgellm_gpu_ops_bench");
  app.add_option("--shape", options.shapes,
                 "names that `edgellm synth` knows, or paths of a config.json")
      ->delimiter(',')
      ->capture_default_str();
  app.add_option("--rows", options.rows,
                 "up to 8: one of each of so many sequences (decode); more: of one prompt")
      ->delimiter(',')
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  app.add_option("--depth", options.depths, "positions in the cache before the pass")
      ->delimiter(',')
      ->check(CLI::Range(0, 131072))
      ->capture_default_str();
  app.add_option("--layers", options.layers, "different layers in a graph (default: the shape's)")
      ->check(CLI::Range(1, 1000));
  app.add_option("--repeats", options.repeats, "times a graph is run; the median counts")
      ->check(CLI::Range(1, 10000))
      ->capture_default_str();
  app.add_flag("--json", options.json, "one JSON object on stdout in place of the tables");
  app.add_option("-o", options.csv, "also write the results to this CSV file");
  try {
    app.parse(argc, argv);
    benchmark(options);
    return 0;
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : static_cast<int>(ExitCode::kUsage);
  } catch (const Error& error) {
    std::fprintf(stderr, "edgellm_gpu_ops_bench: %s\n", error.what());
    return static_cast<int>(error.code());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "edgellm_gpu_ops_bench: internal error: %s\n", error.what());
    return static_cast<int>(ExitCode::kRuntime);
  }
}

}  // namespace
}  // namespace edgellm::bench

int main(int argc, char** argv) { return edgellm::bench::run(argc, argv); }
