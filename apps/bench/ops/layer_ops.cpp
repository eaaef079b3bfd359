#include "apps/bench/ops/layer_ops.h"

#include <algorithm>
#include <numeric>
#include <string>

#include "base/error.h"
#include "engine/views.h"

namespace edgellm::bench {
namespace {

PassLimits limits_of(const OpOptions& options) {
  PassLimits limits;
  int positions = 0;
  for (const int depth : options.depths) {
    for (const PassShape& pass : options.passes(depth)) {
      limits.rows = std::max(limits.rows, pass.rows);
      positions = std::max(positions, pass.positions());
      limits.sequences = std::max(limits.sequences, pass.sequences());
    }
  }
  limits.context = (positions + kAttentionChunk - 1) / kAttentionChunk * kAttentionChunk;
  return limits;
}

int32_t* allocate_ints(OpDevice& device, size_t n) {
  return reinterpret_cast<int32_t*>(device.allocate(n * sizeof(int32_t)));
}

void upload(OpDevice& device, int32_t* to, const std::vector<int32_t>& values) {
  device.upload(to, values.data(), values.size() * sizeof(int32_t));
}

}  // namespace

LayerOps::LayerOps(const ModelConfig& config, const OpOptions& options, OpDevice& device)
    : config_(config),
      device_(device),
      limits_(limits_of(options)),
      operands_(device.prepare_layers(limits_)),
      x_(device.random_floats(to_size(limits_.rows) * to_size(config.dim))),
      q_(device.random_floats(to_size(limits_.rows) * to_size(config.q_dim()))),
      k_(device.random_floats(to_size(limits_.rows) * to_size(config.kv_dim()))),
      v_(device.random_floats(to_size(limits_.rows) * to_size(config.kv_dim()))),
      attended_(device.random_floats(to_size(limits_.rows) * to_size(config.q_dim()))),
      u_(device.random_floats(to_size(limits_.rows) * to_size(config.ffn))),
      sequences_(allocate_ints(device, to_size(limits_.rows))),
      positions_(allocate_ints(device, to_size(limits_.rows))),
      block_table_(allocate_ints(device, to_size(limits_.sequences))),
      fault_(allocate_ints(device, 1)) {
  const std::vector<float> units = cache_units();
  for (int l = 0; l < config.layers; ++l) {
    auto* const memory = reinterpret_cast<float*>(device.allocate(units.size() * sizeof(float)));
    device.upload(memory, units.data(), units.size() * sizeof(float));
    caches_.push_back(
        {device.random_codes(cache_codes()), device.random_codes(cache_codes()), memory});
  }
  std::vector<int32_t> blocks(to_size(limits_.sequences));
  std::iota(blocks.begin(), blocks.end(), 0);
  upload(device, block_table_, blocks);
  upload(device, fault_, {0});
}

void LayerOps::set_pass(const PassShape& pass) {
  pass_ = pass;
  std::vector<int32_t> sequences(to_size(pass.rows));
  std::vector<int32_t> positions(to_size(pass.rows));
  for (int r = 0; r < pass.rows; ++r) {
    sequences[to_size(r)] = pass.is_decode() ? r : 0;
    positions[to_size(r)] = pass.is_decode() ? pass.depth : pass.depth + r;
  }
  upload(device_, sequences_, sequences);
  upload(device_, positions_, positions);
}

void LayerOps::fused(LayerOp op, int layer) const {
  switch (op) {
    case LayerOp::kQkv:
      return device_.qkv(qkv_args(layer));
    case LayerOp::kAttention:
      return device_.attention(attention_args(layer));
    case LayerOp::kAttnOut:
      return device_.attn_out(attn_out_args(layer));
    case LayerOp::kFfnUp:
      return device_.ffn_up(ffn_up_args(layer));
    case LayerOp::kFfnDown:
      return device_.ffn_down(ffn_down_args(layer));
  }
}

void LayerOps::unfused(LayerOp op, int layer) const {
  switch (op) {
    case LayerOp::kQkv:
      return device_.unfused_qkv(qkv_args(layer));
    case LayerOp::kAttention:
      return fused(op, layer);
    case LayerOp::kAttnOut:
      return device_.unfused_project(attn_out_args(layer));
    case LayerOp::kFfnUp:
      return device_.unfused_ffn_up(ffn_up_args(layer));
    case LayerOp::kFfnDown:
      return device_.unfused_project(ffn_down_args(layer));
  }
}

void LayerOps::compare(LayerOp op, int layer) const {
  const std::vector<Output> outputs = outputs_of(op);
  const std::vector<std::byte> before = read(outputs);
  fused(op, layer);
  const std::vector<std::byte> by_fused = read(outputs);
  write(outputs, before);
  unfused(op, layer);
  const std::vector<std::byte> by_unfused = read(outputs);
  write(outputs, before);
  int32_t fault = 0;
  device_.download(&fault, fault_, sizeof fault);
  require(fault == 0, "the operands lead to values that are not finite");
  require(before != by_fused, "a fused op has written nothing");
  if (by_fused == by_unfused) return;
  const auto differs = std::mismatch(by_fused.begin(), by_fused.end(), by_unfused.begin());
  throw Error(ExitCode::kVerification,
              std::string(to_string(op)) + " of " + std::to_string(pass_.rows) +
                  " rows: the fused op and the unfused chain differ from byte " +
                  std::to_string(differs.first - by_fused.begin()) + " of " +
                  std::to_string(by_fused.size()) + " on; run " + device_.facts().kernels_test +
                  " to see which of them is wrong");
}

// ---- Args ---------------------------------------------------------------------------------------

size_t LayerOps::cache_rows() const {
  return to_size(limits_.sequences) * to_size(limits_.context) * to_size(config_.kv_heads);
}

size_t LayerOps::cache_codes() const {
  return cache_rows() * to_size(kv_tile_dims(kOpsKvType, config_.head_dim));
}

std::vector<float> LayerOps::cache_units() const {
  // A code of 32,767 is then about 1.
  constexpr float kLog2Unit = -15.0f;
  constexpr float kTileUnits[3] = {0x1p-15f, kLog2Unit, 0x1p15f};
  std::vector<float> units;
  units.reserve(3 * cache_rows());
  for (size_t tile = 0; tile < cache_rows() / kAttentionChunk; ++tile) {
    for (const float unit : kTileUnits) units.insert(units.end(), kAttentionChunk, unit);
  }
  return units;
}

KvCache LayerOps::cache(int layer) const {
  const Cache& cache = caches_[to_size(layer)];
  return {cache.keys,       cache.values,     block_table_, 1,          limits_.context,
          config_.kv_heads, config_.head_dim, kOpsKvType,   cache.units};
}

QkvArgs LayerOps::qkv_args(int layer) const {
  const LayerOperands& w = operands_.layers[to_size(layer)];
  QkvArgs args;
  args.x = x_;
  args.gain = w.attn_norm;
  args.eps = config_.norm_eps;
  args.q = w.q;
  args.k = w.k;
  args.v = w.v;
  args.rope_cos = operands_.rope_cos;
  args.rope_sin = operands_.rope_sin;
  args.positions = positions_;
  args.q_out = q_;
  args.k_out = k_;
  args.v_out = v_;
  args.rows = pass_.rows;
  args.dim = config_.dim;
  args.head_dim = config_.head_dim;
  args.layer = layer;
  args.fault = fault_;
  return args;
}

AttentionArgs LayerOps::attention_args(int layer) const {
  AttentionArgs args;
  args.q = q_;
  args.k = k_;
  args.v = v_;
  args.kv = cache(layer);
  args.places = {sequences_, positions_};
  args.out = attended_;
  args.rows = pass_.rows;
  args.heads = config_.heads;
  args.layer = layer;
  args.fault = fault_;
  args.decode_rows = pass_.is_decode() ? pass_.rows : 0;
  args.decode_reach = decode_reach(pass_.rows, pass_.depth + 1);  // as the engine plans
  return args;
}

ProjectArgs LayerOps::attn_out_args(int layer) const {
  const LayerOperands& w = operands_.layers[to_size(layer)];
  return {attended_, w.attn_sub_norm, config_.norm_eps, w.o, x_, pass_.rows, layer, fault_};
}

FfnUpArgs LayerOps::ffn_up_args(int layer) const {
  const LayerOperands& w = operands_.layers[to_size(layer)];
  return {x_,    w.ffn_norm, config_.norm_eps, w.gate, w.up, view(config_.act), u_, pass_.rows,
          layer, fault_};
}

ProjectArgs LayerOps::ffn_down_args(int layer) const {
  const LayerOperands& w = operands_.layers[to_size(layer)];
  return {u_, w.ffn_sub_norm, config_.norm_eps, w.down, x_, pass_.rows, layer, fault_};
}

// ---- Results ------------------------------------------------------------------------------------

std::vector<LayerOps::Output> LayerOps::outputs_of(LayerOp op) const {
  const size_t rows = to_size(pass_.rows);
  switch (op) {
    case LayerOp::kQkv:
      return {{q_, rows * to_size(config_.q_dim()) * sizeof(float)},
              {k_, rows * to_size(config_.kv_dim()) * sizeof(float)},
              {v_, rows * to_size(config_.kv_dim()) * sizeof(float)}};
    case LayerOp::kAttention:
      return {{attended_, rows * to_size(config_.q_dim()) * sizeof(float)}};
    case LayerOp::kFfnUp:
      return {{u_, rows * to_size(config_.ffn) * sizeof(float)}};
    case LayerOp::kAttnOut:
    case LayerOp::kFfnDown:
      break;
  }
  return {{x_, rows * to_size(config_.dim) * sizeof(float)}};
}

std::vector<std::byte> LayerOps::read(const std::vector<Output>& outputs) const {
  std::vector<std::byte> all;
  for (const Output& output : outputs) {
    const size_t begin = all.size();
    all.resize(begin + output.bytes);
    device_.download(&all[begin], output.data, output.bytes);
  }
  return all;
}

void LayerOps::write(const std::vector<Output>& outputs, const std::vector<std::byte>& all) const {
  const std::byte* from = all.data();
  for (const Output& output : outputs) {
    device_.upload(output.data, from, output.bytes);
    from += output.bytes;
  }
}

}  // namespace edgellm::bench
