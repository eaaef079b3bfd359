// Norms on the GPU: by themselves, of the heads of q and k, and with a gain for each product.
// Against ref, bit for bit.
#include <catch2/catch.hpp>

#include "tests/kernels/gpu_data.h"
#include "tests/kernels/op_data.h"

namespace edgellm {
namespace {

using namespace edgellm::test;

TEST_CASE("CUDA: a norm by itself gives the bits of ref", "[gpu]") {
  if (no_gpu()) return;
  Random random(91);
  for (int dim : {1, 31, 33, 257, 1000, 2560, 9001}) {
    for (int rows : {1, 2, 9}) {
      INFO("dim " << dim << ", rows " << rows);
      const std::vector<float> x = activation_rows(random, rows, dim);
      const std::vector<float> gain = gains(random, dim);
      std::vector<float> expected(x.size());
      ref::norm({x.data(), gain.data(), 1e-5f, expected.data(), rows, dim});
      const OnDevice<float> device_x(x), device_gain(gain), normed(x.size());
      cuda::norm({device_x.data(), device_gain.data(), 1e-5f, normed.data(), rows, dim}, nullptr);
      cuda::norm({device_x.data(), device_gain.data(), 1e-5f, device_x.data(), rows, dim}, nullptr);
      finish();
      REQUIRE(first_difference(expected, normed.read()) == "");
      REQUIRE(first_difference(expected, device_x.read()) == "");
    }
  }
}

TEST_CASE("CUDA: qkv with norms of the heads and gains of k and v gives the bits of ref", "[gpu]") {
  if (no_gpu()) return;
  Random random(83);
  for (const HeadShape& shape :
       {HeadShape{6, 2, 64}, {5, 1, 80}, {4, 4, 96}, {4, 1, 128}, {2, 1, 256}, {3, 3, 20}}) {
    for (Activations activations : {Activations::kInt8Row, Activations::kInt16Group}) {
      for (const int norms : {0, 1, 2, 3, 4, 8, 12, 15}) {  // bits: heads of q, of k; gains of k, v
        const int dim = 300;
        const QkvData data(random, shape, KvType::kF32, dim, /*max_positions=*/200,
                           /*sequences=*/3);
        const TernaryOnDevice q(data.q.matrix), k(data.k.matrix), v(data.v.matrix);
        const std::vector<float> q_gain = gains(random, shape.head_dim);
        const std::vector<float> k_gain = gains(random, shape.head_dim);
        const std::vector<float> k_input = gains(random, dim);
        const std::vector<float> v_input = gains(random, dim);
        const OnDevice<float> gain(data.gain), cosine(data.rope.cosine), sine(data.rope.sine),
            device_q_gain(q_gain), device_k_gain(k_gain), device_k_input(k_input),
            device_v_input(v_input);
        for (const Pass& pass : attention_passes()) {
          const int rows = static_cast<int>(pass.sequence.size());
          INFO("heads of " << shape.head_dim << ", rows " << rows << ", norms " << norms);
          const std::vector<float> x = activation_rows(random, rows, dim);
          const size_t width = pass.sequence.size() * shape.q_width();
          const size_t kv_width = pass.sequence.size() * shape.kv_width();
          std::vector<float> expected_q(width), expected_k(kv_width), expected_v(kv_width);
          int32_t fault = 0;
          QkvArgs args =
              data.args(x, pass, {expected_q.data(), expected_k.data(), expected_v.data()}, &fault);
          args.activations = activations;
          args.q_gain = (norms & 1) != 0 ? q_gain.data() : nullptr;
          args.k_gain = (norms & 2) != 0 ? k_gain.data() : nullptr;
          args.k_input_gain = (norms & 4) != 0 ? k_input.data() : nullptr;
          args.v_input_gain = (norms & 8) != 0 ? v_input.data() : nullptr;
          ref::qkv(args);
          const OnDevice<float> device_x(x), q_out(width), k_out(kv_width), v_out(kv_width);
          const OnDevice<int32_t> positions(pass.position);
          const OnDevice<int32_t> device_fault(std::vector<int32_t>{0});
          const WorkspaceOnDevice workspace(static_cast<size_t>(rows), dim, 1, 1, 1);
          args.x = device_x.data();
          args.gain = gain.data();
          args.q = q.matrix;
          args.k = k.matrix;
          args.v = v.matrix;
          args.rope_cos = cosine.data();
          args.rope_sin = sine.data();
          args.positions = positions.data();
          args.q_out = q_out.data();
          args.k_out = k_out.data();
          args.v_out = v_out.data();
          args.fault = device_fault.data();
          if (args.q_gain != nullptr) args.q_gain = device_q_gain.data();
          if (args.k_gain != nullptr) args.k_gain = device_k_gain.data();
          if (args.k_input_gain != nullptr) args.k_input_gain = device_k_input.data();
          if (args.v_input_gain != nullptr) args.v_input_gain = device_v_input.data();
          cuda::qkv(args, workspace.workspace, nullptr);
          finish();
          REQUIRE(first_difference(expected_q, q_out.read()) == "");
          REQUIRE(first_difference(expected_k, k_out.read()) == "");
          REQUIRE(first_difference(expected_v, v_out.read()) == "");
        }
      }
    }
  }
}

TEST_CASE("CUDA: ffn_up with a gain for up gives the bits of ref", "[gpu]") {
  if (no_gpu()) return;
  Random random(93);
  for (Activations activations : {Activations::kInt8Row, Activations::kInt16Group}) {
    for (const auto& [dim, ffn] : {std::pair{36, 2}, {300, 130}, {640, 864}}) {
      for (int rows : {1, 3, 9, 66}) {
        for (GateActivation act : {GateActivation::kRelu2, GateActivation::kSilu}) {
          INFO("dim " << dim << ", ffn " << ffn << ", rows " << rows);
          const TernaryData gate(random, ffn, dim), up(random, ffn, dim, true);
          const std::vector<float> x = activation_rows(random, rows, dim);
          const std::vector<float> gain = gains(random, dim);
          const std::vector<float> up_gain = gains(random, dim);
          std::vector<float> expected(static_cast<size_t>(rows * ffn));
          int32_t fault = 0;
          ref::ffn_up({x.data(), gain.data(), 1e-5f, gate.matrix, up.matrix, act, expected.data(),
                       rows, 0, &fault, activations, up_gain.data()});
          const TernaryOnDevice device_gate(gate.matrix), device_up(up.matrix);
          const OnDevice<float> device_x(x), device_gain(gain), device_up_gain(up_gain),
              u(expected.size());
          const OnDevice<int32_t> device_fault(std::vector<int32_t>{0});
          const WorkspaceOnDevice workspace(static_cast<size_t>(rows), dim, 1, 1, 1);
          cuda::ffn_up(
              {device_x.data(), device_gain.data(), 1e-5f, device_gate.matrix, device_up.matrix,
               act, u.data(), rows, 0, device_fault.data(), activations, device_up_gain.data()},
              workspace.workspace, nullptr);
          finish();
          REQUIRE(first_difference(expected, u.read()) == "");
        }
      }
    }
  }
}

}  // namespace
}  // namespace edgellm
