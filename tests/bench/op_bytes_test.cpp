// The bytes that the benchmark of the GPU's ops counts, against counts by hand.
#include "apps/bench/ops/op_bytes.h"

#include <catch2/catch.hpp>

#include "model/convert.h"

namespace edgellm::bench {
namespace {

// Widths that are no multiple of 64, and all different.
ModelConfig small_config() {
  ModelConfig config;
  config.dim = 100;
  config.ffn = 300;
  config.heads = 6;
  config.kv_heads = 2;
  config.head_dim = 20;
  config.vocab = 1000;
  return config;
}

void check(const OpBytes& bytes, uint64_t weights, uint64_t kv, uint64_t activations) {
  CHECK(bytes.weights == weights);
  CHECK(bytes.kv == kv);
  CHECK(bytes.activations == activations);
  CHECK(bytes.total() == weights + kv + activations);
}

// Rows of 100, 120 and 300 columns hold 32, 32 and 80 bytes of ternary codes; quantised they are
// 128, 128 and 320 bytes and 12 of scalars.

TEST_CASE("bytes of fused ops with one row: inputs, weights, results") {
  const ModelConfig config = small_config();
  const PassShape one{1, 70};
  check(fused_bytes(config, LayerOp::kQkv, one, Engine::kCuda), 400 + (120 + 2 * 40) * 32 + 3 * 4,
        2 * 40 * 2, 400 + 80 + 480);
  check(fused_bytes(config, LayerOp::kAttention, one, Engine::kCuda), 0, 71 * 2 * 40 * 2, 2 * 480);
  check(fused_bytes(config, LayerOp::kAttnOut, one, Engine::kCuda), 100 * 32 + 4, 0, 480 + 2 * 400);
  check(fused_bytes(config, LayerOp::kFfnUp, one, Engine::kCuda), 400 + 2 * (300 * 32 + 4), 0,
        400 + 1200);
  check(fused_bytes(config, LayerOp::kFfnDown, one, Engine::kCuda), 100 * 80 + 4, 0,
        1200 + 2 * 400);
}

TEST_CASE("bytes of fused ops with more rows: the quantised rows go through memory") {
  const ModelConfig config = small_config();
  const PassShape three{3, 70};
  check(fused_bytes(config, LayerOp::kQkv, three, Engine::kCuda), 400 + (120 + 2 * 40) * 32 + 3 * 4,
        3 * 2 * 40 * 2, 3 * (400 + 2 * 140 + 80 + 480));
  check(fused_bytes(config, LayerOp::kFfnDown, three, Engine::kCuda), 100 * 80 + 4, 0,
        3 * (1200 + 2 * 332 + 2 * 400));
}

TEST_CASE("decode rows have caches of their own, rows of a prompt share one") {
  const ModelConfig config = small_config();
  CHECK(fused_bytes(config, LayerOp::kAttention, {8, 70}, Engine::kCuda).kv == 8 * 71 * 2 * 40 * 2);
  CHECK(fused_bytes(config, LayerOp::kAttention, {9, 70}, Engine::kCuda).kv == 79 * 2 * 40 * 2);
}

TEST_CASE("bytes of the unfused chain: every kernel reads and writes its rows") {
  const ModelConfig config = small_config();
  const PassShape one{1, 70};
  // Norm in and out, quantise in and out, products in and out, RoPE in and out with its angles,
  // append in.
  check(unfused_bytes(config, LayerOp::kQkv, one, Engine::kCuda), 400 + (120 + 2 * 40) * 32 + 3 * 4,
        2 * 40 * 2,
        (400 + 400) + (400 + 140) + (3 * 140 + 480 + 2 * 160) + (2 * (480 + 160) + 80) + 2 * 160);
  // Quantise, product, addition: there is no norm.
  check(unfused_bytes(config, LayerOp::kAttnOut, one, Engine::kCuda), 100 * 32 + 4, 0,
        (480 + 140) + (140 + 400) + 3 * 400);
  check(unfused_bytes(config, LayerOp::kFfnUp, one, Engine::kCuda), 400 + 2 * (300 * 32 + 4), 0,
        (400 + 400) + (400 + 140) + 2 * (140 + 1200) + 3 * 1200);
  check(unfused_bytes(config, LayerOp::kFfnDown, one, Engine::kCuda), 100 * 80 + 4, 0,
        (1200 + 332) + (332 + 400) + 3 * 400);
}

TEST_CASE("a sub-norm adds its gain to both, its rows to the unfused chain only") {
  ModelConfig config = small_config();
  const PassShape one{1, 70};
  const OpBytes fused = fused_bytes(config, LayerOp::kFfnDown, one, Engine::kCuda);
  const OpBytes unfused = unfused_bytes(config, LayerOp::kFfnDown, one, Engine::kCuda);
  config.ffn_sub_norm = true;
  check(fused_bytes(config, LayerOp::kFfnDown, one, Engine::kCuda), fused.weights + 1200, 0,
        fused.activations);
  check(unfused_bytes(config, LayerOp::kFfnDown, one, Engine::kCuda), unfused.weights + 1200, 0,
        unfused.activations + 2 * 1200);
  // The other sub-norm is the other op's.
  CHECK(fused_bytes(config, LayerOp::kAttnOut, one, Engine::kCuda).weights == 100 * 32 + 4);
  config.attn_sub_norm = true;
  CHECK(fused_bytes(config, LayerOp::kAttnOut, one, Engine::kCuda).weights == 100 * 32 + 4 + 480);
}

TEST_CASE("only activations differ between fused and unfused, and the fused are fewer") {
  for (const std::string& shape : synth_shape_names()) {
    const ModelConfig config = synth_config(shape);
    for (const int rows : {1, 8, 512}) {
      for (const LayerOp op : kLayerOps) {
        INFO(shape << ", " << to_string(op) << ", rows " << rows);
        const OpBytes fused = fused_bytes(config, op, {rows, 128}, Engine::kCuda);
        const OpBytes unfused = unfused_bytes(config, op, {rows, 128}, Engine::kCuda);
        CHECK(fused.weights == unfused.weights);
        CHECK(fused.kv == unfused.kv);
        if (op == LayerOp::kAttention) {
          CHECK(fused.activations == unfused.activations);
        } else {
          CHECK(fused.activations < unfused.activations);
        }
      }
    }
  }
}

TEST_CASE("bytes of the head: bfloat16 rows, or their int8 copy and the rescored ones") {
  const ModelConfig config = small_config();
  check(full_head_bytes(config, 2, 2), 1000 * 200 + 400, 0, 2 * (3 * 400 + 4000));
  check(certified_head_bytes(config, 2, 2, 5), 1000 * (128 + 16) + 400 + 5 * 200, 0,
        2 * (3 * 400 + 2 * 256 + 2 * 4000));
}

TEST_CASE(
    "on the CPU rows of codes end with their last byte, quantised rows always go through memory") {
  ModelConfig config = small_config();
  config.dim = 102;  // 26 bytes of codes
  const PassShape one{1, 70};
  check(fused_bytes(config, LayerOp::kQkv, one, Engine::kCpu),
        4 * 102 + (120 + 2 * 40) * 26 + 3 * 4, 2 * 40 * 2, 4 * 102 + 2 * 140 + 80 + 480);
  check(unfused_bytes(config, LayerOp::kFfnDown, one, Engine::kCpu), 102 * 75 + 4, 0,
        (1200 + 332) + (332 + 408) + 3 * 408);
  check(full_head_bytes(config, 1, 4), 1000 * 408 + 408, 0, 3 * 408 + 4000);
}

}  // namespace
}  // namespace edgellm::bench
