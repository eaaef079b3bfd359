#include "kernels/cuda/plan/text.h"

#include <sstream>

namespace edgellm::cuda {
namespace {

std::string text_of(const LaunchSize& launch) {
  std::ostringstream out;
  out << "grid " << launch.blocks[0];
  if (launch.blocks[1] * launch.blocks[2] > 1) out << " x " << launch.blocks[1];
  if (launch.blocks[2] > 1) out << " x " << launch.blocks[2];
  out << ", " << launch.threads << " threads, " << launch.shared_bytes << " bytes";
  return out.str();
}

std::string text_of(const ShortGemvPlan& plan) {
  const ShortGemv& kernel = kShortGemvs[plan.instance];
  std::ostringstream out;
  out << "short GEMV of " << kernel.steps << " steps, " << kernel.pairs << " pairs, "
      << kernel.quads << " quads: " << plan.warps << " warps, " << text_of(plan.launch);
  return out.str();
}
std::string text_of(const LongGemvPlan& plan) {
  std::ostringstream out;
  out << "long GEMV of " << plan.pairs_at_once
      << (plan.by_fours ? " pairs, by fours: " : " pairs: ") << plan.cut.warps << " warps of "
      << plan.cut.pairs_per_warp << " pairs, " << text_of(plan.launch);
  return out.str();
}
std::string text_of(const SkinnyPlan& plan) {
  std::ostringstream out;
  out << "skinny GEMM of " << plan.row_tiles << " x " << plan.token_tiles << " tiles, "
      << kSkinnyKinds[plan.kind].quads << " quads: " << text_of(plan.launch);
  return out.str();
}
std::string text_of(const QuantisePlan& plan) {
  return "quantise by " + std::to_string(plan.launch.threads) + ", " + std::to_string(plan.kept) +
         " loads" + (plan.by_fours ? " of four" : "") + (plan.early ? ", early" : "");
}
std::string text_of(const GemmPlan& plan) {
  const TernaryCut& cut = cut_of(plan.tile);
  std::ostringstream out;
  out << text_of(plan.quantise) << "; GEMM " << cut.rows() << " x " << cut.tokens() << ": "
      << text_of(plan.launch);
  return out.str();
}
std::string text_of(const WgmmaGemmPlan& plan) {
  const WgmmaCut& cut = kWgmmaTiles[plan.tile];
  std::ostringstream out;
  out << text_of(plan.quantise) << "; wgmma GEMM " << 2 * cut.pairs() << " x " << cut.tokens;
  if (plan.parts > 1) out << " in " << plan.parts << " parts";
  out << ": " << text_of(plan.launch);
  return out.str();
}

std::string code_text(const LaunchSize& code) {
  return code.threads > 0 ? "code by " + std::to_string(code.threads) + "; " : "";
}
std::string text_of(const GroupGemvPlan& plan) {
  return code_text(plan.code) + "GEMV of groups: " + text_of(plan.launch);
}
std::string text_of(const GroupTilePlan& plan) {
  return code_text(plan.code) + "tiles of groups, " +
         std::to_string(kGroupTiles[plan.tile].tokens()) + " rows: " + text_of(plan.launch);
}
std::string text_of(const GroupGemmPlan& plan) {
  return code_text(plan.code) + "GEMM of groups: " + text_of(plan.launch);
}

std::string text_of(const BoundsPlan& plan) {
  std::ostringstream out;
  out << "bounds, " << plan.group << " lanes, " << plan.tokens
      << " tokens: " << text_of(plan.launch);
  return out.str();
}
std::string text_of(const DigitBoundsPlan& plan) {
  const DigitCut& cut = cut_of(plan.tile);
  std::ostringstream out;
  out << "bounds of digits " << cut.rows() << " x " << cut.tokens() << ", " << cut.stages
      << " stages: " << text_of(plan.launch);
  return out.str();
}

}  // namespace

std::string text_of(const LinearPlan& plan) {
  return std::visit([](const auto& kernel) { return text_of(kernel); }, plan);
}

std::string text_of(const GroupPlan& plan) {
  return std::visit([](const auto& kernel) { return text_of(kernel); }, plan);
}

std::string text_of(const LayerEndPlan& plan) { return "in one launch: " + text_of(plan.launch); }

std::string text_of(const AttentionPlan& plan) {
  std::ostringstream out;
  if (plan.floats) out << "floats: " << text_of(plan.floats->launch);
  if (plan.decode) {
    out << "decode of " << plan.decode->slabs << " slabs, " << plan.decode->columns
        << " x 4 heads, " << plan.decode->round
        << (plan.decode->round == 1 ? " chunk, " : " chunks, ") << plan.decode->slots << " tiles"
        << (plan.decode->sent > 0 ? ", in clusters: " : ": ") << text_of(plan.decode->launch);
  }
  if (plan.code) {
    out << (plan.decode ? "; " : "") << "code for " << plan.code->dims
        << (plan.code->in_lanes ? ", in lanes: " : ": ") << text_of(plan.code->launch) << "; ";
  }
  if (plan.prefill) {
    out << "prefill for " << plan.prefill->dims << ", " << plan.prefill->slots
        << " tiles: " << text_of(plan.prefill->launch);
  }
  if (plan.wgmma) {
    out << "wgmma of " << plan.wgmma->slabs << " slabs, " << plan.wgmma->groups
        << " warpgroups: " << text_of(plan.wgmma->launch);
  }
  return out.str();
}

std::string text_of(const LogitsPlan& plan) {
  if (plan.whole_rows) return "logits of whole rows: " + text_of(plan.launch);
  const std::string tokens =
      plan.token_warps > 0 ? "of " + std::to_string(plan.token_warps * kLogitTokens) + " rows "
                           : "";
  return "logits " + tokens + (plan.tiled ? "by fours: " : "one by one: ") + text_of(plan.launch);
}

std::string text_of(const CertifiedPlan& plan) {
  return std::visit([](const auto& bounds) { return text_of(bounds); }, plan.bounds) +
         "; rescore " + std::to_string(plan.scans) + " scans, grid " +
         std::to_string(plan.rescore.blocks[0]);
}

}  // namespace edgellm::cuda
