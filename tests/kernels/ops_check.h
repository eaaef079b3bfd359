// Single operations against inputs and outputs that another implementation recorded.
//
// The folder holds safetensors files with tensors named as those of Hugging Face's modules were:
//   KIND.INxOUT.NAME   a quantised linear layer; KIND autobitlinear (weight_scale multiplies),
//                      bitlinear (it divides) or online (weight_master_bf16, expected_ternary);
//                      NAME x [rows, in], weight u8 [out / 4, in], weight_scale, x_int8, x_scale, y
//   rmsnorm.N.epsE.{x,weight,y}
//   rope.thetaT.{positions,q,k,q_out,k_out,inv_freq}, q [1, heads, n, head_dim]
//   attention.{q,k,v,out}, q [1, heads, n, head_dim], out [1, n, heads, head_dim]
// int8 codes, their scales and ternary codes must be equal; results within 2e-6 of the row's
// largest.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace edgellm::test {

struct OpCheck {
  std::string name;     // "bitlinear.320x864"
  std::string backend;  // "ref", "cpu avx2", ...
  double worst = 0;     // largest error in units of the limit
  std::string failure;  // empty: within the limits
};

// Every operation of every .safetensors file of the folder, by ref and by each path of the CPU.
std::vector<OpCheck> check_ops(const std::filesystem::path& folder);

}  // namespace edgellm::test
