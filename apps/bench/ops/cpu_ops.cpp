// time_cpu_ops: the CPU as an OpDevice, with the model's own weights.
#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>

#include "apps/bench/ops/op_benchmark.h"
#include "apps/bench/ops/unfused/cpu_unfused.h"
#include "base/clock.h"
#include "engine/rope_table.h"
#include "engine/views.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/head_codes.h"
#include "kernels/cpu/primitives.h"
#include "kernels/integer_attention.h"

namespace edgellm::bench {
namespace {

constexpr int kCpuWarmUps = 1;

// Numbers between -1 and 1 that repeat after a while; any will do.
float random_value(size_t i) {
  const auto mixed = static_cast<uint32_t>((i % 1000003 + 1) * 2654435761U);
  return static_cast<float>(static_cast<int32_t>(mixed)) / 2147483648.0f;
}

const float* gain_or_null(std::span<const float> gain) {
  return gain.empty() ? nullptr : gain.data();
}

class CpuDevice final : public OpDevice {
 public:
  CpuDevice(const ModelFile& model, const OpOptions& options, cpu::Pool& pool)
      : config_(model.config()),
        weights_(model.weights()),
        options_(options),
        pool_(pool),
        rope_(weights_.inv_freq, config_.rope_attention_factor()) {}

  DeviceFacts facts() const override {
    return {.padding = {.weights = 4, .activations = 4 * pool_.isa().plane_bytes},
            .head_steps = 3,
            .head_executions = 1,
            .kernels_test = "tests/kernels/kernels_test"};
  }

  std::byte* allocate(size_t bytes) override {
    buffers_.push_back(std::make_unique_for_overwrite<std::byte[]>(bytes));
    return buffers_.back().get();
  }
  float* random_floats(size_t n) override {
    auto* const values = reinterpret_cast<float*>(allocate(n * sizeof(float)));
    for (size_t i = 0; i < n; ++i) values[i] = random_value(i);
    return values;
  }
  int16_t* random_codes(size_t n) override {
    auto* const codes = reinterpret_cast<int16_t*>(allocate(n * sizeof(int16_t)));
    for (size_t i = 0; i < n; ++i) {
      codes[i] = static_cast<int16_t>(random_value(i) * max_code(KvType::kI16));
    }
    return codes;
  }
  void upload(void* to, const void* from, size_t bytes) override { std::memcpy(to, from, bytes); }
  void download(void* to, const void* from, size_t bytes) override { std::memcpy(to, from, bytes); }

  StackOperands prepare_layers(const PassLimits& limits) override {
    unfused_.emplace(pool_, limits.rows, std::max({config_.dim, config_.q_dim(), config_.ffn}));
    rope_.grow(limits.context);
    StackOperands operands{{}, rope_.cosine(), rope_.sine()};
    for (const LayerWeights& w : weights_.layers) {
      operands.layers.push_back({view(w.q), view(w.k), view(w.v), view(w.o), view(w.gate),
                                 view(w.up), view(w.down), gain_or_null(w.attn_norm),
                                 gain_or_null(w.attn_sub_norm), gain_or_null(w.ffn_norm),
                                 gain_or_null(w.ffn_sub_norm)});
    }
    return operands;
  }
  HeadOperands prepare_head(int) override {
    HeadOperands operands{weights_.final_norm.data(), view(weights_.head), {}};
    if (config_.dim > kMaxCertifiedCols) return operands;
    const auto vocab = static_cast<size_t>(config_.vocab);
    auto* const codes =
        reinterpret_cast<uint8_t*>(allocate(vocab * cpu::head_row_bytes(config_.dim)));
    auto* const bounds = reinterpret_cast<CertifiedRow*>(allocate(vocab * sizeof(CertifiedRow)));
    cpu::build_certified_head(operands.w, codes, bounds, pool_);
    operands.copy = {codes, bounds, config_.vocab, config_.dim};
    operands.copy_row_bytes = cpu::head_row_bytes(config_.dim);
    return operands;
  }

  void qkv(const QkvArgs& args) override { cpu::qkv(args, pool_); }
  void attention(const AttentionArgs& args) override { cpu::attention(args, pool_); }
  void attn_out(const ProjectArgs& args) override { cpu::attn_out(args, pool_); }
  void ffn_up(const FfnUpArgs& args) override { cpu::ffn_up(args, pool_); }
  void ffn_down(const ProjectArgs& args) override { cpu::ffn_down(args, pool_); }
  void head(const HeadArgs& args) override { cpu::head(args, pool_); }
  void certified_head(const CertifiedHeadArgs& args) override { cpu::certified_head(args, pool_); }

  void unfused_qkv(const QkvArgs& args) override { unfused_->qkv(args); }
  void unfused_project(const ProjectArgs& args) override { unfused_->project(args); }
  void unfused_ffn_up(const FfnUpArgs& args) override { unfused_->ffn_up(args); }

  // The parallel loops in kernels/cpu/ops.cpp.
  int steps(LayerOp op, const std::function<void()>&) override {
    return op == LayerOp::kQkv ? 3 : 2;
  }

  std::vector<double> run_times_us(const std::function<void()>& work) override {
    std::vector<double> times;
    for (int i = 0; i < kCpuWarmUps + options_.repeats; ++i) {
      options_.poll();
      const int64_t start = now_ns();
      work();
      const auto us = static_cast<double>(now_ns() - start) / 1000;
      if (i >= kCpuWarmUps) times.push_back(us);
    }
    return times;
  }

 private:
  const ModelConfig& config_;
  const Weights& weights_;
  const OpOptions& options_;
  cpu::Pool& pool_;
  RopeTable rope_;
  std::optional<CpuUnfused> unfused_;
  std::vector<std::unique_ptr<std::byte[]>> buffers_;
};

}  // namespace

void time_cpu_ops(const ModelFile& model, const OpOptions& options, cpu::Pool& pool,
                  uint64_t cache_bytes, const OpSink& sink) {
  time_ops(
      model.config(), options, [&] { return std::make_unique<CpuDevice>(model, options, pool); },
      cache_bytes, sink);
}

}  // namespace edgellm::bench
