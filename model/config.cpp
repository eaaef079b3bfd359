#include "model/config.h"

#include <cmath>
#include <sstream>

#include "base/error.h"

namespace edgellm {
namespace {

// Positions up to here are exact in float32 (RoPE multiplies by them). Dot products of int8 codes
// over this number of columns fit in int32.
constexpr int kMaxExtent = 1 << 24;

[[noreturn]] void refuse(const std::string& what) { throw Error(ExitCode::kUnsupported, what); }

void check_range(const char* field, int value, int low, int high) {
  if (value >= low && value <= high) return;
  refuse(std::string(field) + " is " + std::to_string(value) + ", supported are " +
         std::to_string(low) + " to " + std::to_string(high));
}

void check_positive(const char* field, double value) {
  if (std::isfinite(value) && value > 0) return;
  std::ostringstream text;
  text << field << " is " << value << ", supported are finite numbers above 0";
  refuse(text.str());
}

void check_original_position(int64_t position) {
  if (position >= 1 && position <= kMaxExtent) return;
  refuse("rope_scaling.original_max_position_embeddings is " + std::to_string(position) +
         ", supported are 1 to " + std::to_string(kMaxExtent));
}

}  // namespace

const char* to_string(Activation act) {
  switch (act) {
    case Activation::kRelu2:
      return "relu2";
    case Activation::kSilu:
      return "silu";
  }
  throw ContractViolation("unknown activation");
}

const char* to_string(ActivationQuant quant) {
  switch (quant) {
    case ActivationQuant::kInt8Row:
      return "int8_row";
    case ActivationQuant::kInt16Group:
      return "int16_group";
  }
  throw ContractViolation("unknown coding of activations");
}

double YarnRopeScaling::default_attention_factor(double factor) {
  return factor <= 1 ? 1.0 : 0.1 * std::log(factor) + 1.0;
}

void validate(const ModelConfig& config) {
  check_range("layers", config.layers, 1, 1 << 16);
  check_range("dim", config.dim, 1, kMaxExtent);
  check_range("ffn", config.ffn, 1, kMaxExtent);
  check_range("heads", config.heads, 1, 1 << 12);
  check_range("kv_heads", config.kv_heads, 1, 1 << 12);
  check_range("head_dim", config.head_dim, 2, 1 << 12);  // so that heads * head_dim <= kMaxExtent
  check_range("vocab", config.vocab, 1, kMaxExtent);
  check_range("max_context", config.max_context, 2, kMaxExtent);  // a prompt and an answer
  if (config.head_dim % 2 != 0) {
    refuse("head_dim is " + std::to_string(config.head_dim) +
           ", supported are even numbers (RoPE rotates pairs)");
  }
  if (config.heads % config.kv_heads != 0) {
    refuse("heads is " + std::to_string(config.heads) + " and kv_heads is " +
           std::to_string(config.kv_heads) + ", supported is a kv_heads that divides heads");
  }
  check_positive("norm_eps", config.norm_eps);
  if (config.input_norms) check_positive("input_norm_eps", config.input_norm_eps);
  check_positive("rope_theta", config.rope_theta);
  if (config.rope_scaling) {
    const Llama3RopeScaling& scaling = *config.rope_scaling;
    check_positive("rope_scaling.factor", scaling.factor);
    check_positive("rope_scaling.low_freq_factor", scaling.low_freq_factor);
    check_positive("rope_scaling.high_freq_factor", scaling.high_freq_factor);
    if (scaling.high_freq_factor <= scaling.low_freq_factor) {
      refuse("rope_scaling.high_freq_factor is not above low_freq_factor, as llama3 scaling needs");
    }
    check_original_position(scaling.original_max_position);
  }
  if (config.yarn_scaling) {
    const YarnRopeScaling& scaling = *config.yarn_scaling;
    check_positive("rope_scaling.factor", scaling.factor);
    check_positive("rope_scaling.beta_fast", scaling.beta_fast);
    check_positive("rope_scaling.beta_slow", scaling.beta_slow);
    check_positive("rope_scaling.attention_factor", static_cast<double>(scaling.attention_factor));
    check_original_position(scaling.original_max_position);
  }
}

}  // namespace edgellm
