// time_gpu_ops: a GPU as an OpDevice, with random weights of the model's shape. Every timing is one
// CUDA Graph. docs/gpu.md says how to read the times.
#include <cuda_runtime.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "apps/bench/cuda/graph_time.h"
#include "apps/bench/ops/cuda/device_data.h"
#include "apps/bench/ops/op_benchmark.h"
#include "apps/bench/ops/unfused/cuda_unfused.h"
#include "base/error.h"
#include "engine/cuda/resources.h"
#include "kernels/cuda/cuda.h"
#include "kernels/integer_sizes.h"

namespace edgellm::bench {
namespace {

using cuda::cuda_check;

class GpuDevice final : public OpDevice {
 public:
  GpuDevice(const ModelConfig& config, const OpOptions& options)
      : config_(config), options_(options) {}

  DeviceFacts facts() const override {
    // Four heads in a graph share what it costs to start one.
    return {.padding = {.weights = 64, .activations = 64},
            .head_steps = 2,
            .head_executions = 4,
            .kernels_test = "tests/kernels/kernels_gpu_test"};
  }

  std::byte* allocate(size_t bytes) override {
    buffers_.push_back(std::make_unique<DeviceMemory>(std::max<size_t>(bytes, 16)));
    return buffers_.back()->data();
  }
  float* random_floats(size_t n) override {
    auto* const values = allocate_array<float>(n);
    fill_f32(values, n, ++seed_, stream_);
    return values;
  }
  int16_t* random_codes(size_t n) override {
    auto* const codes = allocate_array<int16_t>(n);
    fill_i16(codes, n, ++seed_, stream_);
    return codes;
  }
  // On the stream of the ops, which does not wait for other streams.
  void upload(void* to, const void* from, size_t bytes) override {
    cuda_check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream_),
               "sending operands");
    stream_.wait();
  }
  void download(void* to, const void* from, size_t bytes) override {
    cuda_check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, stream_),
               "reading results");
    stream_.wait();
  }

  StackOperands prepare_layers(const PassLimits& limits) override {
    allocate_workspace(limits);
    allocate_unfused(limits);
    StackOperands operands;
    const size_t angles = to_size(limits.context) * to_size(config_.head_dim / 2);
    operands.rope_cos = random_floats(angles);
    operands.rope_sin = random_floats(angles);
    for (int l = 0; l < config_.layers; ++l) operands.layers.push_back(random_layer());
    return operands;
  }
  HeadOperands prepare_head(int max_rows) override {
    const size_t rows = to_size(max_rows);
    const size_t vocab = to_size(config_.vocab);
    workspace_.best = zeros<unsigned long long>(rows);
    workspace_.head_done = zeros<int32_t>(1);
    workspace_.steps = allocate_array<int16_t>(rows * CertifiedHead::pitch_of(config_.dim));
    workspace_.hidden = allocate_array<HiddenBound>(rows);
    workspace_.lower = zeros<uint32_t>(rows);
    workspace_.rescored = zeros<int32_t>(rows);

    auto* const weights = allocate_array<uint16_t>(vocab * to_size(config_.dim));
    fill_bf16(weights, vocab * to_size(config_.dim), 0.05f, ++seed_, stream_);
    HeadOperands operands;
    operands.gain = random_floats(to_size(config_.dim));
    operands.w = {weights, DenseType::kBF16, config_.vocab, config_.dim};
    if (config_.dim > kMaxCertifiedCols) return operands;
    auto* const codes = allocate_array<int8_t>(vocab * CertifiedHead::pitch_of(config_.dim));
    auto* const bounds = allocate_array<CertifiedRow>(vocab);
    cuda::build_certified_head(operands.w, codes, bounds, stream_);
    operands.copy = {codes, bounds, config_.vocab, config_.dim};
    operands.copy_row_bytes = operands.copy.pitch();
    return operands;
  }

  void qkv(const QkvArgs& args) override { cuda::qkv(args, workspace_, stream_); }
  void attention(const AttentionArgs& args) override { cuda::attention(args, workspace_, stream_); }
  void attn_out(const ProjectArgs& args) override { cuda::attn_out(args, workspace_, stream_); }
  void ffn_up(const FfnUpArgs& args) override { cuda::ffn_up(args, workspace_, stream_); }
  void ffn_down(const ProjectArgs& args) override { cuda::ffn_down(args, workspace_, stream_); }
  void head(const HeadArgs& args) override { cuda::head(args, workspace_, stream_); }
  void certified_head(const CertifiedHeadArgs& args) override {
    cuda::certified_head(args, workspace_, stream_);
  }

  void unfused_qkv(const QkvArgs& args) override {
    bench::unfused_qkv(args, unfused_rows_, stream_);
  }
  void unfused_project(const ProjectArgs& args) override {
    bench::unfused_project(args, unfused_rows_, stream_);
  }
  void unfused_ffn_up(const FfnUpArgs& args) override {
    bench::unfused_ffn_up(args, unfused_rows_, stream_);
  }

  // The kernels choose how many launches an op takes, so the launches are counted.
  int steps(LayerOp, const std::function<void()>& run) override {
    Capture capture(stream_);
    run();
    size_t launches = 0;
    cuda_check(cudaGraphGetNodes(capture.finish(), nullptr, &launches), "counting launches");
    return static_cast<int>(launches);
  }

  std::vector<double> run_times_us(const std::function<void()>& work) override {
    return graph_times_us(stream_, options_.repeats, work, options_.poll);
  }

 private:
  template <class T>
  T* allocate_array(size_t n) {
    return reinterpret_cast<T*>(allocate(n * sizeof(T)));
  }
  template <class T>
  T* zeros(size_t n) {
    T* const data = allocate_array<T>(n);
    cuda_check(cudaMemsetAsync(data, 0, n * sizeof(T), stream_), "clearing device memory");
    return data;
  }

  TernaryMatrix random_ternary(int rows, int cols) {
    const size_t words = to_size(rows) * cuda::ternary_pitch(cols) / sizeof(uint32_t);
    auto* const codes = allocate_array<uint32_t>(words);
    fill_ternary(codes, words, ++seed_, stream_);
    auto* const scale = allocate_array<float>(1);
    const float value = 0.02f;
    upload(scale, &value, sizeof value);
    return {reinterpret_cast<const uint8_t*>(codes), scale, 1, rows, cols};
  }
  LayerOperands random_layer() {
    const int q_dim = config_.q_dim();
    const int kv_dim = config_.kv_dim();
    LayerOperands layer;
    layer.q = random_ternary(q_dim, config_.dim);
    layer.k = random_ternary(kv_dim, config_.dim);
    layer.v = random_ternary(kv_dim, config_.dim);
    layer.o = random_ternary(config_.dim, q_dim);
    layer.gate = random_ternary(config_.ffn, config_.dim);
    layer.up = random_ternary(config_.ffn, config_.dim);
    layer.down = random_ternary(config_.dim, config_.ffn);
    layer.attn_norm = random_floats(to_size(config_.dim));
    layer.ffn_norm = random_floats(to_size(config_.dim));
    if (config_.attn_sub_norm) layer.attn_sub_norm = random_floats(to_size(q_dim));
    if (config_.ffn_sub_norm) layer.ffn_sub_norm = random_floats(to_size(config_.ffn));
    return layer;
  }

  int widest() const { return std::max({config_.dim, config_.q_dim(), config_.ffn}); }

  void allocate_workspace(const PassLimits& limits) {
    const size_t rows = to_size(limits.rows);
    const size_t decode_heads = to_size(limits.sequences) * to_size(config_.heads);
    workspace_.max_chunks = cuda::divide_up(limits.context, kIntegerChunk);
    workspace_.codes = allocate_array<int8_t>(
        rows * std::max(cuda::quantised_row_bytes(widest()),
                        cuda::attention_row_bytes(KvType::kI16, config_.heads, config_.head_dim)));
    workspace_.row_s = allocate_array<float>(rows);
    workspace_.row_r = allocate_array<float>(rows);
    workspace_.row_sum = allocate_array<int32_t>(rows);
    workspace_.rms = zeros<uint32_t>(rows);
    workspace_.rms_read = zeros<int32_t>(rows);
    workspace_.attention = allocate_array<float>(decode_heads * to_size(workspace_.max_chunks) *
                                                 to_size(cuda::attention_state(config_.head_dim)));
    workspace_.attention_done = zeros<int32_t>(decode_heads);
    workspace_.attention_rows = limits.sequences;
  }

  void allocate_unfused(const PassLimits& limits) {
    const size_t rows = to_size(limits.rows);
    unfused_rows_.normed = allocate_array<float>(rows * to_size(widest()));
    unfused_rows_.rms = allocate_array<float>(rows);
    unfused_rows_.codes = allocate_array<int8_t>(rows * cuda::quantised_row_bytes(widest()));
    unfused_rows_.s = allocate_array<float>(rows);
    unfused_rows_.sum = allocate_array<int32_t>(rows);
    unfused_rows_.product = allocate_array<float>(rows * to_size(widest()));
    unfused_rows_.other = allocate_array<float>(rows * to_size(widest()));
  }

  const ModelConfig& config_;
  const OpOptions& options_;
  const Stream stream_;
  uint64_t seed_ = 0;
  std::vector<std::unique_ptr<DeviceMemory>> buffers_;
  cuda::Workspace workspace_;
  UnfusedRows unfused_rows_;
};

}  // namespace

void time_gpu_ops(const ModelConfig& config, const OpOptions& options, int gpu,
                  uint64_t cache_bytes, const OpSink& sink) {
  static_assert(kMaxInlineRows == cuda::kMaxInlineRows);
  if (config.dim % 4 != 0 || config.q_dim() % 4 != 0 || config.ffn % 4 != 0) {
    throw Error(ExitCode::kUnsupported,
                "on a GPU the unfused chain needs hidden, query and ffn sizes that are multiples "
                "of 4, and the model has others; use --device cpu");
  }
  cuda_check(cudaSetDevice(gpu), "selecting the GPU");
  cuda::require_code();
  time_ops(
      config, options, [&] { return std::make_unique<GpuDevice>(config, options); }, cache_bytes,
      sink);
}

}  // namespace edgellm::bench
