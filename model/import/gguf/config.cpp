#include "model/import/gguf/config.h"

#include <algorithm>
#include <array>
#include <set>
#include <string_view>

#include "base/text.h"

namespace edgellm::model_io::gguf {
namespace {

constexpr int64_t kMaxCount = INT32_MAX;

struct Architecture {
  const char* name;     // general.architecture
  const char* hf_name;  // what Hugging Face's config.json calls it
  bool sub_norms;
  bool heads_permuted;
  bool is_qwen3;  // norms of the heads of q and k, float activations
};
constexpr std::array<Architecture, 6> kArchitectures = {{
    {"bitnet", "BitNetForCausalLM", true, false, false},
    {"bitnet-b1.58", "BitNetForCausalLM", true, false, false},
    {"bitnet-25", "BitNetForCausalLM", true, false, false},
    {"llama", "LlamaForCausalLM", false, true, false},
    {"falcon", "LlamaForCausalLM", false, false, false},
    {"qwen3", "Qwen3ForCausalLM", false, false, true},
}};

// Published sizes of 1bitLLM's bitnet_b1_58: large, xl and 3B.
constexpr std::array<std::pair<int, int>, 3> kOneBitLlmSizes = {
    {{1536, 4096}, {2048, 5460}, {3200, 8640}}};

// Keys behind "ARCHITECTURE." that say nothing about what a forward pass computes.
constexpr std::array kHarmlessKeys = {"vocab_size", "tensor_data_layout", "rope.scaling.finetuned",
                                      "rope.scaling.original_context_length"};

// Keys that change the maths unless they have this value.
struct NeutralKey {
  const char* key;
  double value;
};
constexpr std::array kNeutralKeys = {NeutralKey{"expert_count", 0},
                                     NeutralKey{"expert_used_count", 0},
                                     NeutralKey{"attention.sliding_window", 0},
                                     NeutralKey{"attention.max_alibi_bias", 0},
                                     NeutralKey{"attention.clamp_kqv", 0},
                                     NeutralKey{"attn_logit_softcapping", 0},
                                     NeutralKey{"final_logit_softcapping", 0},
                                     NeutralKey{"rope.scaling.attn_factor", 1},
                                     NeutralKey{"rope.scaling.yarn_ext_factor", 1},
                                     NeutralKey{"rope.scaling.yarn_attn_factor", 1},
                                     NeutralKey{"rope.scaling.yarn_log_multiplier", 0},
                                     NeutralKey{"logit_scale", 1},
                                     NeutralKey{"residual_scale", 1},
                                     NeutralKey{"embedding_scale", 1}};

class ConfigReader {
 public:
  ConfigReader(const GgufMetadata& metadata, const std::vector<std::string>& ignore_keys)
      : metadata_(metadata), ignore_keys_(ignore_keys.begin(), ignore_keys.end()) {}

  GgufConfig read(int64_t vocab, bool tied);

 private:
  void refuse(const std::string& what) const { metadata_.fail(what, ExitCode::kUnsupported); }
  // The whole name of a key of the architecture, marked as one that was looked at.
  std::string key(const std::string& name) {
    std::string whole = config_.architecture + "." + name;
    read_.insert(whole);
    return whole;
  }
  int size(const std::string& name) {
    return static_cast<int>(metadata_.integer(key(name), 1, kMaxCount));
  }
  int size_or(const std::string& name, int otherwise) {
    const auto found = metadata_.find_integer(key(name), 1, kMaxCount);
    return found ? static_cast<int>(*found) : otherwise;
  }

  const Architecture& read_architecture();
  void read_sizes();
  void read_norm_eps(const Architecture& architecture);
  void read_activation();
  void read_rope_scaling();
  void refuse_other_maths();
  void refuse_unread() const;

