// The CUDA backend against ref, bit for bit: every op, odd sizes, rows alone and together.
#include <catch2/catch.hpp>

#include "kernels/cuda/cuda.h"
#include "tests/kernels/gpu_data.h"
#include "tests/kernels/op_data.h"

namespace edgellm {
namespace {

using namespace edgellm::test;

constexpr int kBatches[] = {1, 2, 3, 5, 8, 9, 65};

TEST_CASE("CUDA attn_out and ffn_down give the bits of ref", "[gpu]") {
  if (no_gpu()) return;
  Random random(21);
  const std::pair<int, int> shapes[] = {{4, 1},     {36, 3},     {124, 33},  {252, 64},
                                        {256, 129}, {576, 65},   {1028, 20}, {2560, 40},
                                        {6912, 24}, {14336, 17}, {23040, 9}};
  for (const auto& [cols, dim] : shapes) {
    for (int rows : kBatches) {
      for (bool sub_norm : {false, true}) {
        INFO("cols " << cols << ", dim " << dim << ", rows " << rows << ", sub-norm " << sub_norm);
        const TernaryData w(random, dim, cols, random.below(2) == 1);
        const std::vector<float> y = activation_rows(random, rows, cols);
        const std::vector<float> gain = gains(random, cols);
        const std::vector<float> x = random.normals(static_cast<size_t>(rows * dim), 3.0f);
        std::vector<float> expected = x;
        int32_t fault = 0;
        ref::attn_out({y.data(), sub_norm ? gain.data() : nullptr, 1e-5f, w.matrix, expected.data(),
                       rows, 0, &fault});
        const TernaryOnDevice device_w(w.matrix);
        const OnDevice<float> device_y(y), device_gain(gain), device_x(x);
        const OnDevice<int32_t> device_fault(std::vector<int32_t>{0});
        const WorkspaceOnDevice workspace(static_cast<size_t>(rows), cols, 1, 1, 1);
        cuda::attn_out({device_y.data(), sub_norm ? device_gain.data() : nullptr, 1e-5f,
                        device_w.matrix, device_x.data(), rows, 0, device_fault.data()},
                       workspace.workspace, nullptr);
        finish();
        REQUIRE(first_difference(expected, device_x.read()) == "");
        REQUIRE(device_fault.read()[0] == 0);
      }
    }
  }
}

TEST_CASE("CUDA ffn_up gives the bits of ref", "[gpu]") {
  if (no_gpu()) return;
  Random random(22);
  for (const auto& [dim, ffn] : {std::pair{36, 31}, {320, 864}, {576, 129}, {2560, 70}}) {
    for (int rows : kBatches) {
      for (GateActivation act : {GateActivation::kRelu2, GateActivation::kSilu}) {
        INFO("dim " << dim << ", ffn " << ffn << ", rows " << rows);
        const TernaryData gate(random, ffn, dim);
        const TernaryData up(random, ffn, dim, true);
        const std::vector<float> x = activation_rows(random, rows, dim);
        const std::vector<float> gain = gains(random, dim);
        int32_t fault = 0;
        std::vector<float> expected(static_cast<size_t>(rows * ffn));
        ref::ffn_up({x.data(), gain.data(), 1e-5f, gate.matrix, up.matrix, act, expected.data(),
                     rows, 0, &fault});
        const TernaryOnDevice device_gate(gate.matrix), device_up(up.matrix);
        const OnDevice<float> device_x(x), device_gain(gain), u(expected.size());
        const OnDevice<int32_t> device_fault(std::vector<int32_t>{0});
        const WorkspaceOnDevice workspace(static_cast<size_t>(rows), dim, 1, 1, 1);
        cuda::ffn_up({device_x.data(), device_gain.data(), 1e-5f, device_gate.matrix,
                      device_up.matrix, act, u.data(), rows, 0, device_fault.data()},
                     workspace.workspace, nullptr);
        finish();
        REQUIRE(first_difference(expected, u.read()) == "");
      }
    }
  }
}

TEST_CASE("CUDA qkv and attention give the bits of ref", "[gpu]") {
  if (no_gpu()) return;
  Random random(23);
  const HeadShape shapes[] = {{6, 2, 64},  {5, 1, 80}, {4, 4, 96},  {2, 1, 100}, {7, 1, 64},
                              {4, 1, 128}, {3, 3, 20}, {2, 2, 256}, {18, 2, 32}, {20, 5, 128}};
  for (const HeadShape& shape : shapes) {
    for (KvType type : {KvType::kF16, KvType::kF32}) {
      check_qkv_and_attention(
          random, shape, type, 4 * 31, 200, 3, attention_passes(),
          [](const CacheData& cache, AttentionArgs args) {
            args.kv = cache.cache;
            ref::attention(args);
          },
          [](const QkvArgs& qkv, const AttentionArgs& attention, const cuda::Workspace& workspace) {
            cuda::qkv(qkv, workspace, nullptr);
            cuda::attention(attention, workspace, nullptr);
          });
    }
  }
}

TEST_CASE("CUDA embed and head give the bits of ref", "[gpu]") {
  if (no_gpu()) return;
  Random random(24);
  for (DenseType type : {DenseType::kF32, DenseType::kF16, DenseType::kBF16}) {
    for (const auto& [dim, vocab] :
         {std::pair{4, 1}, {36, 131}, {320, 65}, {628, 1000}, {2564, 33}, {256, 20001}}) {
      for (int rows : {1, 2, 5}) {
        INFO("dim " << dim << ", vocab " << vocab << ", rows " << rows);
        const DenseData table(random, vocab, dim, type);
        const DenseData w(random, vocab, dim, type);
        const std::vector<float> gain = gains(random, dim);
        std::vector<int32_t> ids, row_list;
        for (int r = 0; r < rows; ++r) {
          ids.push_back(random.below(vocab));
          row_list.push_back(rows - 1 - r);
        }
        const std::vector<int32_t> banned = {random.below(vocab)};
        std::vector<float> x(static_cast<size_t>(rows * dim)), normed(x.size());
        std::vector<float> logits(static_cast<size_t>(rows * vocab));
        std::vector<int32_t> argmax(static_cast<size_t>(rows));
        int32_t fault = 0;
        ref::embed({table.matrix, ids.data(), x.data(), rows});
        HeadArgs args{x.data(),      row_list.data(), gain.data(),   1e-5f, w.matrix, normed.data(),
                      logits.data(), argmax.data(),   banned.data(), 1,     rows,     0,
                      &fault};
        ref::head(args);

        const OnDevice<uint8_t> table_bytes(table.bytes), w_bytes(w.bytes);
        const OnDevice<int32_t> device_ids(ids), device_rows(row_list), device_banned(banned);
        const OnDevice<float> device_gain(gain), device_x(x.size()), device_normed(x.size());
        const OnDevice<float> device_logits(logits.size());
        const OnDevice<int32_t> device_argmax(argmax.size());
        const OnDevice<int32_t> device_fault(std::vector<int32_t>{0});
        const WorkspaceOnDevice workspace(static_cast<size_t>(rows), dim, 1, 1, 1);
        cuda::embed(
            {{table_bytes.data(), type, vocab, dim}, device_ids.data(), device_x.data(), rows},
            nullptr);
        const HeadArgs device{device_x.data(),
                              device_rows.data(),
                              device_gain.data(),
                              1e-5f,
                              {w_bytes.data(), type, vocab, dim},
                              device_normed.data(),
                              device_logits.data(),
                              device_argmax.data(),
                              device_banned.data(),
                              1,
                              rows,
                              0,
                              device_fault.data()};
        // Twice: the counters of the arg-max must come back to zero.
        for (int i = 0; i < 2; ++i) cuda::head(device, workspace.workspace, nullptr);
        finish();
        REQUIRE(first_difference(x, device_x.read()) == "");
        REQUIRE(first_difference(normed, device_normed.read()) == "");
        REQUIRE(first_difference(logits, device_logits.read()) == "");
        REQUIRE(first_difference(argmax, device_argmax.read()) == "");
      }
    }
  }
}

}  // namespace
}  // namespace edgellm
