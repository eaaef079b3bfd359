// The ops of every layer of a model on one device, on rows and a cache of random values. Each op
// can be run fused and as its unfused chain, and the two can be compared.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "apps/bench/ops/op_device.h"
#include "apps/bench/ops/op_timing.h"
#include "model/config.h"

namespace edgellm::bench {

class LayerOps {
 public:
  // Room for every pass that the options name. `device` must outlive this.
  LayerOps(const ModelConfig& config, const OpOptions& options, OpDevice& device);

  int layers() const { return config_.layers; }

  // The pass of the next runs.
  void set_pass(const PassShape& pass);

  void fused(LayerOp op, int layer) const;
  void unfused(LayerOp op, int layer) const;  // of attention the fused op

  // Throws Error (kVerification) where the unfused chain does not give the bits of the fused op.
  void compare(LayerOp op, int layer) const;

 private:
  struct Cache {
    int16_t* keys;
    int16_t* values;
    float* units;
  };
  struct Output {
    void* data;
    size_t bytes;
  };

  size_t cache_rows() const;   // keys of a layer, one for each head of a position
  size_t cache_codes() const;  // of the keys of a layer
  std::vector<float> cache_units() const;
  KvCache cache(int layer) const;
  QkvArgs qkv_args(int layer) const;
  AttentionArgs attention_args(int layer) const;
  ProjectArgs attn_out_args(int layer) const;
  FfnUpArgs ffn_up_args(int layer) const;
  ProjectArgs ffn_down_args(int layer) const;

  std::vector<Output> outputs_of(LayerOp op) const;
  std::vector<std::byte> read(const std::vector<Output>& outputs) const;
  void write(const std::vector<Output>& outputs, const std::vector<std::byte>& all) const;

  const ModelConfig& config_;
  OpDevice& device_;
  const PassLimits limits_;
  const StackOperands operands_;
  std::vector<Cache> caches_;  // of each layer
  float* x_;                   // [rows, dim]
  float* q_;                   // [rows, q_dim]
  float* k_;                   // [rows, kv_dim]
  float* v_;                   // [rows, kv_dim]
  float* attended_;            // [rows, q_dim]
  float* u_;                   // [rows, ffn]
  int32_t* sequences_;         // [rows]
  int32_t* positions_;         // [rows]
  int32_t* block_table_;       // [sequences]: a block is a whole context
  int32_t* fault_;
  PassShape pass_;
};

}  // namespace edgellm::bench
