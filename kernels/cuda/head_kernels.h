// The kernels behind the heads, launched by plan (plan/head.h).
#pragma once

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/plan/head.h"

namespace edgellm::cuda {

// head_logits.cu: the final norm of each row into head.normed; then logits and, where it is wanted,
// the arg-max.
void launch_norm(const LogitsPlan& plan, const HeadArgs& args, cudaStream_t stream);
void launch_logits(const LogitsPlan& plan, const HeadArgs& args, const Workspace& workspace,
                   cudaStream_t stream);

// head_logits_tile.cu: logits and arg-max, by a plan with `whole_rows`.
void launch_logit_tiles(const LogitsPlan& plan, const HeadArgs& args, const Workspace& workspace,
                        cudaStream_t stream);

// head_certified.cu: the final norm and its steps or digits; then, by launch_bounds(), all upper
// bounds into head.logits and the largest lower one of each row into `Workspace::lower`, or those
// of its groups into `group_lower`; then the logits that can be the largest, and the arg-max.
void launch_steps(const CertifiedPlan& plan, const HeadArgs& args, const Workspace& workspace,
                  cudaStream_t stream);
void launch_bounds(const BoundsPlan& plan, const CertifiedHeadArgs& args,
                   const Workspace& workspace, cudaStream_t stream);
void launch_bounds(const BoundsPlan& plan, const CertifiedChooseArgs& args,
                   const Workspace& workspace, cudaStream_t stream);
void launch_rescore(const CertifiedPlan& plan, const CertifiedHeadArgs& args,
                    const Workspace& workspace, cudaStream_t stream);
// head_certified_rows.cu: the bounds from digits.
void launch_bounds(const DigitBoundsPlan& plan, const CertifiedHeadArgs& args,
                   const Workspace& workspace, cudaStream_t stream);
void launch_bounds(const DigitBoundsPlan& plan, const CertifiedChooseArgs& args,
                   const Workspace& workspace, cudaStream_t stream);

// head_candidates.cu: what the kept logits of each row reach, from `group_lower`; then the logits
// that can be among them, in place of their bounds, and `listed` for all ids.
void launch_least(const CertifiedPlan& plan, const CertifiedChooseArgs& args,
                  const Workspace& workspace, cudaStream_t stream);
void launch_candidates(const CertifiedPlan& plan, const CertifiedChooseArgs& args,
                       const Workspace& workspace, cudaStream_t stream);

// choose.cu: the choice of ChooseArgs among the ids with set bits in `listed` (Workspace), whose
// logits alone are read.
void choose_listed(const ChooseArgs& args, const uint32_t* listed, cudaStream_t stream);

}  // namespace edgellm::cuda
