// A whole model on the reference ops: the slow obvious twin of the engine's layer loops. One
// sequence, one contiguous KV cache, all rows in one pass.
#pragma once

#include <span>
#include <vector>

#include "engine/rope_table.h"
#include "engine/views.h"
#include "kernels/ref/ref.h"
#include "model/model_file.h"

namespace edgellm::test {

class RefModel {
 public:
  RefModel(const ModelFile& model, int context, KvType type)
      : model_(model),
        config_(model.config()),
        type_(type),
        rope_(model.weights().inv_freq, model.config().rope_attention_factor()) {
    block_size_ = (context + kAttentionChunk - 1) / kAttentionChunk * kAttentionChunk;
    const size_t bytes = static_cast<size_t>(block_size_) * static_cast<size_t>(config_.kv_heads) *
                         static_cast<size_t>(kv_tile_dims(type, config_.head_dim)) *
                         static_cast<size_t>(kv_element_bytes(type));
    k_.assign(static_cast<size_t>(config_.layers), std::vector<uint8_t>(bytes, 0xff));
    v_ = k_;
    units_.assign(k_.size(), std::vector<float>(static_cast<size_t>(block_size_) *
                                                static_cast<size_t>(config_.kv_heads) * 3));
    rope_.grow(context);
  }

  // Logits [ids, vocab] of ids that follow what was fed before.
  std::vector<float> forward(std::span<const int32_t> ids) {
    const int rows = static_cast<int>(ids.size());
    const std::vector<int32_t> sequences(ids.size(), 0);
    std::vector<int32_t> positions;
    std::vector<int32_t> row_list;
    for (int i = 0; i < rows; ++i) {
      positions.push_back(next_position_++);
      row_list.push_back(i);
    }
    const RowPlaces places{sequences.data(), positions.data()};
    const auto buffer = [&](int width) {
      return std::vector<float>(ids.size() * static_cast<size_t>(width));
    };
    std::vector<float> x = buffer(config_.dim);
    std::vector<float> q = buffer(config_.q_dim());
    std::vector<float> k = buffer(config_.kv_dim());
    std::vector<float> v = buffer(config_.kv_dim());
    std::vector<float> a = buffer(config_.q_dim());
    std::vector<float> u = buffer(config_.ffn);
    std::vector<float> normed = buffer(config_.dim);
    std::vector<float> logits = buffer(config_.vocab);
    const Weights& weights = model_.weights();
    const float eps = config_.norm_eps;
    int32_t fault = 0;

    const Activations activations = view(config_.activation_quant);
    ref::embed(
        {view(weights.embedding), ids.data(), x.data(), rows, view(weights.ternary_embedding)});
    for (int l = 0; l < config_.layers; ++l) {
      const size_t layer = static_cast<size_t>(l);
      const LayerWeights& w = weights.layers[layer];
      const KvCache kv{k_[layer].data(),    v_[layer].data(), &kBlock,          1,
                       block_size_,         config_.kv_heads, config_.head_dim, type_,
                       units_[layer].data()};
      const NormedInput attn = normed_input(x, config_.dim, w.attn_norm, w.input_norms.q);
      ref::qkv({attn.rows.data(),
                attn.gain,
                attn.eps,
                view(w.q),
                view(w.k),
                view(w.v),
                rope_.cosine(),
                rope_.sine(),
                positions.data(),
                q.data(),
                k.data(),
                v.data(),
                rows,
                config_.dim,
                config_.head_dim,
                l,
                &fault,
                activations,
                gain(w.q_norm),
                gain(w.k_norm),
                gain(w.input_norms.k),
                gain(w.input_norms.v)});
      ref::attention(
          {q.data(), k.data(), v.data(), kv, places, a.data(), rows, config_.heads, l, &fault});
      const NormedInput out = normed_input(a, config_.q_dim(), w.attn_sub_norm, w.input_norms.o);
      ref::attn_out(
          {out.rows.data(), out.gain, out.eps, view(w.o), x.data(), rows, l, &fault, activations});
      const NormedInput ffn = normed_input(x, config_.dim, w.ffn_norm, w.input_norms.gate);
      ref::ffn_up({ffn.rows.data(), ffn.gain, ffn.eps, view(w.gate), view(w.up), view(config_.act),
                   u.data(), rows, l, &fault, activations, gain(w.input_norms.up)});
      const NormedInput down = normed_input(u, config_.ffn, w.ffn_sub_norm, w.input_norms.down);
      ref::ffn_down({down.rows.data(), down.gain, down.eps, view(w.down), x.data(), rows, l, &fault,
                     activations});
    }
    ref::head({x.data(), row_list.data(), weights.final_norm.data(), eps, view(weights.head),
               normed.data(), logits.data(), nullptr, nullptr, 0, rows, config_.layers, &fault,
               view(weights.ternary_head)});
    require(fault == 0, "a value of the reference run is not finite");
    return logits;
  }

 private:
  static constexpr int32_t kBlock = 0;
  static const float* gain(std::span<const float> g) { return g.empty() ? nullptr : g.data(); }

  // What a matrix reads: rows, and the norm to fold in.
  struct NormedInput {
    std::vector<float> rows;
    const float* gain;
    float eps;
  };
  NormedInput normed_input(const std::vector<float>& rows, int width, std::span<const float> norm,
                           std::span<const float> input_norm) const {
    if (input_norm.empty()) return {rows, gain(norm), config_.norm_eps};
    NormedInput result{rows, input_norm.data(), config_.input_norm_eps};
    if (norm.empty()) return result;
    ref::norm({rows.data(), norm.data(), config_.norm_eps, result.rows.data(),
               static_cast<int>(rows.size()) / width, width});
    return result;
  }

  const ModelFile& model_;
  const ModelConfig& config_;
  KvType type_;
  int block_size_ = 0;
  std::vector<std::vector<uint8_t>> k_, v_;  // [layers]
  std::vector<std::vector<float>> units_;    // [layers]
  RopeTable rope_;
  int next_position_ = 0;
};

}  // namespace edgellm::test
