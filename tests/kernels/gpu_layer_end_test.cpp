// attn_out, ffn_up and ffn_down in one launch against cpu, bit for bit.
#include <catch2/catch.hpp>
#include <limits>
#include <string>
#include <vector>

#include "kernels/cpu/cpu.h"
#include "kernels/cuda/plan/layer_end.h"
#include "tests/kernels/cpu_pools.h"
#include "tests/kernels/gpu_data.h"
#include "tests/kernels/op_data.h"

namespace edgellm {
namespace {

using namespace edgellm::test;

struct LayerShape {
  int q_dim, dim, ffn;
};

// A layer's end with random weights, here and on the GPU.
struct LayerData {
  LayerShape shape;
  TernaryData out, gate, up, down;
  std::vector<float> out_gain, ffn_gain;
  TernaryOnDevice device_out, device_gate, device_up, device_down;
  OnDevice<float> device_out_gain, device_ffn_gain;

  LayerData(Random& random, const LayerShape& s, bool scales_differ)
      : shape(s),
        out(random, s.dim, s.q_dim, scales_differ),
        gate(random, s.ffn, s.dim, false),
        up(random, s.ffn, s.dim, scales_differ),
        down(random, s.dim, s.ffn, scales_differ),
        out_gain(gains(random, s.q_dim)),
        ffn_gain(gains(random, s.dim)),
        device_out(out.matrix),
        device_gate(gate.matrix),
        device_up(up.matrix),
        device_down(down.matrix),
        device_out_gain(out_gain),
        device_ffn_gain(ffn_gain) {}
};

struct EndResult {
  std::vector<float> x;
  int32_t fault;
};

EndResult on_cpu(const LayerData& layer, std::span<const float> y, std::vector<float> x, int rows,
                 bool sub_norm, GateActivation act) {
  std::vector<float> u(static_cast<size_t>(rows * layer.shape.ffn));
  int32_t fault = 0;
  cpu::attn_out({y.data(), sub_norm ? layer.out_gain.data() : nullptr, 1e-5f, layer.out.matrix,
                 x.data(), rows, 3, &fault},
                fast_pool());
  cpu::ffn_up({x.data(), layer.ffn_gain.data(), 1e-6f, layer.gate.matrix, layer.up.matrix, act,
               u.data(), rows, 3, &fault},
              fast_pool());
  cpu::ffn_down({u.data(), nullptr, 0, layer.down.matrix, x.data(), rows, 3, &fault}, fast_pool());
  return {std::move(x), fault};
}

EndResult on_gpu(const LayerData& layer, std::span<const float> y, const std::vector<float>& x,
                 int rows, bool sub_norm, GateActivation act) {
  const OnDevice<float> device_y(y), device_x(x);
  const OnDevice<int32_t> fault(std::vector<int32_t>{0});
  require(
      cuda::layer_end(
          {device_y.data(), sub_norm ? layer.device_out_gain.data() : nullptr, 1e-5f,
           layer.device_out.matrix, device_x.data(), rows, 3, fault.data()},
          {device_x.data(), layer.device_ffn_gain.data(), 1e-6f, layer.device_gate.matrix,
           layer.device_up.matrix, act, nullptr, rows, 3, fault.data()},
          {nullptr, nullptr, 0, layer.device_down.matrix, device_x.data(), rows, 3, fault.data()},
          nullptr),
      "a size has no joined launch");
  finish();
  return {device_x.read(), fault.read()[0]};
}

bool has_plan(const LayerShape& shape, int rows) {
  return cuda::pick_layer_end({rows, shape.q_dim, shape.dim, shape.ffn, false},
                              cuda::device_traits())
      .has_value();
}

TEST_CASE("CUDA: the end of a layer in one launch gives the bits of cpu", "[gpu]") {
  if (no_gpu() || !cuda::device_traits().has_wgmma) return;
  Random random(51);
  constexpr int kRows[] = {33, 47, 48, 49, 101, 127, 256, 257};
  const LayerShape shapes[] = {{64, 128, 512},   {320, 256, 576}, {576, 576, 1536},
                               {512, 640, 1472}, {640, 192, 704}, {128, 512, 1024}};
  for (const LayerShape& shape : shapes) {
    for (const bool scales_differ : {false, true}) {
      const LayerData layer(random, shape, scales_differ);
      for (const int rows : kRows) {
        REQUIRE(has_plan(shape, rows));
        const bool sub_norm = random.below(2) == 1;
        const GateActivation act =
            random.below(2) == 1 ? GateActivation::kRelu2 : GateActivation::kSilu;
        INFO("q_dim " << shape.q_dim << ", dim " << shape.dim << ", ffn " << shape.ffn << ", rows "
                      << rows << ", sub-norm " << sub_norm << ", scales differ " << scales_differ);
        const std::vector<float> y = activation_rows(random, rows, shape.q_dim);
        const std::vector<float> x = random.normals(static_cast<size_t>(rows * shape.dim), 3.0f);
        const EndResult expected = on_cpu(layer, y, x, rows, sub_norm, act);
        const EndResult result = on_gpu(layer, y, x, rows, sub_norm, act);
        REQUIRE(first_difference(expected.x, result.x) == "");
        REQUIRE(result.fault == expected.fault);
      }
    }
  }
}

TEST_CASE("CUDA: the end of a layer reports values that are not finite", "[gpu]") {
  if (no_gpu() || !cuda::device_traits().has_wgmma) return;
  Random random(52);
  const LayerShape shape{576, 576, 1536};
  const LayerData layer(random, shape, false);
  constexpr int kRows = 49;
  const float infinite = std::numeric_limits<float>::infinity();
  for (const int row : {0, 23, 48}) {
    std::vector<float> y = activation_rows(random, kRows, shape.q_dim);
    const std::vector<float> x = random.normals(static_cast<size_t>(kRows * shape.dim), 3.0f);
    const EndResult sound = on_gpu(layer, y, x, kRows, false, GateActivation::kSilu);
    REQUIRE(sound.fault == 0);
    y[static_cast<size_t>(row * shape.q_dim) + 77] = infinite;
    const EndResult broken_y = on_gpu(layer, y, x, kRows, false, GateActivation::kSilu);
    CHECK(broken_y.fault == 4);
    y[static_cast<size_t>(row * shape.q_dim) + 77] = 1.0f;
    std::vector<float> broken = x;
    broken[static_cast<size_t>(row * shape.dim) + 575] = -infinite;
    const EndResult broken_x = on_gpu(layer, y, broken, kRows, false, GateActivation::kSilu);
    CHECK(broken_x.fault == 4);
    // The other tokens keep their values.
    for (int r = 0; r < kRows; ++r) {
      if (r == row) continue;
      const auto begin = static_cast<ptrdiff_t>(r * shape.dim);
      CHECK(
          std::vector<float>(broken_y.x.begin() + begin, broken_y.x.begin() + begin + shape.dim) ==
          std::vector<float>(sound.x.begin() + begin, sound.x.begin() + begin + shape.dim));
    }
  }
}

}  // namespace
}  // namespace edgellm