  const GgufMetadata& metadata_;
  std::set<std::string> ignore_keys_;
  std::set<std::string> read_;
  GgufConfig config_;
};

const Architecture& ConfigReader::read_architecture() {
  config_.architecture = metadata_.text("general.architecture");
  std::vector<std::string> supported;
  for (const Architecture& known : kArchitectures) {
    if (config_.architecture == known.name) return known;
    supported.emplace_back(known.name);
  }
  metadata_.fail("architecture '" + printable(config_.architecture) +
                     "' is not supported; supported are " + join(supported, ", "),
                 ExitCode::kUnsupported);
}

void ConfigReader::read_sizes() {
  ModelConfig& model = config_.model;
  model.layers = size("block_count");
  model.dim = size("embedding_length");
  model.ffn = size("feed_forward_length");
  model.heads = size("attention.head_count");
  model.kv_heads = size_or("attention.head_count_kv", model.heads);
  model.max_context = size("context_length");
  if (metadata_.has(key("attention.key_length"))) {
    model.head_dim = size("attention.key_length");
  } else if (model.dim % model.heads == 0) {
    model.head_dim = model.dim / model.heads;
  } else {
    metadata_.fail("its embedding_length " + std::to_string(model.dim) +
                   " is not a multiple of attention.head_count " + std::to_string(model.heads) +
                   " and there is no attention.key_length");
  }
  for (const char* name : {"attention.value_length", "rope.dimension_count"}) {
    const int found = size_or(name, model.head_dim);
    if (found == model.head_dim) continue;
    refuse("its " + key(name) + " is " + std::to_string(found) +
           "; supported is the head's size, " + std::to_string(model.head_dim));
  }
  model.rope_theta = metadata_.find_number(key("rope.freq_base")).value_or(10000.0);
}

void ConfigReader::read_norm_eps(const Architecture& architecture) {
  const std::string rms = key("attention.layer_norm_rms_epsilon");
  const std::string layer = key("attention.layer_norm_epsilon");
  if (!metadata_.has(rms) && metadata_.has(layer)) {
    refuse("its " + layer + " says that it has LayerNorms" +
           (std::string_view(architecture.name) == "falcon"
                ? ": it is a Falcon of 2023, of which no ternary one is known"
                : "") +
           "; supported are RMSNorms");
  }
  config_.model.norm_eps = static_cast<float>(metadata_.number(rms));
}

// No key says which activation a BitNet has. 1bitLLM's models have SiLU, Microsoft's ReLU^2; the
// former have as many kv heads as heads and 10000 as RoPE's theta, and of the files that are not
// called plainly "bitnet" those with published sizes.
void ConfigReader::read_activation() {
  ModelConfig& model = config_.model;
  if (!model.attn_sub_norm) {
    model.act = Activation::kSilu;
    if (model.activation_quant == ActivationQuant::kInt8Row) {
      config_.assumption =
          "activations are taken as int8, as in Falcon3-1.58bit and Llama3-8B-1.58, since no key "
          "of a GGUF file says it; of a model with float ones convert the Hugging Face folder";
    }
    return;
  }
  const bool shaped_so = model.kv_heads == model.heads && model.rope_theta == 10000.0;
  const bool published = std::find(kOneBitLlmSizes.begin(), kOneBitLlmSizes.end(),
                                   std::pair(model.dim, model.ffn)) != kOneBitLlmSizes.end();
  const bool one_bit_llm = shaped_so && (config_.architecture == "bitnet" || published);
  model.act = one_bit_llm ? Activation::kSilu : Activation::kRelu2;
  if (one_bit_llm) model.architecture = "BitnetForCausalLM";
  config_.assumption = std::string("the activation is taken as ") +
                       (one_bit_llm ? "SiLU, as in 1bitLLM's models" : "ReLU^2, as in BitNet-2B") +
                       ", since no key of a GGUF file says it";
}

void ConfigReader::read_rope_scaling() {
  const auto type = metadata_.find_text(key("rope.scaling.type"));
  const std::string factor = key("rope.scaling.factor");
  if (type && *type == "yarn") {
    YarnRopeScaling scaling;
    scaling.factor = metadata_.any_number(factor);
    scaling.original_max_position =
        metadata_.find_integer(key("rope.scaling.original_context_length"), 1, kMaxCount)
            .value_or(config_.model.max_context);
    scaling.beta_fast =
        metadata_.find_number(key("rope.scaling.yarn_beta_fast")).value_or(scaling.beta_fast);
    scaling.beta_slow =
        metadata_.find_number(key("rope.scaling.yarn_beta_slow")).value_or(scaling.beta_slow);
    scaling.attention_factor =
        static_cast<float>(YarnRopeScaling::default_attention_factor(scaling.factor));
    config_.model.yarn_scaling = scaling;
    return;
  }
  // With the factor 1 linear scaling changes nothing; llama.cpp takes a factor of 0 as none.
  if (type && *type != "none" && *type != "linear") {
    refuse("its rope.scaling.type is '" + printable(*type) +
           "'; supported are none, yarn and LLaMA-3's factors (tensor rope_freqs.weight)");
  }
  if (!metadata_.has(factor)) return;
  const double value = metadata_.any_number(factor);
  if (value == 0 || value == 1) return;
  refuse("its " + factor + " is " + std::to_string(value) + ", which edgellm does not compute");
}

void ConfigReader::refuse_other_maths() {
  for (const NeutralKey& neutral : kNeutralKeys) {
    const std::string name = key(neutral.key);
    if (!metadata_.has(name)) continue;
    const double value = metadata_.any_number(name);
    // llama.cpp takes a factor of 0 as none.
    if (value == neutral.value || value == 0) continue;
    refuse("its " + name + " is " + std::to_string(value) + ", which edgellm does not compute");
  }
  for (const auto& [name, neutral] :
       {std::pair{"attention.causal", true}, std::pair{"use_parallel_residual", false}}) {
    const auto value = metadata_.find_flag(key(name));
    if (!value || *value == neutral) continue;
    refuse("its " + key(name) + " is " + (*value ? "true" : "false") +
           ", which edgellm does not compute");
  }
}

void ConfigReader::refuse_unread() const {
  for (const std::string& name : metadata_.keys_with_prefix(config_.architecture + ".")) {
    if (read_.contains(name) || ignore_keys_.contains(name)) continue;
    metadata_.fail("the key '" + printable(name) +
                       "' is unknown to edgellm and may change what the model computes; if it does "
                       "not, add: --ignore-key " +
                       printable(name),
                   ExitCode::kUnsupported);
  }
}

GgufConfig ConfigReader::read(int64_t vocab, bool tied) {
  const Architecture& architecture = read_architecture();
  config_.heads_permuted = architecture.heads_permuted;
  for (const char* name : kHarmlessKeys) key(name);
  ModelConfig& model = config_.model;
  model.architecture = architecture.hf_name;
  model.attn_sub_norm = architecture.sub_norms;
  model.ffn_sub_norm = architecture.sub_norms;
  model.qk_norm = architecture.is_qwen3;
  if (architecture.is_qwen3) model.activation_quant = ActivationQuant::kInt16Group;
  model.tied_head = tied;
  // A size beyond int is no size that validate() lets pass.
  model.vocab = static_cast<int>(std::min<int64_t>(vocab, kMaxCount));
  read_sizes();
  read_norm_eps(architecture);
  read_activation();
  read_rope_scaling();
  refuse_other_maths();
  refuse_unread();
  try {
    validate(model);
  } catch (const Error& error) {
    metadata_.fail(error.what(), error.code());
  }
  return config_;
}

}  // namespace

GgufConfig read_config(const GgufMetadata& metadata, int64_t vocab, bool tied,
                       const std::vector<std::string>& ignore_keys) {
  return ConfigReader(metadata, ignore_keys).read(vocab, tied);
}

}  // namespace edgellm::model_io::gguf
