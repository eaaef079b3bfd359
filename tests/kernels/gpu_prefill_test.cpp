// The CUDA kernels for many rows against ref and cpu, bit for bit. They are called by name here, so
// that row counts for which the ops prefer other kernels are also tested.
#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "kernels/cpu/cpu.h"
#include "kernels/cuda/attention.h"
#include "kernels/cuda/linear.h"
#include "tests/kernels/cpu_pools.h"
#include "tests/kernels/gpu_data.h"
#include "tests/kernels/op_data.h"

namespace edgellm {
namespace {

using namespace edgellm::test;

constexpr int kAllRows[] = {1, 2, 3, 7, 8, 9, 16, 17, 31, 33, 64, 65, 100, 129, 130, 257, 512};
constexpr int kRealRows[] = {2, 8, 9, 17, 30, 64, 130, 512};

// Row counts for a shape: the larger ones only where the product stays small, or for real shapes.
std::vector<int> row_counts(int cols, int dim, bool real) {
  std::vector<int> counts;
  if (real) return {std::begin(kRealRows), std::end(kRealRows)};
  for (int rows : kAllRows) {
    if (static_cast<double>(rows) * cols * dim < 3e7) counts.push_back(rows);
  }
  return counts;
}

struct ProductShape {
  int cols, rows;
  bool real = false;
};

TEST_CASE("CUDA attn_out and ffn_down of many rows give the bits of cpu", "[gpu]") {
  if (no_gpu()) return;
  Random random(31);
  const ProductShape shapes[] = {{1, 1},
                                 {31, 33},
                                 {33, 31},
                                 {4, 2},
                                 {64, 64},
                                 {65, 3},
                                 {100, 127},
                                 {128, 257},
                                 {300, 70},
                                 {1028, 129},
                                 {3076, 66},
                                 {9212, 40},
                                 {23040, 9},
                                 {576, 576, true},
                                 {1536, 576, true},
                                 {2560, 2560, true},
                                 {6912, 2560, true}};
  for (const ProductShape& shape : shapes) {
    const TernaryData w(random, shape.rows, shape.cols, random.below(2) == 1);
    const std::vector<float> gain = gains(random, shape.cols);
    const TernaryOnDevice device_w(w.matrix);
    const OnDevice<float> device_gain(gain);
    for (int rows : row_counts(shape.cols, shape.rows, shape.real)) {
      const bool sub_norm = random.below(2) == 1;
      INFO("cols " << shape.cols << ", dim " << shape.rows << ", rows " << rows << ", sub-norm "
                   << sub_norm);
      const std::vector<float> y = activation_rows(random, rows, shape.cols);
      std::vector<float> x = random.normals(static_cast<size_t>(rows * shape.rows), 3.0f);
      const OnDevice<float> device_y(y), device_x(x);
      int32_t fault = 0;
      cpu::attn_out(
          {y.data(), sub_norm ? gain.data() : nullptr, 1e-5f, w.matrix, x.data(), rows, 0, &fault},
          fast_pool());
      const OnDevice<int32_t> device_fault(std::vector<int32_t>{0});
      const WorkspaceOnDevice workspace(static_cast<size_t>(rows), shape.cols, 1, 1, 1);
      cuda::project_rows({device_y.data(), sub_norm ? device_gain.data() : nullptr, 1e-5f,
                          device_w.matrix, device_x.data(), rows, 0, device_fault.data()},
                         workspace.workspace, nullptr);
      finish();
      REQUIRE(first_difference(x, device_x.read()) == "");
      REQUIRE(device_fault.read()[0] == 0);
      workspace.codes.read();
    }
  }
}

TEST_CASE("CUDA ffn_up of many rows gives the bits of cpu", "[gpu]") {
  if (no_gpu()) return;
  Random random(32);
  const ProductShape shapes[] = {{1, 1},     {31, 33},          {36, 31},
                                 {320, 864}, {577, 65},         {640, 257},
                                 {4096, 70}, {576, 1536, true}, {2560, 6912, true}};
  for (const ProductShape& shape : shapes) {
    const TernaryData gate(random, shape.rows, shape.cols);
    const TernaryData up(random, shape.rows, shape.cols, true);
    const std::vector<float> gain = gains(random, shape.cols);
    const TernaryOnDevice device_gate(gate.matrix), device_up(up.matrix);
    const OnDevice<float> device_gain(gain);
    for (int rows : row_counts(shape.cols, 2 * shape.rows, shape.real)) {
      const GateActivation act =
          random.below(2) == 1 ? GateActivation::kRelu2 : GateActivation::kSilu;
      INFO("dim " << shape.cols << ", ffn " << shape.rows << ", rows " << rows);
      const std::vector<float> x = activation_rows(random, rows, shape.cols);
      std::vector<float> expected(static_cast<size_t>(rows * shape.rows));
      int32_t fault = 0;
      cpu::ffn_up({x.data(), gain.data(), 1e-5f, gate.matrix, up.matrix, act, expected.data(), rows,
                   0, &fault},
                  fast_pool());
      const OnDevice<float> device_x(x), u(expected.size());
      const OnDevice<int32_t> device_fault(std::vector<int32_t>{0});
      const WorkspaceOnDevice workspace(static_cast<size_t>(rows), shape.cols, 1, 1, 1);
      cuda::ffn_up_rows({device_x.data(), device_gain.data(), 1e-5f, device_gate.matrix,
                         device_up.matrix, act, u.data(), rows, 0, device_fault.data()},
                        workspace.workspace, nullptr);
      finish();
      REQUIRE(first_difference(expected, u.read()) == "");
      REQUIRE(device_fault.read()[0] == 0);
    }
  }
}

TEST_CASE("CUDA silu of large and small gates gives the bits of cpu", "[gpu]") {
  if (no_gpu()) return;
  Random random(41);
  // One activation of 1, so that a gate is the scale of its row or the negative of it.
  constexpr int kRows = 20000;
  TernaryData gate(random, kRows, 1, true);
  for (int i = 0; i < kRows; ++i) {
    constexpr float kAround[] = {1.0f, 17.0f, 87.0f, 87.34f, 88.0f, 88.37f, 88.72f, 89.0f};
    gate.scale[static_cast<size_t>(i)] =
        i % 2 == 0 ? std::exp2(random.uniform(-140.0f, 120.0f))
                   : kAround[random.below(8)] * random.uniform(0.999f, 1.001f);
  }
  TernaryData up(random, kRows, 1);
  up.scale[0] = 1.0f;
  const TernaryOnDevice device_gate(gate.matrix), device_up(up.matrix);
  for (const int rows : {1, 5, 12, 90, 300}) {
    const std::vector<float> x(static_cast<size_t>(rows), 1.0f);
    std::vector<float> expected(static_cast<size_t>(rows) * kRows);
    int32_t fault = 0;
    cpu::ffn_up({x.data(), nullptr, 1e-5f, gate.matrix, up.matrix, GateActivation::kSilu,
                 expected.data(), rows, 0, &fault},
                fast_pool());
    const OnDevice<float> device_x(x), u(expected.size());
    const OnDevice<int32_t> device_fault(std::vector<int32_t>{0});
    const WorkspaceOnDevice workspace(static_cast<size_t>(rows), 1, 1, 1, 1);
    cuda::ffn_up({device_x.data(), nullptr, 1e-5f, device_gate.matrix, device_up.matrix,
                  GateActivation::kSilu, u.data(), rows, 0, device_fault.data()},
                 workspace.workspace, nullptr);
    finish();
    INFO(rows << " rows");
    REQUIRE(first_difference(expected, u.read()) == "");
  }
}

// Sizes at and around those of tiles, blocks of columns and chunks of weights.
constexpr int kTileRows[] = {1, 17, 33, 65, 100, 129, 257};
constexpr ProductShape kTileShapes[] = {{1, 1},      {31, 33},   {100, 127}, {128, 64},
                                        {130, 385},  {516, 129}, {576, 194}, {1100, 66},
                                        {1664, 200}, {6912, 40}, {8200, 24}};

struct NamedPick {
  std::string name;
  cuda::PickLinear pick;
};

// The kernels for several rows that the device and the sizes allow, whether they are fast or not.
std::vector<NamedPick> each_kernel() {
  std::vector<NamedPick> picks;
  for (const int token_tiles : cuda::kSkinnyTokenTiles) {
    picks.push_back({"clusters of " + std::to_string(8 * token_tiles) + " tokens",
                     [=](const cuda::LinearSize& size, const cuda::DeviceTraits& device) {
                       const auto plan = cuda::skinny_plan(token_tiles, size, device);
                       return plan ? cuda::LinearPlan(*plan) : pick_linear_rows(size, device);
                     }});
  }
  for (int tile = 0; cuda::device_traits().has_wgmma && tile < cuda::kNumWgmmaTiles; ++tile) {
    const int most = cuda::device_traits().has_clusters ? cuda::kWgmmaTiles[tile].max_parts : 1;
    for (int parts = 1; parts <= most; parts *= 2) {
      picks.push_back(
          {"tile " + std::to_string(tile) + " of warpgroups in " + std::to_string(parts) + " parts",
           [=](const cuda::LinearSize& size, const cuda::DeviceTraits& device) {
             return cuda::LinearPlan(cuda::wgmma_gemm_plan(tile, parts, size, device));
           }});
    }
  }
  return picks;
}

TEST_CASE("CUDA products by each kernel give the bits of cpu", "[gpu]") {
  if (no_gpu()) return;
  Random random(36);
  for (const ProductShape& shape : kTileShapes) {
    const TernaryData w(random, shape.rows, shape.cols, random.below(2) == 1);
    const TernaryData up(random, shape.rows, shape.cols, random.below(2) == 1);
    const TernaryOnDevice device_w(w.matrix), device_up(up.matrix);
    const std::vector<float> gain = gains(random, shape.cols);
    const OnDevice<float> device_gain(gain);
    for (int rows : kTileRows) {
      const bool sub_norm = random.below(2) == 1;
      const std::vector<float> y = activation_rows(random, rows, shape.cols);
      const std::vector<float> residual =
          random.normals(static_cast<size_t>(rows * shape.rows), 3.0f);
      std::vector<float> x = residual;
      std::vector<float> u(x.size());
      int32_t fault = 0;
      cpu::attn_out(
          {y.data(), sub_norm ? gain.data() : nullptr, 1e-5f, w.matrix, x.data(), rows, 0, &fault},
          fast_pool());
      cpu::ffn_up({y.data(), gain.data(), 1e-5f, w.matrix, up.matrix, GateActivation::kSilu,
                   u.data(), rows, 0, &fault},
                  fast_pool());
      const OnDevice<float> device_y(y);
      for (const auto& [name, pick] : each_kernel()) {
        INFO("cols " << shape.cols << ", dim " << shape.rows << ", rows " << rows << ", sub-norm "
                     << sub_norm << ", " << name);
        const OnDevice<float> device_x(residual), device_u(u.size());
        const OnDevice<int32_t> device_fault(std::vector<int32_t>{0});
        const WorkspaceOnDevice workspace(static_cast<size_t>(rows), shape.cols, 1, 1, 1);
        cuda::project_by(pick,
                         {device_y.data(), sub_norm ? device_gain.data() : nullptr, 1e-5f,
                          device_w.matrix, device_x.data(), rows, 0, device_fault.data()},
                         workspace.workspace, nullptr);
        cuda::ffn_up_by(
            pick,
            {device_y.data(), device_gain.data(), 1e-5f, device_w.matrix, device_up.matrix,
             GateActivation::kSilu, device_u.data(), rows, 0, device_fault.data()},
            workspace.workspace, nullptr);
        finish();
        REQUIRE(first_difference(x, device_x.read()) == "");
        REQUIRE(first_difference(u, device_u.read()) == "");
        REQUIRE(device_fault.read()[0] == 0);
        workspace.codes.read();
        REQUIRE(workspace.told_are_clear());
      }
    }
  }
}

TEST_CASE("CUDA products of many rows report values that are not finite", "[gpu]") {
  if (no_gpu()) return;
  Random random(33);
  const int cols = GENERATE(100, 1100);
  const int dim = 40;
  // In one launch, and with a launch that quantises before it, in either order of codes.
  const int rows = GENERATE(5, 33, 70);
  const TernaryData w(random, dim, cols);
  const TernaryOnDevice device_w(w.matrix);
  const std::vector<float> gain = gains(random, cols);
  const OnDevice<float> device_gain(gain);
  for (float bad :
       {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::quiet_NaN(),
        std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity()}) {
    for (bool sub_norm : {false, true}) {
      INFO(rows << " rows, value " << bad << ", sub-norm " << sub_norm);
      std::vector<float> y = random.normals(static_cast<size_t>(rows * cols));
      y[static_cast<size_t>(3 * cols + random.below(cols))] = bad;
      const std::vector<float> x(static_cast<size_t>(rows * dim), 1.0f);
      const OnDevice<float> device_y(y), device_x(x);
      const OnDevice<int32_t> device_fault(std::vector<int32_t>{0});
      const WorkspaceOnDevice workspace(rows, cols, 1, 1, 1);
      cuda::project_rows({device_y.data(), sub_norm ? device_gain.data() : nullptr, 1e-5f,
                          device_w.matrix, device_x.data(), rows, 6, device_fault.data()},
                         workspace.workspace, nullptr);
      finish();
      CHECK(device_fault.read()[0] == 7);
      if (rows <= 8 || cols > 128) continue;
      // The codes of that row are 0: one block of columns, in either order of codes.
      const std::vector<int8_t> codes = workspace.codes.read();
      const size_t pitch = cuda::quantised_row_bytes(cols);
      for (size_t i = 3 * pitch; i < 4 * pitch; ++i) REQUIRE(codes[i] == 0);
    }
  }
  // A residual that overflows.
  const std::vector<float> y(static_cast<size_t>(rows * cols), 3e38f);
  const std::vector<float> x(static_cast<size_t>(rows * dim), 3e38f);
  const OnDevice<float> device_y(y), device_x(x);
  const OnDevice<int32_t> device_fault(std::vector<int32_t>{0});
  const WorkspaceOnDevice workspace(rows, cols, 1, 1, 1);
  cuda::project_rows({device_y.data(), nullptr, 1e-5f, device_w.matrix, device_x.data(), rows, 6,
                      device_fault.data()},
                     workspace.workspace, nullptr);
  finish();
  CHECK(device_fault.read()[0] == 7);
}

// Places of the rows of one pass after the other: prompts from the start and in mid-context, chunk
// borders inside a tile of rows, several sequences, rows of a sequence in falling order.
std::vector<Pass> prefill_passes() {
  std::vector<Pass> passes;
  const auto add = [&](int sequence, int first, int end) {
    for (int p = first; p < end; ++p) {
      passes.back().sequence.push_back(sequence);
      passes.back().position.push_back(p);
    }
  };
  for (int rows : {1, 2, 3, 7, 9, 31, 64, 65, 130}) {
    passes.emplace_back();
    add(0, 0, rows);
  }
  passes.emplace_back();  // mid-context
  add(0, 130, 203);
  passes.emplace_back();  // several sequences, unequal lengths
  add(1, 0, 70);
  add(2, 0, 5);
  add(0, 203, 204);
  add(3, 0, 61);
  passes.emplace_back();
  add(3, 61, 66);
  add(0, 204, 205);
  add(1, 70, 75);
  add(2, 5, 6);
  passes.emplace_back();  // falling positions; a sequence that comes back
  add(2, 6, 140);
  std::reverse(passes.back().position.begin(), passes.back().position.end());
  add(1, 75, 77);
  add(2, 140, 142);
  return passes;
}

void check_many_rows(Random& random, const HeadShape& shape, KvType type, int dim,
                     int max_positions, int sequences, const std::vector<Pass>& passes) {
  check_qkv_and_attention(random, shape, type, dim, max_positions, sequences, passes,
                          [width = shape.q_width()](const QkvArgs& qkv, AttentionArgs attention,
                                                    const cuda::Workspace& workspace) {
                            attention.decode_rows = 0;
                            cuda::qkv_rows(qkv, workspace, nullptr);
                            cuda::attention(attention, workspace, nullptr);
                            finish();
                            const size_t n = static_cast<size_t>(attention.rows) * width;
                            const OnDevice<float> other(n);
                            float* const out = attention.out;
                            attention.out = other.data();
                            cuda::attention_without_wgmma(attention, workspace, nullptr);
                            finish();
                            std::vector<float> result(n);
                            REQUIRE(cudaMemcpy(result.data(), out, n * sizeof(float),
                                               cudaMemcpyDeviceToHost) == cudaSuccess);
                            REQUIRE(first_difference(result, other.read()) == "");
                          });
}

TEST_CASE("CUDA qkv and attention of many rows give the bits of ref", "[gpu]") {
  if (no_gpu()) return;
  Random random(34);
  const HeadShape shapes[] = {{6, 2, 64},  {5, 1, 80}, {4, 4, 96},  {2, 1, 100},  {40, 1, 64},
                              {4, 1, 128}, {3, 3, 20}, {2, 2, 256}, {18, 1, 256}, {7, 1, 36}};
  for (const HeadShape& shape : shapes) {
    for (KvType type : {KvType::kI16, KvType::kI8, KvType::kF32}) {
      check_many_rows(random, shape, type, 31, 205, 4, prefill_passes());
    }
  }
}

TEST_CASE("CUDA qkv and attention of 512 rows give the bits of ref for real shapes", "[gpu]") {
  if (no_gpu()) return;
  Random random(35);
  const HeadShape shapes[] = {{9, 3, 64}, {20, 5, 128}, {12, 4, 256}, {32, 32, 100}};
  for (const HeadShape& shape : shapes) {
    std::vector<Pass> passes(3);
    for (int p = 0; p < 700; ++p) {
      Pass& pass = passes[p < 512 ? 0u : p < 642 ? 1u : 2u];
      pass.sequence.push_back(0);
      pass.position.push_back(p);
    }
    check_many_rows(random, shape, KvType::kI16, 124, 700, 1, passes);
  }
}

TEST_CASE("CUDA qkv by each kernel gives the bits of ref", "[gpu]") {
  if (no_gpu()) return;
  Random random(37);
  const HeadShape shapes[] = {{3, 1, 64}, {2, 1, 100}};
  int dim = 32;
  for (const auto& [name, pick] : each_kernel()) {
    INFO(name);
    for (const HeadShape& shape : shapes) {
      std::vector<Pass> passes(2);
      for (int p = 0; p < 99; ++p) {
        Pass& pass = passes[p < 66 ? 0u : 1u];
        pass.sequence.push_back(0);
        pass.position.push_back(p);
      }
      check_qkv_and_attention(random, shape, KvType::kI16, dim, 100, 1, passes,
                              [&pick = pick](const QkvArgs& qkv, AttentionArgs attention,
                                             const cuda::Workspace& workspace) {
                                attention.decode_rows = 0;
                                cuda::qkv_by(pick, qkv, workspace, nullptr);
                                cuda::attention(attention, workspace, nullptr);
                              });
    }
    dim += 68;
  }
}

}  // namespace
}  // namespace edgellm
