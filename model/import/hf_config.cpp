#include "model/import/hf_config.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <set>
#include <string_view>

#include "base/files.h"
#include "base/json.h"
#include "base/text.h"

namespace edgellm::model_io {
namespace {

constexpr uint64_t kMaxConfigBytes = uint64_t{16} << 20;
constexpr int64_t kMaxCount = INT32_MAX;
constexpr float kDefaultInputNormEps = 1e-6f;  // transformers' BitNetQuantConfig

// Keys that say nothing about what a forward pass computes: training, bookkeeping, generation
// defaults (those come from generation_config.json), and how Python code is to be loaded.
constexpr std::array kHarmlessKeys = {"_attn_implementation_autoset",
                                      "_commit_hash",
                                      "_from_model_config",
                                      "_name_or_path",
                                      "_attn_implementation",
                                      "attention_dropout",
                                      "attn_implementation",
                                      "auto_map",
                                      "bad_words_ids",
                                      "begin_suppress_tokens",
                                      "bos_token_id",
                                      "chunk_size_feed_forward",
                                      "decoder_start_token_id",
                                      "diversity_penalty",
                                      "do_sample",
                                      "dtype",
                                      "early_stopping",
                                      "encoder_no_repeat_ngram_size",
                                      "eos_token_id",
                                      "exponential_decay_length_penalty",
                                      "finetuning_task",
                                      "forced_bos_token_id",
                                      "forced_eos_token_id",
                                      "hidden_dropout",
                                      "id2label",
                                      "initializer_range",
                                      "is_bitnet_config",
                                      "is_decoder",
                                      "label2id",
                                      "length_penalty",
                                      "max_length",
                                      "min_length",
                                      "min_p",
                                      "model_type",
                                      "no_repeat_ngram_size",
                                      "num_beam_groups",
                                      "num_beams",
                                      "num_return_sequences",
                                      "output_attentions",
                                      "output_hidden_states",
                                      "output_scores",
                                      "pad_token_id",
                                      "prefix",
                                      "pretraining_tp",
                                      "problem_type",
                                      "remove_invalid_values",
                                      "repetition_penalty",
                                      "resid_dropout",
                                      "return_dict",
                                      "return_dict_in_generate",
                                      "sep_token_id",
                                      "suppress_tokens",
                                      "task_specific_params",
                                      "temperature",
                                      "tokenizer_class",
                                      "top_k",
                                      "top_p",
                                      "torch_dtype",
                                      "torchscript",
                                      "transformers_version",
                                      "typical_p",
                                      "unsloth_fixed",
                                      "unsloth_version",
                                      "use_bfloat16",
                                      "use_cache"};

// What float weights are where config.json has no quantization_config.
enum class Unquantised : uint8_t {
  kRefused,           // ordinary weights
  kMasters,           // to be rounded
  kFloatActivations,  // ternary as they are, of a model whose activations are floats
};

// What a configuration class of transformers assumes where config.json is silent.
struct ArchitectureDefaults {
  const char* name;
  bool sub_norms;
  Activation act;
  float norm_eps;
  double rope_theta;
  int kv_heads;  // 0: as many as heads
  int head_dim;  // 0: hidden_size / heads
  Unquantised unquantised;
  bool qk_norm;
};
constexpr std::array<ArchitectureDefaults, 4> kArchitectures = {{
    {"BitNetForCausalLM", true, Activation::kRelu2, 1e-5f, 500000.0, 5, 0, Unquantised::kRefused,
     false},
    // 1bitLLM's own code
    {"BitnetForCausalLM", true, Activation::kSilu, 1e-6f, 10000.0, 0, 0, Unquantised::kMasters,
     false},
    {"LlamaForCausalLM", false, Activation::kSilu, 1e-6f, 10000.0, 0, 0,
     Unquantised::kFloatActivations, false},
    {"Qwen3ForCausalLM", false, Activation::kSilu, 1e-6f, 10000.0, 32, 128,
     Unquantised::kFloatActivations, true},
}};

class ConfigReader {
 public:
  ConfigReader(const Json& json, const std::string& path,
               const std::vector<std::string>& ignore_keys, WeightsKnown weights)
      : fields_(json, {path}),
        ignore_keys_(ignore_keys.begin(), ignore_keys.end()),
        weights_(weights) {}

