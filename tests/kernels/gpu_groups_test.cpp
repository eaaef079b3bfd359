// Activations::kInt16Group: the CUDA backend against ref, bit for bit.
#include <catch2/catch.hpp>
#include <limits>

#include "kernels/cuda/groups.h"
#include "tests/kernels/gpu_data.h"
#include "tests/kernels/op_data.h"

namespace edgellm {
namespace {

using namespace edgellm::test;

constexpr Activations kInt16 = Activations::kInt16Group;
constexpr int kBatches[] = {1, 2, 3, 4, 5, 8, 9, 16, 17, 33, 65, 130};
constexpr std::pair<cuda::PickGroups, const char*> kPicks[] = {{cuda::pick_groups, "own choice"},
                                                               {cuda::pick_group_tile, "tiles"},
                                                               {cuda::pick_group_gemm, "GEMM"}};

struct Shape {
  int cols, rows;
};
// Groups that are not full, one and many of them; rows for several blocks; rows too long for GEMV.
constexpr Shape kShapes[] = {{1, 1},     {31, 3},     {127, 5},   {128, 31},  {129, 4},  {255, 7},
                             {256, 65},  {384, 33},   {1000, 67}, {2048, 40}, {2560, 9}, {4100, 5},
                             {8192, 70}, {12288, 21}, {16300, 4}, {65000, 3}};

TEST_CASE("CUDA: attn_out and ffn_up of int16 groups give the bits of ref", "[gpu]") {
  if (no_gpu()) return;
  Random random(81);
  for (const Shape& shape : kShapes) {
    for (int rows : kBatches) {
      if (static_cast<int64_t>(shape.cols) * shape.rows * rows > 6'000'000) continue;
      const TernaryData w = int16_weights(random, shape.rows, shape.cols, random.below(4));
      const TernaryData up = int16_weights(random, shape.rows, shape.cols, random.below(4));
      const std::vector<float> y = activation_rows(random, rows, shape.cols);
      const std::vector<float> gain = gains(random, shape.cols);
      const bool has_gain = random.below(2) == 1;
      const GateActivation act =
          random.below(2) == 1 ? GateActivation::kSilu : GateActivation::kRelu2;
      const std::vector<float> x = random.normals(static_cast<size_t>(rows * shape.rows), 3.0f);
      int32_t fault = 0;
      std::vector<float> expected = x;
      ref::attn_out({y.data(), has_gain ? gain.data() : nullptr, 1e-5f, w.matrix, expected.data(),
                     rows, 0, &fault, kInt16});
      std::vector<float> expected_u(x.size());
      ref::ffn_up({y.data(), gain.data(), 1e-5f, w.matrix, up.matrix, act, expected_u.data(), rows,
                   0, &fault, kInt16});
      const TernaryOnDevice device_w(w.matrix), device_up(up.matrix);
      const OnDevice<float> device_y(y), device_gain(gain);
      for (const auto& [pick, name] : kPicks) {
        INFO("cols " << shape.cols << ", weight rows " << shape.rows << ", rows " << rows
                     << ", gain " << has_gain << ", " << name);
        const OnDevice<float> device_x(x), device_u(x.size());
        const OnDevice<int32_t> device_fault(std::vector<int32_t>{0});
        const WorkspaceOnDevice workspace(static_cast<size_t>(rows), shape.cols, 1, 1, 1);
        cuda::project_groups(
            {device_y.data(), has_gain ? device_gain.data() : nullptr, 1e-5f, device_w.matrix,
             device_x.data(), rows, 0, device_fault.data(), kInt16},
            pick, workspace.workspace, nullptr);
        cuda::ffn_up_groups(
            {device_y.data(), device_gain.data(), 1e-5f, device_w.matrix, device_up.matrix, act,
             device_u.data(), rows, 0, device_fault.data(), kInt16},
            pick, workspace.workspace, nullptr);
        finish();
        REQUIRE(first_difference(expected, device_x.read()) == "");
        REQUIRE(first_difference(expected_u, device_u.read()) == "");
        REQUIRE(device_fault.read()[0] == fault);
      }
    }
  }
}

TEST_CASE("CUDA: rows of int16 groups may start anywhere", "[gpu]") {
  if (no_gpu()) return;
  Random random(82);
  const int cols = 640;
  const TernaryData w = TernaryData::grouped(random, 21, cols, DenseType::kF16);
  const TernaryOnDevice device_w(w.matrix);
  std::vector<float> y = random.normals(static_cast<size_t>(cols) + 1);
  const OnDevice<float> device_y(y);
  for (int shift : {0, 1}) {
    std::vector<float> expected(21, 0.5f);
    const OnDevice<float> x(expected);
    int32_t fault = 0;
    ref::attn_out({y.data() + shift, nullptr, 0, w.matrix, expected.data(), 1, 0, &fault, kInt16});
    const OnDevice<int32_t> device_fault(std::vector<int32_t>{0});
    const WorkspaceOnDevice workspace(1, cols, 1, 1, 1);
    cuda::attn_out({device_y.data() + shift, nullptr, 0, device_w.matrix, x.data(), 1, 0,
                    device_fault.data(), kInt16},
                   workspace.workspace, nullptr);
    finish();
    REQUIRE(first_difference(expected, x.read()) == "");
  }
}

TEST_CASE("CUDA: a ternary table and head give the bits of ref", "[gpu]") {
  if (no_gpu()) return;
  Random random(84);
  for (const auto& [dim, vocab] : {std::pair{4, 1},
                                   {36, 131},
                                   {128, 64},
                                   {300, 65},
                                   {640, 1000},
                                   {2564, 33},
                                   {256, 127},
                                   {128, 20011}}) {
    for (int rows : {1, 2, 5, 70}) {
      INFO("dim " << dim << ", vocab " << vocab << ", rows " << rows);
      const TernaryData table = int16_weights(random, vocab, dim, random.below(4));
      std::vector<int32_t> ids, row_list, banned;
      for (int r = 0; r < rows; ++r) {
        ids.push_back(random.below(vocab));
        row_list.push_back(rows - 1 - r);
      }
      for (int b = vocab > 1 ? random.below(3) : 0; b > 0; --b)
        banned.push_back(random.below(vocab));
      const size_t n = static_cast<size_t>(rows) * static_cast<size_t>(dim);
      const size_t n_logits = static_cast<size_t>(rows) * static_cast<size_t>(vocab);
      std::vector<float> x(n), normed(n), logits(n_logits);
      std::vector<int32_t> argmax(static_cast<size_t>(rows));
      const DenseMatrix sizes{nullptr, DenseType::kF32, vocab, dim};
      ref::embed({sizes, ids.data(), x.data(), rows, table.matrix});
      const std::vector<float> gain = gains(random, dim);
      const std::vector<float> hidden = activation_rows(random, rows, dim);
      int32_t fault = 0;
      HeadArgs args;
      args.x = hidden.data();
      args.row_list = row_list.data();
      args.gain = gain.data();
      args.eps = 1e-5f;
      args.w = sizes;
      args.ternary = table.matrix;
      args.normed = normed.data();
      args.logits = logits.data();
      args.argmax = argmax.data();
      args.banned = banned.data();
      args.n_banned = static_cast<int>(banned.size());
      args.rows = rows;
      args.fault = &fault;
      ref::head(args);

      const TernaryOnDevice device_table(table.matrix);
      const OnDevice<int32_t> device_ids(ids), device_list(row_list), device_argmax(argmax.size()),
          device_fault(std::vector<int32_t>{0}), device_banned(banned);
      const OnDevice<float> device_x(n), device_normed(n), device_logits(n_logits),
          device_gain(gain), device_hidden(hidden);
      const WorkspaceOnDevice workspace(static_cast<size_t>(rows), dim, 1, 1, 1);
      cuda::embed({sizes, device_ids.data(), device_x.data(), rows, device_table.matrix}, nullptr);
      args.x = device_hidden.data();
      args.row_list = device_list.data();
      args.gain = device_gain.data();
      args.ternary = device_table.matrix;
      args.normed = device_normed.data();
      args.logits = device_logits.data();
      args.argmax = device_argmax.data();
      args.banned = device_banned.data();
      args.fault = device_fault.data();
      for (int run = 0; run < 2; ++run) {  // the second finds the workspace as the first left it
        cuda::head(args, workspace.workspace, nullptr);
        finish();
        REQUIRE(first_difference(x, device_x.read()) == "");
        REQUIRE(first_difference(normed, device_normed.read()) == "");
        REQUIRE(first_difference(logits, device_logits.read()) == "");
        REQUIRE(first_difference(argmax, device_argmax.read()) == "");
        REQUIRE(device_fault.read()[0] == fault);
      }
    }
  }
}

TEST_CASE("CUDA: a value that is not finite raises the fault of int16 groups", "[gpu]") {
  if (no_gpu()) return;
  Random random(85);
  const TernaryData w = TernaryData::grouped(random, 9, 300, DenseType::kF16);
  const TernaryOnDevice device_w(w.matrix);
  for (float bad :
       {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    for (int at : {0, 140, 299}) {
      for (int rows : {1, 2}) {
        std::vector<float> y = random.normals(static_cast<size_t>(rows) * 300);
        y[static_cast<size_t>((rows - 1) * 300 + at)] = bad;
        int32_t fault = 0;
        std::vector<float> expected(static_cast<size_t>(rows) * 9, 1.0f);
        const OnDevice<float> x(expected), device_y(y);
        ref::ffn_down({y.data(), nullptr, 0, w.matrix, expected.data(), rows, 4, &fault, kInt16});
        const OnDevice<int32_t> device_fault(std::vector<int32_t>{0});
        const WorkspaceOnDevice workspace(static_cast<size_t>(rows), 300, 1, 1, 1);
        cuda::ffn_down({device_y.data(), nullptr, 0, device_w.matrix, x.data(), rows, 4,
                        device_fault.data(), kInt16},
                       workspace.workspace, nullptr);
        finish();
        REQUIRE(device_fault.read()[0] == fault);
        REQUIRE(first_difference(expected, x.read()) == "");
      }
    }
  }
}

}  // namespace
}  // namespace edgellm
