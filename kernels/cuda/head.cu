// head, certified_head and certified_choose: the dispatcher.
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/groups.h"
#include "kernels/cuda/head_kernels.h"

namespace edgellm::cuda {
namespace {

HeadSize size_of(const HeadArgs& args) {
  return {args.rows, args.w.rows, args.w.cols, args.w.type};
}

}  // namespace

void head(const HeadArgs& args, const Workspace& workspace, cudaStream_t stream) {
  const LogitsPlan plan = pick_logits(size_of(args), current_device());
  launch_norm(plan, args, stream);
  if (args.w.rows == 0) return;
  if (args.w.data == nullptr) return head_groups(args, pick_groups, workspace, stream);
  launch_logits(plan, args, workspace, stream);
}

void certified_head(const CertifiedHeadArgs& args, const Workspace& workspace,
                    cudaStream_t stream) {
  const CertifiedPlan plan = pick_certified(size_of(args.head), current_device());
  launch_steps(plan, args.head, workspace, stream);
  std::visit([&](const auto& bounds) { launch_bounds(bounds, args, workspace, stream); },
             plan.bounds);
  launch_rescore(plan, args, workspace, stream);
}

void certified_choose(const CertifiedChooseArgs& args, const Workspace& workspace,
                      cudaStream_t stream) {
  const CertifiedPlan plan = pick_certified(size_of(args.head), current_device());
  launch_steps(plan, args.head, workspace, stream);
  std::visit([&](const auto& bounds) { launch_bounds(bounds, args, workspace, stream); },
             plan.bounds);
  launch_least(plan, args, workspace, stream);
  launch_candidates(plan, args, workspace, stream);
  ChooseArgs choice = args.choose;
  choice.logits = args.head.logits;
  choose_listed(choice, workspace.listed, stream);
}

}  // namespace edgellm::cuda
