// edgellm info: what is in a model file, without reading its weights.
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "apps/common/terminal.h"
#include "apps/common/text_format.h"
#include "apps/flags/flags.h"
#include "apps/inspect/commands.h"
#include "apps/session/sampling_choice.h"
#include "apps/session/session.h"
#include "base/error.h"
#include "base/text.h"
#include "engine/token_bytes.h"

namespace edgellm {
namespace {

using Json = nlohmann::ordered_json;

struct InfoFlags {
  ModelChoice model;
  bool json = false;
  bool sections = false;
};

// Where the bytes of a file go.
struct ByteCounts {
  uint64_t ternary = 0;
  uint64_t scales = 0;
  uint64_t dense = 0;            // embedding and head
  uint64_t vectors = 0;          // norms and rope frequencies
  uint64_t blobs = 0;            // tokenizer.json and the like
  uint64_t ternary_weights = 0;  // a count, not bytes
};

ByteCounts count_bytes(const ModelFile& model) {
  ByteCounts counts;
  for (const Section& section : model.sections()) {
    if (section.dtype == DType::kT2) {
      counts.ternary += section.bytes;
      uint64_t weights = 1;
      for (const int64_t extent : section.shape) weights *= static_cast<uint64_t>(extent);
      counts.ternary_weights += weights;
    } else if (section.name.ends_with(".scale")) {
      counts.scales += section.bytes;
    } else if (section.dtype == DType::kU8) {
      counts.blobs += section.bytes;
    } else if (section.shape.size() > 1) {
      counts.dense += section.bytes;
    } else {
      counts.vectors += section.bytes;
    }
  }
  return counts;
}

double bits_per_ternary_weight(const ByteCounts& counts) {
  if (counts.ternary_weights == 0) return 0;
  return 8.0 * static_cast<double>(counts.ternary + counts.scales) /
         static_cast<double>(counts.ternary_weights);
}

double bits_per_parameter(const ModelFile& model) {
  return 8.0 * static_cast<double>(model.file_bytes()) /
         static_cast<double>(model.parameter_count());
}

// Embedded JSON was checked when the file was written, not when it was opened.
Json parsed_or_text(const std::string& json) {
  Json parsed = Json::parse(json, nullptr, /*allow_exceptions=*/false);
  return parsed.is_discarded() ? Json(json) : parsed;
}

Json text_or_null(const std::string& text) { return text.empty() ? Json(nullptr) : Json(text); }

Json rope_json(const ModelConfig& config) {
  Json rope = {{"theta", config.rope_theta}, {"scaling", nullptr}};
  if (const auto& scaling = config.rope_scaling) {
    rope["scaling"] = {{"type", "llama3"},
                       {"factor", scaling->factor},
                       {"low_freq_factor", scaling->low_freq_factor},
                       {"high_freq_factor", scaling->high_freq_factor},
                       {"original_max_position", scaling->original_max_position}};
  } else if (const auto& yarn = config.yarn_scaling) {
    rope["scaling"] = {{"type", "yarn"},
                       {"factor", yarn->factor},
                       {"original_max_position", yarn->original_max_position},
                       {"beta_fast", yarn->beta_fast},
                       {"beta_slow", yarn->beta_slow},
                       {"attention_factor", yarn->attention_factor}};
  }
  return rope;
}

Json tokenizer_json(const ModelFile& model) {
  const TokenizerInfo& info = model.tokenizer();
  if (!info.present) return nullptr;
  return {{"bos", info.bos ? Json(*info.bos) : Json(nullptr)},
          {"add_bos", info.add_bos},
          {"stop_ids", info.stop_ids},
          {"chat_template", text_or_null(info.chat_template)},
          {"special_tokens", info.special_tokens ? Json(*info.special_tokens) : Json(nullptr)}};
}

Json golden_json(const ModelFile& model) {
  if (!model.golden()) return nullptr;
  return {{"prompt_ids", model.golden()->prompt_ids}, {"greedy_ids", model.golden()->greedy_ids}};
}

// What a run with the full context takes on a GPU; needs none. Empty in a build without CUDA.
std::optional<MemoryPlan> gpu_memory(const ModelFile& model) {
  const MemoryPlan plan =
      plan_cuda_memory(model, engine_options({}, model.config(), /*on_gpu=*/true));
  return plan.total() == 0 ? std::nullopt : std::optional(plan);
}

Json gpu_memory_json(const ModelFile& model) {
  const auto plan = gpu_memory(model);
  if (!plan) return nullptr;
  return {{"total", plan->total()},
          {"weights", plan->weights},
          {"head_copy", plan->certified_head},
          {"kv_cache", plan->kv_cache},
          {"workspace", plan->workspace}};
}

Json sections_json(const ModelFile& model) {
  Json sections = Json::array();
  for (const Section& section : model.sections()) {
    sections.push_back({{"name", section.name},
                        {"dtype", to_string(section.dtype)},
                        {"shape", section.shape},
                        {"offset", section.offset},
                        {"bytes", section.bytes},
                        {"xxh3", hex64(section.xxh3)}});
  }
  return sections;
}

void print_as_json(const ModelFile& model, bool with_sections) {
  const ModelConfig& config = model.config();
  const Provenance& provenance = model.provenance();
  const ByteCounts bytes = count_bytes(model);
  Json json = {{"schema", "edgellm.info/2"},
               {"path", model.path()},
               {"id", hex64(model.id())},
               {"bytes", model.file_bytes()},
               {"params", model.parameter_count()},
               {"bits_per_param", bits_per_parameter(model)},
               {"architecture",
                {{"name", config.architecture},
                 {"layers", config.layers},
                 {"dim", config.dim},
                 {"ffn", config.ffn},
                 {"heads", config.heads},
                 {"kv_heads", config.kv_heads},
                 {"head_dim", config.head_dim},
                 {"vocab", config.vocab},
                 {"max_context", config.max_context},
                 {"act", to_string(config.act)},
                 {"attn_sub_norm", config.attn_sub_norm},
                 {"ffn_sub_norm", config.ffn_sub_norm},
                 {"qk_norm", config.qk_norm},
                 {"input_norms", config.input_norms},
                 {"activation_quant", to_string(config.activation_quant)},
                 {"tied_head", config.tied_head},
                 {"norm_eps", shortest_decimal(config.norm_eps)},
                 {"rope", rope_json(config)}}},
               {"bytes_by_kind",
                {{"ternary", bytes.ternary},
                 {"scales", bytes.scales},
                 {"embedding_and_head", bytes.dense},
                 {"norms_and_rope", bytes.vectors},
                 {"tokenizer_and_other", bytes.blobs}}},
               {"bits_per_ternary_weight", bits_per_ternary_weight(bytes)},
               {"memory",
                {{"gpu", gpu_memory_json(model)},
                 {"weight_bytes_per_token", weight_bytes_per_token(model)},
                 {"kv_cache_i16", kv_cache_bytes(config, config.max_context, KvType::kI16)},
                 {"kv_cache_i8", kv_cache_bytes(config, config.max_context, KvType::kI8)},
                 {"kv_cache_f32", kv_cache_bytes(config, config.max_context, KvType::kF32)}}},
               {"tokenizer", tokenizer_json(model)},
               {"sampling", parsed_or_text(model.tokenizer().sampling_json)},
               {"provenance",
                {{"source", provenance.source},
                 {"random", provenance.random},
                 {"converter_version", text_or_null(provenance.converter_version)},
                 {"licence", text_or_null(provenance.licence)},
                 {"source_files", parsed_or_text(provenance.source_files_json)}}},
               {"golden", golden_json(model)}};
  if (with_sections) json["sections"] = sections_json(model);
  print_json(json);
}

// Two columns, a block per subject. Values come from a file: control characters are escaped.
class Table {
 public:
  void row(const std::string& label, const std::string& value) {
    constexpr size_t kLabelColumns = 18;
    std::string start = label;
    start.resize(std::max(kLabelColumns, label.size() + 1), ' ');
    text_ += start + printable_path(value) + "\n";
  }
  void gap() { text_ += "\n"; }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

const char* yes_no(bool value) { return value ? "yes" : "no"; }

void architecture_rows(const ModelConfig& config, Table& table) {
  const auto number = [](int value) { return std::to_string(value); };
  table.row("architecture", config.architecture);
  table.row("layers", number(config.layers));
  table.row("hidden size", number(config.dim));
  table.row("ffn size", number(config.ffn) + ", activation " + to_string(config.act));
  table.row("heads", number(config.heads) + " query, " + number(config.kv_heads) + " key/value, " +
                         number(config.head_dim) + " wide");
  table.row("vocabulary", number(config.vocab) + (config.tied_head ? ", head tied" : ""));
  table.row("context", number(config.max_context));
  table.row("sub-norms", std::string("attention ") + yes_no(config.attn_sub_norm) + ", ffn " +
                             yes_no(config.ffn_sub_norm));
  table.row("activations", config.activation_quant == ActivationQuant::kInt8Row
                               ? "int8, a scale for each row"
                               : "float (int16, a unit for each 128)");
  if (config.qk_norm) table.row("norms of heads", "q and k");
  if (config.input_norms) table.row("input norms", "of each ternary matrix");
  std::string rope = "theta " + fixed(config.rope_theta, 0);
  if (config.yarn_scaling) rope += ", yarn scaling by " + fixed(config.yarn_scaling->factor, 2);
  if (config.rope_scaling) rope += ", llama3 scaling by " + fixed(config.rope_scaling->factor, 2);
  table.row("rope", rope);
}

void byte_rows(const ModelFile& model, Table& table) {
  const ByteCounts bytes = count_bytes(model);
  table.row("parameters", human_count(model.parameter_count()) + " (" +
                              std::to_string(model.parameter_count()) + "), " +
                              fixed(bits_per_parameter(model), 2) + " bits each in the file");
  table.row("ternary weights", human_bytes(bytes.ternary) + " and " + human_bytes(bytes.scales) +
                                   " of scales, " + fixed(bits_per_ternary_weight(bytes), 3) +
                                   " bits per weight");
  table.row("embedding, head", human_bytes(bytes.dense));
  table.row("norms, rope", human_bytes(bytes.vectors));
  table.row("tokenizer, other", human_bytes(bytes.blobs));
}

void tokenizer_rows(const ModelFile& model, Table& table) {
  const auto tokenizer = load_tokenizer(model);
  if (!tokenizer) {
    table.row("tokenizer", "none: runs from ids only (--ids-file)");
    return;
  }
  const TokenizerInfo& info = model.tokenizer();
  const auto name = [&](int32_t id) {
    return std::to_string(id) + " " + std::string(tokenizer->token_bytes(id));
  };
  table.row("tokenizer", "ids up to " + std::to_string(tokenizer->max_id()));
  table.row("bos", info.bos ? name(*info.bos) + (info.add_bos ? ", added to every text" : "")
                            : std::string("none"));
  std::string stops;
  for (const int32_t id : info.stop_ids) stops += (stops.empty() ? "" : ", ") + name(id);
  table.row("stop ids", stops.empty() ? "none" : stops);
  table.row("chat template", info.chat_template.empty()
                                 ? std::string("none")
                                 : "yes, " + human_bytes(info.chat_template.size()));
  // What --sample adds.
  const Json sampling = parsed_or_text(info.sampling_json);
  const bool lacks_top_k = sampling.is_object() && !sampling.empty() &&
                           !sampling.contains("top_k") &&
                           sampling.value("do_sample", Json()) != false;
  table.row(
      "sampling",
      info.sampling_json +
          (lacks_top_k ? "; top_k " + std::to_string(kDefaultTopK) + " as in transformers" : ""));
}

// Licences are pages of text; their first line says which it is.
std::string licence_line(const std::string& text) {
  if (text.empty()) return "not known";
  const std::string first = text.substr(0, text.find('\n'));
  return first.size() == text.size() ? text : first + " ... (info --json has the whole text)";
}

void provenance_rows(const ModelFile& model, Table& table) {
  const Provenance& provenance = model.provenance();
  table.row("source", provenance.source);
  if (provenance.random) {
    table.row("weights", "RANDOM NUMBERS (edgellm synth): good for measuring, not for text");
  }
  if (!provenance.converter_version.empty()) table.row("converter", provenance.converter_version);
  table.row("licence", licence_line(provenance.licence));
  table.row("golden", model.golden() ? std::to_string(model.golden()->greedy_ids.size()) +
                                           " greedy ids after " +
                                           std::to_string(model.golden()->prompt_ids.size())
                                     : std::string("none"));
}

void print_as_text(const ModelFile& model, bool with_sections) {
  const ModelConfig& config = model.config();
  Table table;
  table.row("file", model.path());
  table.row("id", hex64(model.id()));
  table.row("size", human_bytes(model.file_bytes()) + " (" + std::to_string(model.file_bytes()) +
                        " bytes)");
  provenance_rows(model, table);
  table.gap();
  architecture_rows(config, table);
  table.gap();
  byte_rows(model, table);
  table.gap();
  tokenizer_rows(model, table);
  table.gap();
  table.row("memory", human_bytes(model.file_bytes()) + " mapped, " +
                          human_bytes(kv_cache_bytes(config, config.max_context, KvType::kI16)) +
                          " KV cache at the full context (i16)");
  if (const auto plan = gpu_memory(model)) {
    table.row("gpu memory", human_bytes(plan->total()) +
                                " at the full context: " + human_bytes(plan->weights) +
                                " weights, " + human_bytes(plan->certified_head) + " int8 head, " +
                                human_bytes(plan->kv_cache) + " KV cache, " +
                                human_bytes(plan->workspace) + " workspace");
  }
  table.row("read per token", human_bytes(weight_bytes_per_token(model)) + " of weights");
  if (with_sections) {
    table.gap();
    for (const Section& section : model.sections()) {
      table.row(section.name, std::string(to_string(section.dtype)) + " " +
                                  shape_text(section.shape) + ", " + std::to_string(section.bytes) +
                                  " bytes at " + std::to_string(section.offset) + ", xxh3 " +
                                  hex64(section.xxh3));
    }
  }
  write_stdout(table.text());
}

int info(const InfoFlags& flags) {
  const ModelFile model = open_model(flags.model);
  if (flags.json) {
    print_as_json(model, flags.sections);
  } else {
    print_as_text(model, flags.sections);
  }
  return 0;
}

}  // namespace

void add_info(Program& program) {
  Command& command = program.add("info", "Show what is in a .tmac2 file",
                                 "  edgellm info model.tmac2\n"
                                 "  edgellm info model.tmac2 --json --sections");
  auto flags = std::make_shared<InfoFlags>();
  add_model_argument(command, flags->model);
  command.flag("--sections", flags->sections, "Also list every section of the file");
  command.flag("--json", flags->json, "Print one JSON object");
  command.runs([flags] { return info(*flags); });
}

}  // namespace edgellm
