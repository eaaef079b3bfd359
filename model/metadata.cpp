#include "model/metadata.h"

#include <algorithm>
#include <array>
#include <functional>
#include <unordered_set>

#include "base/files.h"
#include "base/json.h"
#include "base/text.h"
#include "model/layout.h"

namespace edgellm::model_io {
namespace {

// Keeps the order in which keys are written: a person who looks into the file reads it top down.
using OrderedJson = nlohmann::ordered_json;

// Features that this reader knows: what `requires` may name. Readers from before a feature refuse
// files that need it.
constexpr std::string_view kInputNorms = "input_norms";
constexpr std::array kKnownFeatures = {kInputNorms};

constexpr int64_t kMaxInt = INT32_MAX;

OrderedJson architecture_json(const ModelConfig& config) {
  OrderedJson json;
  json["name"] = config.architecture;
  json["layers"] = config.layers;
  json["dim"] = config.dim;
  json["ffn"] = config.ffn;
  json["heads"] = config.heads;
  json["kv_heads"] = config.kv_heads;
  json["head_dim"] = config.head_dim;
  json["vocab"] = config.vocab;
  json["max_context"] = config.max_context;
  json["act"] = to_string(config.act);
  json["attn_sub_norm"] = config.attn_sub_norm;
  json["ffn_sub_norm"] = config.ffn_sub_norm;
  json["qk_norm"] = config.qk_norm;
  if (config.input_norms) {
    json["input_norms"] = true;
    json["input_norm_eps"] = shortest_decimal(config.input_norm_eps);
  }
  json["tied_head"] = config.tied_head;
  json["norm_eps"] = shortest_decimal(config.norm_eps);
  json["rope_theta"] = config.rope_theta;
  if (config.rope_scaling) {
    json["rope_scaling"] = {{"type", "llama3"},
                            {"factor", config.rope_scaling->factor},
                            {"low_freq_factor", config.rope_scaling->low_freq_factor},
                            {"high_freq_factor", config.rope_scaling->high_freq_factor},
                            {"original_max_position", config.rope_scaling->original_max_position}};
  } else if (config.yarn_scaling) {
    const YarnRopeScaling& scaling = *config.yarn_scaling;
    json["rope_scaling"] = {{"type", "yarn"},
                            {"factor", scaling.factor},
                            {"original_max_position", scaling.original_max_position},
                            {"beta_fast", scaling.beta_fast},
                            {"beta_slow", scaling.beta_slow},
                            {"attention_factor", shortest_decimal(scaling.attention_factor)}};
  } else {
    json["rope_scaling"] = nullptr;
  }
  json["activation_quant"] = to_string(config.activation_quant);
  return json;
}

void read_rope_scaling(const Fields& fields, ModelConfig& config) {
  const std::string type = fields.text("type");
  const bool is_yarn = type == "yarn";
  if (!is_yarn && type != "llama3") {
    fields.fail(fields.name("type") + " is '" + printable(type) +
                    "', this edgellm supports 'llama3' and 'yarn'; use a newer edgellm",
                ExitCode::kUnsupported);
  }
  const double factor = fields.number("factor");
  const int64_t original = fields.integer("original_max_position", 1, kMaxInt);
  if (is_yarn) {
    config.yarn_scaling =
        YarnRopeScaling{factor, original, fields.number("beta_fast"), fields.number("beta_slow"),
                        static_cast<float>(fields.number("attention_factor"))};
  } else {
    config.rope_scaling = Llama3RopeScaling{factor, fields.number("low_freq_factor"),
                                            fields.number("high_freq_factor"), original};
  }
}

ModelConfig parse_architecture(const Fields& fields) {
  const auto size = [&](const char* key) {
    return static_cast<int>(fields.integer(key, 1, kMaxInt));
  };
  ModelConfig config;
  config.architecture = fields.text("name");
  config.layers = size("layers");
  config.dim = size("dim");
  config.ffn = size("ffn");
  config.heads = size("heads");
  config.kv_heads = size("kv_heads");
  config.head_dim = size("head_dim");
  config.vocab = size("vocab");
  config.max_context = size("max_context");
  const std::string act = fields.text("act");
  if (act == to_string(Activation::kRelu2)) {
    config.act = Activation::kRelu2;
  } else if (act == to_string(Activation::kSilu)) {
    config.act = Activation::kSilu;
  } else {
    fields.fail("architecture.act is '" + printable(act) + "', supported are 'relu2' and 'silu'",
                ExitCode::kUnsupported);
  }
  config.attn_sub_norm = fields.boolean("attn_sub_norm");
  config.ffn_sub_norm = fields.boolean("ffn_sub_norm");
  config.qk_norm = fields.has("qk_norm") && fields.boolean("qk_norm");
  config.input_norms = fields.has("input_norms") && fields.boolean("input_norms");
  if (config.input_norms) {
    config.input_norm_eps = static_cast<float>(fields.number("input_norm_eps"));
  }
  config.tied_head = fields.boolean("tied_head");
  config.norm_eps = static_cast<float>(fields.number("norm_eps"));
  config.rope_theta = fields.number("rope_theta");
  if (fields.has("rope_scaling")) {
    read_rope_scaling(fields.object("rope_scaling"), config);
  }
  const std::string quant = fields.text("activation_quant");
  if (quant == to_string(ActivationQuant::kInt16Group)) {
    config.activation_quant = ActivationQuant::kInt16Group;
  } else if (quant != to_string(ActivationQuant::kInt8Row)) {
    fields.fail("architecture.activation_quant is '" + printable(quant) +
                    "', this edgellm supports 'int8_row' and 'int16_group'; use a newer edgellm",
                ExitCode::kUnsupported);
  }
  try {
    validate(config);
  } catch (const Error& error) {
    fields.fail("architecture: " + std::string(error.what()), error.code());
  }
  return config;
}

std::vector<int32_t> parse_ids(const Fields& fields, const std::string& key, int vocab) {
  std::vector<int32_t> ids;
  for (const Json& value : fields.array(key)) {
    int64_t id = 0;
    if (!integer_in(value, 0, vocab - 1, id)) {
      fields.fail(fields.name(key) + " holds " + value_text(value) + ", expected ids from 0 to " +
                  std::to_string(vocab - 1));
    }
    ids.push_back(static_cast<int32_t>(id));
  }
  return ids;
}

OrderedJson tokenizer_json(const TokenizerInfo& tokenizer) {
  OrderedJson json;
  json["section"] =
      tokenizer.present ? OrderedJson(std::string(kTokenizerJson)) : OrderedJson(nullptr);
  json["bos"] = tokenizer.bos ? OrderedJson(*tokenizer.bos) : OrderedJson(nullptr);
  json["add_bos"] = tokenizer.add_bos;
  json["stop_ids"] = tokenizer.stop_ids;
  json["chat_template"] = tokenizer.chat_template;
  if (tokenizer.special_tokens) json["special_tokens"] = *tokenizer.special_tokens;
  json["sampling"] = OrderedJson::parse(tokenizer.sampling_json);
  return json;
}

TokenizerInfo parse_tokenizer(const Fields& fields, int vocab) {
  TokenizerInfo tokenizer;
  tokenizer.present = fields.has("section");
  if (tokenizer.present && fields.text("section") != kTokenizerJson) {
    fields.fail("tokenizer.section is '" + printable(fields.text("section")) +
                    "', this edgellm reads 'tokenizer.json'",
                ExitCode::kUnsupported);
  }
  if (fields.has("bos")) tokenizer.bos = static_cast<int32_t>(fields.integer("bos", 0, vocab - 1));
  tokenizer.add_bos = fields.boolean("add_bos");
  if (tokenizer.add_bos && !tokenizer.bos) fields.fail("tokenizer.add_bos is true without a bos");
  tokenizer.stop_ids = parse_ids(fields, "stop_ids", vocab);
  const std::vector<int32_t>& ids = tokenizer.stop_ids;
  if (std::adjacent_find(ids.begin(), ids.end(), std::greater_equal<>()) != ids.end()) {
    fields.fail("tokenizer.stop_ids is not ascending without duplicates");
  }
  if (fields.has("chat_template")) tokenizer.chat_template = fields.text("chat_template");
  if (fields.has("special_tokens")) {
    const Fields tokens = fields.object("special_tokens");
    tokenizer.special_tokens.emplace();
    for (const auto& [name, unused] : tokens.json().items()) {
      tokenizer.special_tokens->emplace(name, tokens.text(name));
    }
  }
  if (fields.has("sampling")) tokenizer.sampling_json = fields.object("sampling").json().dump();
  return tokenizer;
}

Golden parse_golden(const Fields& fields, const ModelConfig& config) {
  Golden golden;
  golden.prompt_ids = parse_ids(fields, "prompt_ids", config.vocab);
  golden.greedy_ids = parse_ids(fields, "greedy_ids", config.vocab);
  if (golden.prompt_ids.empty()) fields.fail("golden.prompt_ids is empty");
  const size_t length = golden.prompt_ids.size() + golden.greedy_ids.size();
  if (length > static_cast<size_t>(config.max_context)) {
    fields.fail("golden has " + std::to_string(length) + " ids, more than the context of " +
                std::to_string(config.max_context));
  }
  return golden;
}

Provenance parse_provenance(const Fields& fields) {
  Provenance provenance;
  if (fields.has("source")) provenance.source = fields.text("source");
  if (fields.has("converter_version")) {
    provenance.converter_version = fields.text("converter_version");
  }
  if (fields.has("licence")) provenance.licence = fields.text("licence");
  if (fields.has("source_files")) {
    provenance.source_files_json = fields.object("source_files").json().dump();
  }
  provenance.random = fields.has("random") && fields.boolean("random");
  return provenance;
}

Section parse_section(const Fields& fields) {
  Section section;
  section.name = fields.text("name");
  if (section.name.empty()) fields.fail("a section has an empty name");
  const std::string subject = "section '" + printable(section.name) + "'";
  const std::string dtype = fields.text("dtype");
  if (const auto known = parse_dtype(dtype)) {
    section.dtype = *known;
  } else {
    fields.fail(subject + " has the dtype '" + printable(dtype) +
                    "', this edgellm knows t2, f32, f16, bf16, i8, u8; use a newer edgellm",
                ExitCode::kUnsupported);
  }
  for (const Json& value : fields.array("shape")) {
    int64_t extent = 0;
    if (!integer_in(value, 1, INT64_MAX, extent)) {
      fields.fail(subject + " has the size " + value_text(value) + " in its shape");
    }
    section.shape.push_back(extent);
  }
  if (section.shape.empty()) fields.fail(subject + " has an empty shape");
  if (fields.has("group")) {
    section.group = static_cast<int>(fields.integer("group", 1, kMaxInt));
    if (section.group != kScaleGroup) {
      fields.fail(subject + " has a scale for each " + std::to_string(section.group) +
                      " columns, this edgellm knows groups of " + std::to_string(kScaleGroup),
                  ExitCode::kUnsupported);
    }
  }
  section.offset = static_cast<uint64_t>(fields.integer("offset", 0, INT64_MAX));
  section.bytes = static_cast<uint64_t>(fields.integer("bytes", 1, INT64_MAX));
  const auto expected = tensor_bytes(section.dtype, section.shape);
  if (!expected || *expected != section.bytes) {
    fields.fail(subject + " has " + std::to_string(section.bytes) +
                " bytes, which is not the size of " + dtype + " " + shape_text(section.shape));
  }
  const auto hash = parse_hex64(fields.text("xxh3"));
  if (!hash) fields.fail(subject + ": xxh3 is not 16 hexadecimal digits");
  section.xxh3 = *hash;
  return section;
}

void check_features(const Fields& metadata) {
  for (const Json& feature : metadata.array("requires")) {
    if (!feature.is_string()) metadata.fail("requires holds " + value_text(feature));
    const auto& name = feature.get_ref<const std::string&>();
    if (std::find(kKnownFeatures.begin(), kKnownFeatures.end(), name) != kKnownFeatures.end()) {
      continue;
    }
    metadata.fail("the file needs the feature '" + printable(name) +
                      "', which this edgellm does not know; use a newer edgellm",
                  ExitCode::kUnsupported);
  }
}

}  // namespace

std::string metadata_text(const Metadata& metadata) {
  OrderedJson json;
  json["requires"] = OrderedJson::array();
  if (metadata.config.input_norms) json["requires"].push_back(kInputNorms);
  json["architecture"] = architecture_json(metadata.config);
  json["tokenizer"] = tokenizer_json(metadata.tokenizer);
  json["provenance"] = {{"source", metadata.provenance.source},
                        {"source_files", OrderedJson::parse(metadata.provenance.source_files_json)},
                        {"converter_version", metadata.provenance.converter_version},
                        {"licence", metadata.provenance.licence},
                        {"random", metadata.provenance.random}};
  if (metadata.golden) {
    json["golden"] = {{"prompt_ids", metadata.golden->prompt_ids},
                      {"greedy_ids", metadata.golden->greedy_ids}};
  } else {
    json["golden"] = nullptr;
  }
  OrderedJson sections = OrderedJson::array();
  for (const Section& section : metadata.sections) {
    sections.push_back({{"name", section.name},
                        {"dtype", to_string(section.dtype)},
                        {"shape", section.shape},
                        {"offset", section.offset},
                        {"bytes", section.bytes},
                        {"xxh3", hex64(section.xxh3)}});
    if (section.group > 0) sections.back()["group"] = section.group;
  }
  json["sections"] = std::move(sections);
  // Names and licence texts come from the user's disk and may be in any encoding.
  return json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

Metadata parse_metadata(std::string_view text, const std::string& path) {
  const Json json = parse_json_object(text, {path, "metadata"});
  const Fields fields(json, {path});
  check_features(fields);
  Metadata metadata;
  metadata.config = parse_architecture(fields.object("architecture"));
  metadata.tokenizer = parse_tokenizer(fields.object("tokenizer"), metadata.config.vocab);
  if (fields.has("provenance")) metadata.provenance = parse_provenance(fields.object("provenance"));
  if (fields.has("golden")) {
    metadata.golden = parse_golden(fields.object("golden"), metadata.config);
  }
  std::unordered_set<std::string> names;
  const size_t n_sections = fields.array("sections").size();
  for (size_t i = 0; i < n_sections; ++i) {
    metadata.sections.push_back(parse_section(fields.entry("sections", i)));
    const std::string& name = metadata.sections.back().name;
    if (!names.insert(name).second) {
      fail_in_file(path, "section '" + printable(name) + "' is there twice");
    }
  }
  return metadata;
}

}  // namespace edgellm::model_io
