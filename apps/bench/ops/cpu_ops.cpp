// time_cpu_ops: the ops of every layer one after the other, so that each meets weights that no
// cache holds any more, as in a pass.
#include <algorithm>
#include <cstring>

#include "apps/bench/ops/op_timing.h"
#include "apps/bench/ops/unfused/cpu_unfused.h"
#include "apps/common/statistics.h"
#include "base/clock.h"
#include "base/error.h"
#include "engine/rope_table.h"
#include "engine/views.h"
#include "kernels/canonical.h"
#include "kernels/cpu/cpu.h"

namespace edgellm::bench {
namespace {

constexpr int kWarmUps = 1;

size_t u(int n) { return static_cast<size_t>(n); }

// Numbers between -1 and 1 that repeat after a while; any will do.
float random_value(size_t i) {
  const auto mixed = static_cast<uint32_t>((i % 1000003 + 1) * 2654435761U);
  return static_cast<float>(static_cast<int32_t>(mixed)) / 2147483648.0f;
}
std::vector<float> random_floats(size_t n) {
  std::vector<float> values(n);
  for (size_t i = 0; i < n; ++i) values[i] = random_value(i);
  return values;
}

// Rows, places and a cache for passes of a model.
class Operands {
 public:
  Operands(const ModelFile& model, const OpOptions& options, cpu::Pool& pool)
      : weights_(model.weights()),
        config_(model.config()),
        pool_(pool),
        rope_(weights_.inv_freq),
        max_rows_(*std::max_element(options.rows.begin(), options.rows.end())),
        unfused_(pool, max_rows_, std::max({config_.dim, config_.q_dim(), config_.ffn})) {
    int positions = 0;
    int sequences = 1;
    for (const int rows : options.rows) {
      for (const int depth : options.depths) {
        const PassShape pass{rows, depth};
        positions = std::max(positions, pass.positions());
        sequences = std::max(sequences, pass.sequences());
      }
    }
    context_ = (positions + kAttentionChunk - 1) / kAttentionChunk * kAttentionChunk;
    rope_.grow(context_);
    for (int s = 0; s < sequences; ++s) block_table_.push_back(s);
    x_ = random_floats(u(max_rows_) * u(config_.dim));
    q_ = random_floats(u(max_rows_) * u(config_.q_dim()));
    attended_ = random_floats(u(max_rows_) * u(config_.q_dim()));
    u_ = random_floats(u(max_rows_) * u(config_.ffn));
    layer_values_ = u(sequences) * u(context_) * u(config_.kv_dim());
    fill_cache();
  }

  int layers() const { return config_.layers; }
  const std::vector<float>& x() const { return x_; }

  void set_pass(const PassShape& pass) {
    pass_ = pass;
    sequences_.resize(u(pass.rows));
    positions_.resize(u(pass.rows));
    for (int r = 0; r < pass.rows; ++r) {
      sequences_[u(r)] = pass.is_decode() ? r : 0;
      positions_[u(r)] = pass.is_decode() ? pass.depth : pass.depth + r;
    }
  }

  void fused(LayerOp op, int layer) {
    switch (op) {
      case LayerOp::kQkv:
        return cpu::qkv(qkv_args(layer), pool_);
      case LayerOp::kAttention:
        return cpu::attention(
            {q_.data(), cache(layer), places(), attended_.data(), pass_.rows, config_.heads},
            pool_);
      case LayerOp::kAttnOut:
        return cpu::attn_out(attn_out_args(layer), pool_);
      case LayerOp::kFfnUp:
        return cpu::ffn_up(ffn_up_args(layer), pool_);
      case LayerOp::kFfnDown:
        return cpu::ffn_down(ffn_down_args(layer), pool_);
    }
  }

  // Attention is the fused op here, too.
  void unfused(LayerOp op, int layer) {
    switch (op) {
      case LayerOp::kQkv:
        return unfused_.qkv(qkv_args(layer));
      case LayerOp::kAttention:
        return fused(op, layer);
      case LayerOp::kAttnOut:
        return unfused_.project(attn_out_args(layer));
      case LayerOp::kFfnUp:
        return unfused_.ffn_up(ffn_up_args(layer));
      case LayerOp::kFfnDown:
        return unfused_.project(ffn_down_args(layer));
    }
  }

  // Throws Error (kVerification) where the unfused chain does not give the bits of the fused op.
  void compare(LayerOp op, int layer) {
    const std::vector<Output> outputs = outputs_of(op, layer);
    const std::vector<std::byte> before = read(outputs);
    fused(op, layer);
    const std::vector<std::byte> by_fused = read(outputs);
    write(outputs, before);
    unfused(op, layer);
    const std::vector<std::byte> by_unfused = read(outputs);
    write(outputs, before);
    require(fault_ == 0, "the operands lead to values that are not finite");
    require(before != by_fused, "a fused op has written nothing");
    if (by_fused != by_unfused) {
      throw Error(ExitCode::kVerification,
                  std::string(to_string(op)) + " of " + std::to_string(pass_.rows) +
                      " rows: the fused op and the unfused chain differ; run "
                      "tests/kernels/kernels_test to see which of them is wrong");
    }
  }

