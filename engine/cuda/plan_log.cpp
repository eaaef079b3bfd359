#include "engine/cuda/plan_log.h"

#include <string>

#include "base/log.h"
#include "engine/views.h"
#include "kernels/cuda/plan/text.h"

namespace edgellm {
namespace {

class PlanLog {
 public:
  PlanLog(const ModelFile& model, const EngineOptions& options, const cuda::Workspace& workspace,
          bool has_certified_head)
      : config_(model.config()),
        head_type_(view(model.weights().head).type),
        has_ternary_head_(model.weights().ternary_head.codes != nullptr),
        kv_type_(options.kv_type),
        workspace_(workspace),
        has_certified_head_(has_certified_head) {}

  // A step with a row of each of `rows` sequences.
  void step(int rows) {
    pass_ = "kernels of a step of " + std::to_string(rows) + ", ";
    layer(rows, rows);
    if (has_ternary_head_) {
      const cuda::LinearSize head{rows, config_.dim, cuda::divide_up(config_.vocab, 2), false,
                                  true};
      line("head", text_of(cuda::pick_groups(head, device_)));
      return;
    }
    const cuda::HeadSize head{rows, config_.vocab, config_.dim, head_type_};
    if (has_certified_head_) line("certified head", text_of(cuda::pick_certified(head, device_)));
    line("head", text_of(cuda::pick_logits(head, device_)));
  }

  // `rows` rows of one sequence's prompt.
  void prefill(int rows) {
    pass_ = "kernels of " + std::to_string(rows) + " rows of a prompt, ";
    layer(rows, rows == 1 ? 1 : 0);
  }

 private:
  void layer(int rows, int decode_rows) {
    product("qkv", rows, config_.dim, (config_.q_dim() + 2 * config_.kv_dim()) / 2, true);
    cuda::AttentionSize attention;
    attention.rows = rows;
    attention.decode_rows = decode_rows;
    attention.heads = config_.heads;
    attention.kv_heads = config_.kv_heads;
    attention.head_dim = config_.head_dim;
    attention.type = kv_type_;
    attention.states_rows = workspace_.attention_rows;
    attention.states_chunks = workspace_.max_chunks;
    // Few decode rows have a plan for each reach: the first, and that of the whole context.
    attention.decode_chunks = workspace_.max_chunks;
    line("attention", text_of(cuda::pick_attention(attention, device_)));
    const int shortest = decode_reach(decode_rows, 1) / kIntegerChunk;
    if (decode_rows > 0 && shortest > 0 && shortest < workspace_.max_chunks) {
      attention.decode_chunks = shortest;
      line("attention in short contexts", text_of(cuda::pick_attention(attention, device_)));
    }
    if (!config_.input_norms && config_.activation_quant == ActivationQuant::kInt8Row) {
      const cuda::LayerEndSize end{rows, config_.q_dim(), config_.dim, config_.ffn,
                                   config_.ffn_sub_norm};
      if (const auto plan = cuda::pick_layer_end(end, device_)) {
        line("attn_out, ffn_up and ffn_down", text_of(*plan));
        return;
      }
    }
    const int row_pairs = cuda::divide_up(config_.dim, 2);
    product("attn_out", rows, config_.q_dim(), row_pairs, config_.attn_sub_norm, true);
    product("ffn_up", rows, config_.dim, config_.ffn, true);
    product("ffn_down", rows, config_.ffn, row_pairs, config_.ffn_sub_norm);
  }

  void product(const char* op, int rows, int cols, int pairs, bool has_gain,
               bool before_ffn_up = false) {
    const cuda::LinearSize size{rows, cols, pairs, has_gain, true, before_ffn_up};
    line(op, config_.activation_quant == ActivationQuant::kInt16Group
                 ? text_of(cuda::pick_groups(size, device_))
                 : text_of(cuda::pick_linear(size, device_)));
  }

  void line(const char* op, const std::string& plan) {
    log(LogLevel::kDebug, pass_ + op + ": " + plan);
  }

  const ModelConfig& config_;
  DenseType head_type_;
  bool has_ternary_head_;
  KvType kv_type_;
  const cuda::Workspace& workspace_;
  bool has_certified_head_;
  cuda::DeviceTraits device_ = cuda::device_traits();
  std::string pass_;
};

}  // namespace

void log_plans(const ModelFile& model, const EngineOptions& options,
               const cuda::Workspace& workspace, bool has_certified_head) {
  if (!log_enabled(LogLevel::kDebug)) return;
  PlanLog plans(model, options, workspace, has_certified_head);
  plans.step(1);
  if (options.sequences > 1) plans.step(options.sequences);
  plans.prefill(options.max_rows);
}

}  // namespace edgellm
