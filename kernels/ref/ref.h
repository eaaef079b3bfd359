// The reference backend: plain loops in the canonical arithmetic, written to be read. It is what
// the fast backends are compared with, bit for bit; a double-precision oracle in the tests checks
// the reference itself.
#pragma once

#include "kernels/ops.h"

namespace edgellm::ref {

void embed(const EmbedArgs& args);
void norm(const NormArgs& args);
void qkv(const QkvArgs& args);
void attention(const AttentionArgs& args);
void attn_out(const ProjectArgs& args);
void ffn_up(const FfnUpArgs& args);
void ffn_down(const ProjectArgs& args);
void head(const HeadArgs& args);
void choose(const ChooseArgs& args);
void logprobs(const LogprobArgs& args);

// Element of a KV tile (ops.h) that holds dimension `d` of `position`: [position, head_dim].
inline size_t key_index(int position, int d, int head_dim) {
  return static_cast<size_t>(position % kAttentionChunk) * static_cast<size_t>(head_dim) +
         static_cast<size_t>(d);
}
inline size_t value_index(int position, int d, int head_dim) {
  return key_index(position, d, head_dim);
}

// One activation row as int8 codes: code = rint(value * s).
struct QuantisedRow {
  float s = 1.0f;  // codes per unit
  float r = 1.0f;  // RMS factor of a folded norm; 1 where there is none
  bool finite = true;
};

// Quantises n values of x, through the folded norm where gain is given. codes [n] out.
QuantisedRow quantise_row(const float* x, const float* gain, float eps, int n, int8_t* codes);

}  // namespace edgellm::ref