  HfConfig read();

 private:
  void refuse(const std::string& what) const { fields_.fail(what, ExitCode::kUnsupported); }

  // A value of the file, with the key marked as one that was looked at.
  const Json* look(const Fields& fields, const std::string& key) {
    read_.insert(fields.name(key));
    return fields.find(key);
  }
  int size(const std::string& key) {
    look(fields_, key);
    return static_cast<int>(fields_.integer(key, 1, kMaxCount));
  }
  bool flag(const Fields& fields, const std::string& key) {
    return look(fields, key) != nullptr && fields.boolean(key);
  }

  const ArchitectureDefaults& architecture();
  void read_sizes(const ArchitectureDefaults& defaults);
  void read_activation(const ArchitectureDefaults& defaults);
  void read_rope(const ArchitectureDefaults& defaults);
  void read_rope_scaling(const Fields& rope);
  void read_yarn(const Fields& rope);
  void read_quantization(const ArchitectureDefaults& defaults);
  void refuse_other_maths();
  void refuse_unread(const Fields& fields) const;

  Fields fields_;
  std::set<std::string> ignore_keys_;
  WeightsKnown weights_;
  std::set<std::string> read_;
  HfConfig config_;
};

const ArchitectureDefaults& ConfigReader::architecture() {
  look(fields_, "architectures");
  const Json& names = fields_.array("architectures");
  if (names.size() != 1 || !names[0].is_string()) {
    fields_.fail("architectures is " + value_text(names) + ", expected one name");
  }
  const auto& name = names[0].get_ref<const std::string&>();
  std::vector<std::string> supported;
  for (const ArchitectureDefaults& known : kArchitectures) {
    if (name == known.name) return known;
    supported.emplace_back(known.name);
  }
  fields_.fail("architecture '" + printable(name) + "' is not supported; supported are " +
                   join(supported, ", "),
               ExitCode::kUnsupported);
}

void ConfigReader::read_sizes(const ArchitectureDefaults& defaults) {
  ModelConfig& model = config_.model;
  model.architecture = defaults.name;
  model.layers = size("num_hidden_layers");
  model.dim = size("hidden_size");
  model.ffn = size("intermediate_size");
  model.heads = size("num_attention_heads");
  model.vocab = size("vocab_size");
  model.max_context =
      look(fields_, "max_position_embeddings") ? size("max_position_embeddings") : 2048;
  if (look(fields_, "num_key_value_heads")) {
    model.kv_heads = size("num_key_value_heads");
  } else {
    // A null means as many as heads everywhere; only where the key is absent is there a default.
    const bool is_null = fields_.json().contains("num_key_value_heads");
    model.kv_heads = is_null || defaults.kv_heads == 0 ? model.heads : defaults.kv_heads;
  }
  if (look(fields_, "head_dim")) {
    model.head_dim = size("head_dim");
  } else if (defaults.head_dim > 0) {
    model.head_dim = defaults.head_dim;
  } else if (model.dim % model.heads == 0) {
    model.head_dim = model.dim / model.heads;
  } else {
    fields_.fail("hidden_size " + std::to_string(model.dim) + " is not a multiple of " +
                 "num_attention_heads " + std::to_string(model.heads) +
                 " and there is no head_dim");
  }
  model.norm_eps = look(fields_, "rms_norm_eps")
                       ? static_cast<float>(fields_.number("rms_norm_eps"))
                       : defaults.norm_eps;
  model.tied_head = flag(fields_, "tie_word_embeddings");
  model.attn_sub_norm = defaults.sub_norms;
  model.ffn_sub_norm = defaults.sub_norms;
  model.qk_norm = defaults.qk_norm;
}

void ConfigReader::read_activation(const ArchitectureDefaults& defaults) {
  config_.model.act = defaults.act;
  if (!look(fields_, "hidden_act")) return;
  const std::string name = fields_.text("hidden_act");
  if (name == "relu2") {
    config_.model.act = Activation::kRelu2;
  } else if (name == "silu" || name == "swish") {
    config_.model.act = Activation::kSilu;
  } else {
    refuse("hidden_act is '" + printable(name) + "'; supported are relu2 and silu");
  }
}

// transformers 5 writes rope_parameters {rope_theta, rope_type, ...}, older ones rope_theta and
// rope_scaling {rope_type or type, ...}.
void ConfigReader::read_rope(const ArchitectureDefaults& defaults) {
  double& theta = config_.model.rope_theta;
  theta = look(fields_, "rope_theta") ? fields_.number("rope_theta") : defaults.rope_theta;
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    if (!look(fields_, key)) continue;
    const Fields rope = fields_.object(key);
    if (look(rope, "rope_theta")) {
      if (fields_.has("rope_theta") && rope.number("rope_theta") != theta) {
        fields_.fail("rope_theta and " + rope.name("rope_theta") + " differ");
      }
      theta = rope.number("rope_theta");
    }
    read_rope_scaling(rope);
  }
}

void ConfigReader::read_rope_scaling(const Fields& rope) {
  const bool has_type = look(rope, "type") != nullptr;
  const std::string type = look(rope, "rope_type") ? rope.text("rope_type")
                           : has_type              ? rope.text("type")
                                                   : "default";
  if (has_type && rope.text("type") != type) rope.fail(rope.name("type") + " and rope_type differ");
  if (look(rope, "partial_rotary_factor") && rope.number("partial_rotary_factor") != 1) {
    refuse(rope.name("partial_rotary_factor") + " is not 1: edgellm rotates whole heads only");
  }
  if (type == "llama3") {
    for (const char* key :
         {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}) {
      look(rope, key);
    }
    const Llama3RopeScaling scaling = {
        rope.number("factor"), rope.number("low_freq_factor"), rope.number("high_freq_factor"),
        rope.integer("original_max_position_embeddings", 1, kMaxCount)};
    config_.model.rope_scaling = scaling;
  } else if (type == "yarn") {
    read_yarn(rope);
  } else if (type != "default") {
    refuse(rope.name("rope_type") + " is '" + printable(type) +
           "'; supported are default, llama3 and yarn");
  }
  refuse_unread(rope);
}

void ConfigReader::read_yarn(const Fields& rope) {
  YarnRopeScaling scaling;
  const auto optional = [&](const char* key, double otherwise) {
    return look(rope, key) ? rope.number(key) : otherwise;
  };
  look(rope, "factor");
  scaling.factor = rope.number("factor");
  scaling.original_max_position =
      look(rope, "original_max_position_embeddings")
          ? rope.integer("original_max_position_embeddings", 1, kMaxCount)
          : config_.model.max_context;
  scaling.beta_fast = optional("beta_fast", 32);
  scaling.beta_slow = optional("beta_slow", 1);
  scaling.attention_factor = static_cast<float>(
      optional("attention_factor", YarnRopeScaling::default_attention_factor(scaling.factor)));
  if (look(rope, "truncate") && !rope.boolean("truncate")) {
    refuse(rope.name("truncate") + " is false; supported is true");
  }
  config_.model.yarn_scaling = scaling;
}

void ConfigReader::read_quantization(const ArchitectureDefaults& defaults) {
  if (!look(fields_, "quantization_config")) {
    if (weights_ == WeightsKnown::kTernary) return;
    if (defaults.unquantised == Unquantised::kRefused && weights_ == WeightsKnown::kFromConfig) {
      refuse(std::string("has no quantization_config: a ") + defaults.name +
             " without one has ordinary weights, and edgellm runs ternary models only; if these "
             "are masters to quantise, add \"quantization_config\": {\"quant_method\": "
             "\"bitnet\", \"linear_class\": \"autobitlinear\", \"quantization_mode\": "
             "\"online\"}");
    }
    if (defaults.unquantised == Unquantised::kFloatActivations) {
      config_.model.activation_quant = ActivationQuant::kInt16Group;
    }
    return;
  }
  const Fields quant = fields_.object("quantization_config");
  look(quant, "quant_method");
  const std::string method = quant.text("quant_method");
  if (method != "bitnet") {
    refuse("quantization_config.quant_method is '" + printable(method) + "'; supported is bitnet");
  }
  config_.scale_meaning = ScaleMeaning::kDivides;
  if (look(quant, "linear_class")) {
    const std::string name = quant.text("linear_class");
    if (name == "autobitlinear") {
      config_.scale_meaning = ScaleMeaning::kMultiplies;
    } else if (name != "bitlinear") {
      refuse("quantization_config.linear_class is '" + printable(name) +
             "'; supported are bitlinear and autobitlinear");
    }
  }
  // transformers' default. The other class knows no modes.
  if (config_.scale_meaning == ScaleMeaning::kMultiplies) config_.quant_mode = QuantMode::kOffline;
  if (look(quant, "quantization_mode")) {
    const std::string mode = quant.text("quantization_mode");
    if (mode == "offline") {
      config_.quant_mode = QuantMode::kOffline;
    } else if (mode == "online") {
      config_.quant_mode = QuantMode::kOnline;
    } else {
      refuse("quantization_config.quantization_mode is '" + printable(mode) +
             "'; supported are offline and online");
    }
  }
  if (look(quant, "modules_to_not_convert")) {
    for (const Json& module : quant.array("modules_to_not_convert")) {
      if (module == "lm_head") continue;  // never is, here
      refuse("quantization_config.modules_to_not_convert holds " + value_text(module) +
             "; supported is lm_head only");
    }
  }
  config_.model.input_norms = flag(quant, "use_rms_norm");
  const bool has_eps = look(quant, "rms_norm_eps") != nullptr;
  if (config_.model.input_norms) {
    config_.model.input_norm_eps =
        has_eps ? static_cast<float>(quant.number("rms_norm_eps")) : kDefaultInputNormEps;
  }
  refuse_unread(quant);
}

void ConfigReader::refuse_other_maths() {
  for (const char* key : {"attention_bias", "mlp_bias", "use_qk_norm", "qk_norm"}) {
    if (flag(fields_, key)) refuse(std::string(key) + " is true, which edgellm does not compute");
  }
  // Falcon3 says what hidden_act silu means.
  if (look(fields_, "activation") && fields_.text("activation") != "swiglu") {
    refuse("activation is " + value_text(fields_.get("activation")) + "; supported is swiglu");
  }
  if (look(fields_, "partial_rotary_factor") && fields_.number("partial_rotary_factor") != 1) {
    refuse("partial_rotary_factor is not 1: edgellm rotates whole heads only");
  }
  // A window is active unless the file says that it is not used.
  const Json* use_window = look(fields_, "use_sliding_window");
  const bool unused = use_window != nullptr && !fields_.boolean("use_sliding_window");
  if (look(fields_, "sliding_window") && !unused) {
    refuse("sliding_window is " + value_text(fields_.get("sliding_window")) +
           "; edgellm computes full attention only");
  }
  if (use_window != nullptr && !unused) {
    refuse("use_sliding_window is true; edgellm computes full attention only");
  }
  if (unused) look(fields_, "max_window_layers");
  if (look(fields_, "layer_types")) {
    for (const Json& type : fields_.array("layer_types")) {
      if (type == "full_attention") continue;
      refuse("layer_types holds " + value_text(type) + "; supported is full_attention only");
    }
  }
  if (look(fields_, "weight_bits") && fields_.get("weight_bits") != 1) {
    refuse("weight_bits is " + value_text(fields_.get("weight_bits")) + "; supported is 1");
  }
  if (look(fields_, "input_bits") && fields_.get("input_bits") != 8) {
    refuse("input_bits is " + value_text(fields_.get("input_bits")) + "; supported is 8");
  }
}

void ConfigReader::refuse_unread(const Fields& fields) const {
  for (const auto& [key, value] : fields.json().items()) {
    const std::string name = fields.name(key);
    const bool says_nothing = value.is_null() || value == false;
    if (says_nothing || read_.contains(name) || ignore_keys_.contains(name)) continue;
    fields.fail("the key '" + printable(name) + "' = " + value_text(value) +
                    " is unknown to edgellm and may change what the model computes; if it does "
                    "not, add: --ignore-key " +
                    printable(name),
                ExitCode::kUnsupported);
  }
}

HfConfig ConfigReader::read() {
  for (const char* key : kHarmlessKeys) read_.insert(key);
  const ArchitectureDefaults& defaults = architecture();
  read_quantization(defaults);
  read_sizes(defaults);
  read_activation(defaults);
  read_rope(defaults);
  refuse_other_maths();
  refuse_unread(fields_);
  try {
    validate(config_.model);
  } catch (const Error& error) {
    fields_.fail(error.what(), error.code());
  }
  return config_;
}

// Each line is one line of transformers' _compute_llama3_parameters, with the float32 operations
// that PyTorch carries out on a CPU: a number over a tensor is the tensor's reciprocal times the
// number, and numbers become float32 before they meet a tensor.
float llama3_scaled(float inv_freq, const Llama3RopeScaling& scaling) {
  constexpr double kPi = 3.141592653589793;
  const auto original = static_cast<double>(scaling.original_max_position);
  const auto low_freq_wavelen = static_cast<float>(original / scaling.low_freq_factor);
  const auto high_freq_wavelen = static_cast<float>(original / scaling.high_freq_factor);
  const auto factor = static_cast<float>(scaling.factor);
  const float wavelen = (1.0f / inv_freq) * static_cast<float>(2 * kPi);
  if (wavelen > low_freq_wavelen) return inv_freq / factor;
  if (wavelen < high_freq_wavelen) return inv_freq;
  const float smooth = ((1.0f / wavelen) * static_cast<float>(original) -
                        static_cast<float>(scaling.low_freq_factor)) /
                       static_cast<float>(scaling.high_freq_factor - scaling.low_freq_factor);
  return (1.0f - smooth) * inv_freq / factor + smooth * inv_freq;
}

// Likewise transformers' _compute_yarn_parameters, for pair i, whose frequency is 1 / power.
float yarn_scaled(int i, float power, const ModelConfig& config) {
  constexpr double kPi = 3.141592653589793;
  const YarnRopeScaling& scaling = *config.yarn_scaling;
  const auto correction = [&](double rotations) {
    const auto original = static_cast<double>(scaling.original_max_position);
    return config.head_dim * std::log(original / (rotations * 2 * kPi)) /
           (2 * std::log(config.rope_theta));
  };
  const double low = std::max(std::floor(correction(scaling.beta_fast)), 0.0);
  double high = std::min(std::ceil(correction(scaling.beta_slow)), config.head_dim - 1.0);
  if (low == high) high += 0.001;
  const float ramp =
      (static_cast<float>(i) - static_cast<float>(low)) / static_cast<float>(high - low);
  const float kept = 1.0f - std::clamp(ramp, 0.0f, 1.0f);
  const float interpolated = 1.0f / (static_cast<float>(scaling.factor) * power);
  const float extrapolated = 1.0f / power;
  return interpolated * (1.0f - kept) + extrapolated * kept;
}

}  // namespace

HfConfig read_hf_config(const std::string& path, const std::vector<std::string>& ignore_keys,
                        WeightsKnown weights) {
  const Json json = parse_json_object(read_text_file(path, kMaxConfigBytes), {path});
  return ConfigReader(json, path, ignore_keys, weights).read();
}

std::vector<float> rope_inv_freq(const ModelConfig& config) {
  std::vector<float> inv_freq;
  for (int i = 0; i < config.head_dim / 2; ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(config.head_dim);
    const auto power =
        static_cast<float>(std::pow(config.rope_theta, static_cast<double>(exponent)));
    const float frequency = 1.0f / power;
    inv_freq.push_back(config.yarn_scaling   ? yarn_scaled(i, power, config)
                       : config.rope_scaling ? llama3_scaled(frequency, *config.rope_scaling)
                                             : frequency);
  }
  return inv_freq;
}

}  // namespace edgellm::model_io