 private:
  struct Output {
    void* data;
    size_t bytes;
  };

  // A page of zeros would be one page for all of them, and in every cache.
  void fill_cache() {
    cache_.resize(2 * u(config_.layers) * layer_values_);
    constexpr size_t kPattern = size_t{1} << 16;
    std::vector<uint16_t> pattern(kPattern);
    for (size_t i = 0; i < kPattern; ++i) pattern[i] = to_half(random_value(i));
    for (size_t at = 0; at < cache_.size(); at += kPattern) {
      std::copy_n(pattern.begin(), std::min(kPattern, cache_.size() - at),
                  cache_.begin() + static_cast<std::ptrdiff_t>(at));
    }
  }

  RowPlaces places() const { return {sequences_.data(), positions_.data()}; }
  KvCache cache(int l) {
    uint16_t* const keys = cache_.data() + 2 * u(l) * layer_values_;
    return {keys,     keys + layer_values_, block_table_.data(), 1,
            context_, config_.kv_heads,     config_.head_dim,    KvType::kF16};
  }
  static const float* gain_or_null(std::span<const float> gain) {
    return gain.empty() ? nullptr : gain.data();
  }
  const LayerWeights& layer(int l) const { return weights_.layers[u(l)]; }
  QkvArgs qkv_args(int l) {
    const LayerWeights& w = layer(l);
    return {x_.data(), w.attn_norm.data(), config_.norm_eps, view(w.q),     view(w.k),
            view(w.v), rope_.cosine(),     rope_.sine(),     places(),      q_.data(),
            cache(l),  pass_.rows,         config_.dim,      config_.heads, l,
            &fault_};
  }
  ProjectArgs attn_out_args(int l) {
    const LayerWeights& w = layer(l);
    return {attended_.data(),
            gain_or_null(w.attn_sub_norm),
            config_.norm_eps,
            view(w.o),
            x_.data(),
            pass_.rows,
            l,
            &fault_};
  }
  FfnUpArgs ffn_up_args(int l) {
    const LayerWeights& w = layer(l);
    return {x_.data(),    w.ffn_norm.data(), config_.norm_eps,
            view(w.gate), view(w.up),        view(config_.act),
            u_.data(),    pass_.rows,        l,
            &fault_};
  }
  ProjectArgs ffn_down_args(int l) {
    const LayerWeights& w = layer(l);
    return {u_.data(),
            gain_or_null(w.ffn_sub_norm),
            config_.norm_eps,
            view(w.down),
            x_.data(),
            pass_.rows,
            l,
            &fault_};
  }

  std::vector<Output> outputs_of(LayerOp op, int l) {
    const size_t rows = u(pass_.rows);
    switch (op) {
      case LayerOp::kQkv:
        return {{q_.data(), rows * u(config_.q_dim()) * sizeof(float)},
                {cache(l).k, 2 * layer_values_ * sizeof(uint16_t)}};
      case LayerOp::kAttention:
        return {{attended_.data(), rows * u(config_.q_dim()) * sizeof(float)}};
      case LayerOp::kFfnUp:
        return {{u_.data(), rows * u(config_.ffn) * sizeof(float)}};
      case LayerOp::kAttnOut:
      case LayerOp::kFfnDown:
        break;
    }
    return {{x_.data(), rows * u(config_.dim) * sizeof(float)}};
  }
  static std::vector<std::byte> read(const std::vector<Output>& outputs) {
    std::vector<std::byte> all;
    for (const Output& output : outputs) {
      const auto* from = static_cast<const std::byte*>(output.data);
      all.insert(all.end(), from, from + output.bytes);
    }
    return all;
  }
  static void write(const std::vector<Output>& outputs, const std::vector<std::byte>& all) {
    const std::byte* from = all.data();
    for (const Output& output : outputs) {
      std::memcpy(output.data, from, output.bytes);
      from += output.bytes;
    }
  }

  const Weights& weights_;
  const ModelConfig& config_;
  cpu::Pool& pool_;
  RopeTable rope_;
  int max_rows_;
  CpuUnfused unfused_;
  int context_ = 0;
  PassShape pass_;
  size_t layer_values_ = 0;  // keys of a layer
  std::vector<int32_t> block_table_, sequences_, positions_;
  std::vector<float> x_, q_, attended_, u_;
  std::vector<uint16_t> cache_;  // per layer: keys, then values
  int32_t fault_ = 0;
};

class CpuOps {
 public:
  CpuOps(const ModelFile& model, const OpOptions& options, cpu::Pool& pool, uint64_t cache_bytes,
         const OpSink& sink)
      : model_(model),
        config_(model.config()),
        options_(options),
        pool_(pool),
        cache_bytes_(cache_bytes),
        sink_(sink) {}

  void run() {
    Operands operands(model_, options_, pool_);
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
    run_head(operands.x());
  }

