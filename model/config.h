// Every hyperparameter of a model, validated in one function. Nothing else in the program knows a
// size that is not read from here.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace edgellm {

enum class Activation : uint8_t {
  kRelu2,  // relu(gate)^2 * up (BitNet-b1.58-2B-4T)
  kSilu,   // silu(gate) * up, SwiGLU (LLaMA-shaped models, 1bitLLM)
};

const char* to_string(Activation act);  // "relu2", "silu": the names of Hugging Face's hidden_act

// How activations are coded before a ternary product (docs/numerics.md).
enum class ActivationQuant : uint8_t {
  kInt8Row,     // int8, a scale for each row: BitNet and its relatives, which are trained so
  kInt16Group,  // as good as float: models trained with float activations
};

const char* to_string(ActivationQuant quant);  // "int8_row", "int16_group": the file's names

// rope_scaling of type "llama3", the four numbers as found in config.json.
struct Llama3RopeScaling {
  double factor = 0;
  double low_freq_factor = 0;
  double high_freq_factor = 0;
  int64_t original_max_position = 0;
};

// rope_scaling of type "yarn" (Peng et al., arXiv 2309.00071), with transformers' defaults filled
// in.
struct YarnRopeScaling {
  double factor = 0;
  int64_t original_max_position = 0;
  double beta_fast = 32;
  double beta_slow = 1;
  float attention_factor = 1;  // every cos and sin is multiplied by it

  // What attention_factor is where a model does not say.
  static double default_attention_factor(double factor);
};

struct ModelConfig {
  std::string architecture;  // as in config.json: "BitNetForCausalLM", "LlamaForCausalLM", ...
  int layers = 0;
  int dim = 0;       // hidden size: width of the residual stream
  int ffn = 0;       // intermediate size of the feed-forward network
  int heads = 0;     // query heads
  int kv_heads = 0;  // key/value heads; query head i reads kv head i / (heads / kv_heads)
  int head_dim = 0;
  int vocab = 0;
  int max_context = 0;  // positions the model was made for
  Activation act = Activation::kRelu2;
  bool attn_sub_norm = false;  // an RMSNorm between attention and its output projection
  bool ffn_sub_norm = false;   // an RMSNorm between the activation and the down projection
  bool qk_norm = false;        // an RMSNorm of every head of q and k, before RoPE
  bool input_norms = false;    // an RMSNorm, each with its own gain, of what each matrix reads
  bool tied_head = false;      // the head is the embedding
  float norm_eps = 0;
  float input_norm_eps = 0;  // of the input norms
  double rope_theta = 0;
  std::optional<Llama3RopeScaling> rope_scaling;
  std::optional<YarnRopeScaling> yarn_scaling;  // in its place
  ActivationQuant activation_quant = ActivationQuant::kInt8Row;

  // Of every cos and sin of RoPE.
  float rope_attention_factor() const {
    return yarn_scaling ? yarn_scaling->attention_factor : 1.0f;
  }
  int q_dim() const { return heads * head_dim; }
  int kv_dim() const { return kv_heads * head_dim; }
};

// Throws Error (kUnsupported) that names the field, the value found and the values supported.
void validate(const ModelConfig& config);

}  // namespace edgellm
