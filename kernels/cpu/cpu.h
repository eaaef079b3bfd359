// The CPU backend: the ops of kernels/ops.h on a pool of threads, with the inner loops of the
// pool's instruction set. The bits are those of `ref`, for any number of threads and any
// instruction set.
#pragma once

#include "kernels/cpu/pool.h"
#include "kernels/ops.h"

namespace edgellm::cpu {

void embed(const EmbedArgs& args, Pool& pool);
void norm(const NormArgs& args, Pool& pool);
void qkv(const QkvArgs& args, Pool& pool);
void attention(const AttentionArgs& args, Pool& pool);
void attn_out(const ProjectArgs& args, Pool& pool);
void ffn_up(const FfnUpArgs& args, Pool& pool);
void ffn_down(const ProjectArgs& args, Pool& pool);
void head(const HeadArgs& args, Pool& pool);
void certified_head(const CertifiedHeadArgs& args, Pool& pool);
void choose(const ChooseArgs& args, Pool& pool);
void certified_choose(const CertifiedChooseArgs& args, Pool& pool);
void logprobs(const LogprobArgs& args, Pool& pool);

// Builds the certified head of `w`, at most kMaxCertifiedCols columns: codes [rows, pitch] and
// row_bounds [rows].
void build_certified_head(const DenseMatrix& w, uint8_t* codes, CertifiedRow* row_bounds,
                          Pool& pool);

}  // namespace edgellm::cpu