 private:
  OpResult time_op(Operands& operands, LayerOp op, const PassShape& pass) const {
    OpResult result{to_string(op), pass, operands.layers(), {}, {}, false};
    result.fused.bytes = fused_bytes(config_, op, pass, Engine::kCpu);
    result.fused.time_us = time_us(operands.layers(), [&](int l) { operands.fused(op, l); });
    if (op != LayerOp::kAttention) {
      result.unfused.emplace();
      result.unfused->bytes = unfused_bytes(config_, op, pass, Engine::kCpu);
      result.unfused->time_us = time_us(operands.layers(), [&](int l) { operands.unfused(op, l); });
    }
    result.stays_in_cache = stays_in_cache(result.fused.bytes, operands.layers(), cache_bytes_);
    return result;
  }

  // All ops of a layer, one after the other, as in a pass.
  OpResult time_layer(Operands& operands, const PassShape& pass) const {
    OpResult result{"layer", pass, operands.layers(), {}, OpTime{}, false};
    for (const LayerOp op : kLayerOps) {
      result.fused.bytes += fused_bytes(config_, op, pass, Engine::kCpu);
      result.unfused->bytes += unfused_bytes(config_, op, pass, Engine::kCpu);
    }
    result.fused.time_us = time_us(operands.layers(), [&](int l) {
      for (const LayerOp op : kLayerOps) operands.fused(op, l);
    });
    result.unfused->time_us = time_us(operands.layers(), [&](int l) {
      for (const LayerOp op : kLayerOps) operands.unfused(op, l);
    });
    result.stays_in_cache = stays_in_cache(result.fused.bytes, operands.layers(), cache_bytes_);
    return result;
  }

  double time_us(int executions, const std::function<void(int index)>& op) const {
    std::vector<double> times;
    for (int i = 0; i < kWarmUps + options_.repeats; ++i) {
      options_.poll();
      const int64_t start = now_ns();
      for (int e = 0; e < executions; ++e) op(e);
      const auto us = static_cast<double>(now_ns() - start) / 1000;
      if (i >= kWarmUps) times.push_back(us / executions);
    }
    return summarise(times).median;
  }

  void run_head(const std::vector<float>& x) const {
    const DenseMatrix w = view(model_.weights().head);
    const int element_bytes = w.type == DenseType::kF32 ? 4 : 2;
    const size_t vocab = u(config_.vocab);
    std::vector<int8_t> codes;
    std::vector<CertifiedRow> bounds;
    if (config_.dim <= kMaxCertifiedCols) {
      codes.resize(vocab * CertifiedHead::pitch_of(config_.dim));
      bounds.resize(vocab);
      cpu::build_certified_head(w, codes.data(), bounds.data(), pool_);
    }
    for (const int rows : options_.rows) {
      if (rows > kMaxDecodeRows) continue;
      std::vector<int32_t> row_list(u(rows));
      for (int r = 0; r < rows; ++r) row_list[u(r)] = r;
      std::vector<float> normed(u(rows) * u(config_.dim));
      std::vector<float> logits(u(rows) * vocab);
      std::vector<int32_t> argmax(u(rows));
      int32_t fault = 0;
      HeadArgs args;
      args.x = x.data();
      args.row_list = row_list.data();
      args.gain = model_.weights().final_norm.data();
      args.eps = config_.norm_eps;
      args.w = w;
      args.normed = normed.data();
      args.logits = logits.data();
      args.argmax = argmax.data();
      args.rows = rows;
      args.layers = config_.layers;
      args.fault = &fault;

      OpResult full{"head", {rows, 0}, 1, {}, {}, false};
      full.fused.time_us = time_us(1, [&](int) { cpu::head(args, pool_); });
      full.fused.bytes = full_head_bytes(config_, rows, element_bytes);
      full.stays_in_cache = stays_in_cache(full.fused.bytes, 1, cache_bytes_);
      sink_(full);
      if (codes.empty()) continue;
      const std::vector<int32_t> by_full = argmax;
      std::vector<int32_t> rescored(u(rows));
      const CertifiedHead copy{codes.data(), bounds.data(), config_.vocab, config_.dim};
      OpResult certified{"head certified", {rows, 0}, 1, {}, {}, false};
      certified.fused.time_us = time_us(1, [&](int) {
        cpu::certified_head({args, copy, rescored.data()}, pool_);
      });
      if (argmax != by_full) {
        throw Error(ExitCode::kVerification,
                    "the certified head chooses other ids than the full head; run "
                    "tests/kernels/kernels_test");
      }
      uint64_t n_rescored = 0;
      for (const int32_t n : rescored) n_rescored += static_cast<uint64_t>(n);
      certified.fused.bytes = certified_head_bytes(config_, rows, element_bytes, n_rescored);
      certified.stays_in_cache = stays_in_cache(certified.fused.bytes, 1, cache_bytes_);
      sink_(certified);
    }
  }

  const ModelFile& model_;
  const ModelConfig& config_;
  const OpOptions& options_;
  cpu::Pool& pool_;
  const uint64_t cache_bytes_;
  const OpSink& sink_;
};

}  // namespace

void time_cpu_ops(const ModelFile& model, const OpOptions& options, cpu::Pool& pool,
                  uint64_t cache_bytes, const OpSink& sink) {
  CpuOps(model, options, pool, cache_bytes, sink).run();
}

}  // namespace edgellm::bench
