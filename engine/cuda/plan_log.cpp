#include "engine/cuda/plan_log.h"

#include <string>

#include "base/log.h"
#include "engine/views.h"
#include "kernels/cuda/plan/text.h"

namespace edgellm {

void log_plans(const ModelFile& model, KvType kv_type, const cuda::Workspace& workspace,
               std::initializer_list<int> numbers_of_rows) {
  if (!log_enabled(LogLevel::kDebug)) return;
  const ModelConfig& config = model.config();
  const cuda::DeviceTraits device = cuda::device_traits();
  for (const int rows : numbers_of_rows) {
    const auto line = [&](const char* op, const std::string& plan) {
      log(LogLevel::kDebug, "kernels of " + std::to_string(rows) + " rows, " + op + ": " + plan);
    };
    const auto product = [&](const char* op, int cols, int pairs, bool has_gain) {
      line(op, text_of(cuda::pick_linear({rows, cols, pairs, has_gain, true}, device)));
    };
    product("qkv", config.dim, (config.q_dim() + 2 * config.kv_dim()) / 2, true);
    cuda::AttentionSize attention;
    attention.rows = rows;
    attention.decode_rows = rows;
    attention.heads = config.heads;
    attention.kv_heads = config.kv_heads;
    attention.head_dim = config.head_dim;
    attention.type = kv_type;
    attention.cache_chunks = workspace.max_chunks;
    attention.states_rows = workspace.attention_rows;
    attention.states_chunks = workspace.max_chunks;
    line("attention", text_of(cuda::pick_attention(attention, device)));
    product("attn_out", config.q_dim(), config.dim / 2, config.attn_sub_norm);
    product("ffn_up", config.dim, config.ffn, true);
    product("ffn_down", config.ffn, config.dim / 2, config.ffn_sub_norm);
    const cuda::HeadSize head{rows, config.vocab, config.dim, view(model.weights().head).type};
    line("head", text_of(cuda::pick_logits(head, device)));
  }
}

}  // namespace edgellm
