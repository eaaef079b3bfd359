#include "model/import/gguf/source.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/files.h"
#include "base/text.h"
#include "model/import/gguf/config.h"
#include "model/import/gguf/file.h"
#include "model/import/gguf/i2s_probe.h"
#include "model/import/gguf/rows.h"
#include "model/import/gguf/tokenizer.h"
#include "model/import/gguf/types.h"
#include "model/import/tensor_values.h"
#include "model/layout.h"

namespace edgellm::model_io {
namespace {

using namespace gguf;

constexpr std::string_view kEmbeddingName = "token_embd.weight";
constexpr std::string_view kHeadName = "output.weight";
constexpr std::string_view kRopeFactorsName = "rope_freqs.weight";

enum class PartKind { kMatrix, kNorm, kHeadNorm, kAttnSubNorm, kFfnSubNorm };

// The parts of a layer: "blk.N." + name + ".weight".
struct Part {
  std::string_view name;
  const char* hf_name;
  std::string_view section;  // a matrix's, in a .tmac2 file
  PartKind kind;
};
constexpr std::array kParts = {
    Part{"attn_norm", "input_layernorm", "", PartKind::kNorm},
    Part{"attn_q", "self_attn.q_proj", "q", PartKind::kMatrix},
    Part{"attn_k", "self_attn.k_proj", "k", PartKind::kMatrix},
    Part{"attn_v", "self_attn.v_proj", "v", PartKind::kMatrix},
    Part{"attn_q_norm", "self_attn.q_norm", "", PartKind::kHeadNorm},
    Part{"attn_k_norm", "self_attn.k_norm", "", PartKind::kHeadNorm},
    Part{"attn_sub_norm", "self_attn.attn_sub_norm", "", PartKind::kAttnSubNorm},
    Part{"attn_output", "self_attn.o_proj", "o", PartKind::kMatrix},
    Part{"ffn_norm", "post_attention_layernorm", "", PartKind::kNorm},
    Part{"ffn_gate", "mlp.gate_proj", "gate", PartKind::kMatrix},
    Part{"ffn_up", "mlp.up_proj", "up", PartKind::kMatrix},
    Part{"ffn_sub_norm", "mlp.ffn_sub_norm", "", PartKind::kFfnSubNorm},
    Part{"ffn_down", "mlp.down_proj", "down", PartKind::kMatrix},
};

std::string quoted(const std::string& name) { return "tensor '" + printable(name) + "'"; }

// ---- the files of a model -----------------------------------------------------------------------

// "NAME-00002-of-00005.gguf" as NAME, 2 and 5.
struct SplitName {
  std::string base;
  int64_t part = 0;
  int64_t n_parts = 0;

  std::string path_of(int64_t i) const {
    char ending[48];
    std::snprintf(ending, sizeof ending, "-%05d-of-%05d.gguf", static_cast<int>(i),
                  static_cast<int>(n_parts));
    return base + ending;
  }
};

std::optional<SplitName> split_name(const std::string& path) {
  constexpr std::string_view kPattern = "-00000-of-00000.gguf";
  if (path.size() <= kPattern.size()) return std::nullopt;
  const std::string ending = path.substr(path.size() - kPattern.size());
  for (size_t i = 0; i < kPattern.size(); ++i) {
    const bool digit = ending[i] >= '0' && ending[i] <= '9';
    if (kPattern[i] == '0' ? !digit : ending[i] != kPattern[i]) return std::nullopt;
  }
  return SplitName{path.substr(0, path.size() - kPattern.size()), std::stoll(ending.substr(1, 5)),
                   std::stoll(ending.substr(10, 5))};
}

// All parts, the first one in front: it has the metadata.
std::vector<GgufFile> read_parts(const std::string& path) {
  std::vector<GgufFile> parts;
  parts.push_back(read_gguf(path));
  const int64_t n_parts = parts[0].metadata.find_integer("split.count", 0, 99999).value_or(1);
  if (n_parts <= 1) return parts;
  const auto name = split_name(path);
  if (!name || name->n_parts != n_parts) {
    parts[0].metadata.fail("is one of " + std::to_string(n_parts) +
                           " parts of a model; expected it to be called "
                           "NAME-00001-of-" +
                           SplitName{"", 1, n_parts}.path_of(1).substr(10));
  }
  parts.clear();
  int64_t n_tensors = 0;
  for (int64_t i = 0; i < n_parts; ++i) {
    parts.push_back(read_gguf(name->path_of(i + 1)));
    const GgufMetadata& metadata = parts.back().metadata;
    const int64_t number = metadata.integer("split.no", 0, 99999);
    if (number != i || metadata.integer("split.count", 0, 99999) != n_parts) {
      metadata.fail("says that it is part " + std::to_string(number + 1) +
                    ", its name that it is part " + std::to_string(i + 1) + " of " +
                    std::to_string(n_parts));
    }
    n_tensors += static_cast<int64_t>(parts.back().tensors.size());
  }
  const int64_t expected =
      parts[0].metadata.find_integer("split.tensors.count", 0, INT64_MAX).value_or(n_tensors);
  if (n_tensors != expected) {
    parts[0].metadata.fail("the parts have " + std::to_string(n_tensors) + " tensors, expected " +
                           std::to_string(expected) + "; download them again");
  }
  return parts;
}

// ---- the source ---------------------------------------------------------------------------------

class SourceReader {
 public:
  SourceReader(const std::string& path, const GgufOptions& options,
               const std::vector<std::string>& ignore_keys)
      : path_(path), options_(options), ignore_keys_(ignore_keys), parts_(read_parts(path)) {
    for (const GgufFile& part : parts_) {
      for (const TensorEntry& tensor : part.tensors) {
        if (by_name_.emplace(tensor.name, &tensor).second) continue;
        part.metadata.fail(quoted(tensor.name) + " is in another part of the model as well");
      }
    }
  }

  ImportSource read();

 private:
  const GgufMetadata& metadata() const { return parts_.front().metadata; }
  const TensorEntry* find(std::string_view name) const;
  void refuse_rotated() const;
  void find_q2_layout();
  Type type_of(const GgufFile& part, const TensorEntry& tensor) const;
  CheckpointTensor place(size_t part, const TensorEntry& entry) const;
  std::vector<int64_t> shape_of(const Part& part) const;
  void check_complete() const;
  void check_shape(const CheckpointTensor& tensor, const std::vector<int64_t>& expected) const;
  void name_tensors();
  void name_layer_tensor(const Part& part, int layer, CheckpointTensor tensor);
  void take_i2s_layout(const Checkpoint& checkpoint);
  void read_rope_factors(const Checkpoint& checkpoint);
  void look_at_values(const Checkpoint& checkpoint);
  void choose_dtype(const Checkpoint& checkpoint, CheckpointTensor& table);
  bool has_float_activations() const {
    return config_.model.activation_quant == ActivationQuant::kInt16Group;
  }
  [[noreturn]] void fail(const CheckpointTensor& tensor, const std::string& what,
                         ExitCode code = ExitCode::kModelFile) const {
    throw Error(code, printable_path(parts_[tensor.file].file.path()) + ": " + quoted(tensor.name) +
                          " " + what);
  }

  std::string path_;
  const GgufOptions& options_;
  const std::vector<std::string>& ignore_keys_;
  std::vector<GgufFile> parts_;
  std::map<std::string_view, const TensorEntry*> by_name_;
  std::optional<Type> q2_layout_;
  GgufConfig config_;
  std::map<std::string, CheckpointTensor> tensors_;  // by Hugging Face's names
  std::vector<float> rope_divisors_;
  std::vector<std::string> notes_;
};

const TensorEntry* SourceReader::find(std::string_view name) const {
  const auto it = by_name_.find(name);
  return it == by_name_.end() ? nullptr : it->second;
}

void SourceReader::refuse_rotated() const {
  if (metadata().keys_with_prefix("prism.hadamard.").empty()) return;
  metadata().fail(
      "its weights are rotated by a Hadamard transform (prism.hadamard.*), which edgellm does not "
      "undo; take a file or a Hugging Face folder of the model without the rotation",
      ExitCode::kUnsupported);
}

// A tensor ends where the next begins, but for padding.
bool fits_span(const GgufFile& part, const TensorEntry& tensor, uint64_t bytes) {
  return bytes <= tensor.span && tensor.span - bytes < part.alignment;
}

std::optional<uint64_t> bytes_as(Type type, const TensorEntry& tensor) {
  const int64_t cols = tensor.shape.back();
  return tensor_bytes(type, static_cast<int64_t>(tensor.n_values()) / cols, cols);
}

// Number 42 stands for blocks of 64, for blocks of 128 in files of one fork, and for STQ1_0 in
// those of another. Only the sizes of the tensors tell them apart.
void SourceReader::find_q2_layout() {
  constexpr uint32_t kNumber = 42;
  constexpr uint64_t kStq1_0Block = 256;
  constexpr uint64_t kStq1_0Bytes = 42;
  std::vector<Type> layouts = types_of(kNumber);
  const TensorEntry* example = nullptr;
  bool may_be_stq = true;
  for (const GgufFile& part : parts_) {
    for (const TensorEntry& tensor : part.tensors) {
      if (tensor.type != kNumber) continue;
      example = &tensor;
      may_be_stq =
          may_be_stq && fits_span(part, tensor, tensor.n_values() / kStq1_0Block * kStq1_0Bytes);
      std::erase_if(layouts, [&](Type layout) {
        const auto bytes = bytes_as(layout, tensor);
        return !bytes || !fits_span(part, tensor, *bytes);
      });
    }
  }
  if (example == nullptr) return;
  if (layouts.size() == 1) {
    q2_layout_ = layouts.front();
    notes_.push_back("Q2_0 has blocks of " + std::to_string(traits(*q2_layout_).block) +
                     " weights, by the tensors' sizes");
    return;
  }
  if (layouts.empty() && may_be_stq) {
    metadata().fail(
        quoted(example->name) + " is STQ1_0, which edgellm does not read" + type_advice(43),
        ExitCode::kUnsupported);
  }
  metadata().fail(
      layouts.empty()
          ? quoted(example->name) +
                " is Q2_0, and its size is neither that of blocks of 64 nor of "
                "128 weights; the file is damaged"
          : "its Q2_0 tensors are too small to tell blocks of 64 weights from blocks of 128");
}

Type SourceReader::type_of(const GgufFile& part, const TensorEntry& tensor) const {
  const std::vector<Type> types = types_of(tensor.type);
  if (types.empty()) {
    throw Error(ExitCode::kUnsupported, printable_path(part.file.path()) + ": " +
                                            quoted(tensor.name) + " is " + type_name(tensor.type) +
                                            ", which edgellm does not read" +
                                            type_advice(tensor.type));
  }
  if (types.front() == Type::kQ2_0Of64) return *q2_layout_;
  // The layouts of I2_S have one size; some need other shapes.
  for (const Type type : types) {
    const auto bytes = bytes_as(type, tensor);
    if (bytes && fits_span(part, tensor, *bytes)) return type;
  }
  const auto bytes = bytes_as(types.front(), tensor);
  fail_in_file(
      part.file.path(),
      quoted(tensor.name) + " is " + type_name(tensor.type) + " " + shape_text(tensor.shape) +
          (bytes ? ", which takes " + std::to_string(*bytes) + " bytes; the file has " +
                       std::to_string(tensor.span) +
                       " for it: it is cut off, damaged, or that number means another type "
                       "to the program that wrote it"
                 : ", a shape that this type cannot have"));
}

CheckpointTensor SourceReader::place(size_t part, const TensorEntry& entry) const {
  const Type type = type_of(parts_[part], entry);
  if (gguf::is_ternary(type) && entry.shape.size() != 2) {
    fail_in_file(parts_[part].file.path(), quoted(entry.name) + " is " + traits(type).name +
                                               " and has the shape " + shape_text(entry.shape) +
                                               ", expected a matrix");
  }
  CheckpointTensor tensor;
  tensor.name = entry.name;
  tensor.dtype = traits(type).name;
  tensor.shape = entry.shape;
  tensor.file = part;
  tensor.offset = entry.offset;
  tensor.bytes = *bytes_as(type, entry);
  tensor.coding = RowCoding::kGguf;
  tensor.gguf.type = type;
  return tensor;
}

std::vector<int64_t> SourceReader::shape_of(const Part& part) const {
  const ModelConfig& model = config_.model;
  switch (part.kind) {
    case PartKind::kMatrix:
      return matrix_shape(model, part.section);
    case PartKind::kHeadNorm:
      return {model.head_dim};
    case PartKind::kAttnSubNorm:
      return {model.q_dim()};
    case PartKind::kFfnSubNorm:
      return {model.ffn};
    case PartKind::kNorm:
      return {model.dim};
  }
  return {};
}

void SourceReader::check_shape(const CheckpointTensor& tensor,
                               const std::vector<int64_t>& expected) const {
  if (tensor.shape == expected) return;
  fail(tensor, "has the shape " + shape_text(tensor.shape) + ", its metadata calls for " +
                   shape_text(expected));
}

void SourceReader::check_complete() const {
  const ModelConfig& model = config_.model;
  const auto need = [&](const std::string& name) {
    if (find(name) != nullptr) return;
    metadata().fail(quoted(name) + " is missing (a model of the architecture " +
                    config_.architecture + " has one)");
  };
  need("output_norm.weight");
  if (find("blk.0.attn_qkv.weight") != nullptr) {
    metadata().fail("its q, k and v are one matrix (attn_qkv); supported are three",
                    ExitCode::kUnsupported);
  }
  for (int layer = 0; layer < model.layers; ++layer) {
    for (const Part& part : kParts) {
      if (part.kind == PartKind::kHeadNorm && !model.qk_norm) continue;
      if (part.kind == PartKind::kAttnSubNorm && !model.attn_sub_norm) continue;
      if (part.kind == PartKind::kFfnSubNorm && !model.ffn_sub_norm) continue;
      need("blk." + std::to_string(layer) + "." + std::string(part.name) + ".weight");
    }
  }
}

// Vectors of numbers go the way of every checkpoint.
void as_plain(CheckpointTensor& tensor) {
  const Type type = tensor.gguf.type;
  if (type == Type::kF32 || type == Type::kF16 || type == Type::kBf16) {
    tensor.coding = RowCoding::kNone;
  }
}

void SourceReader::name_layer_tensor(const Part& part, int layer, CheckpointTensor tensor) {
  const std::string hf_name =
      "model.layers." + std::to_string(layer) + "." + part.hf_name + ".weight";
  check_shape(tensor, shape_of(part));
  if (part.kind != PartKind::kMatrix) {
    as_plain(tensor);
  } else if (config_.heads_permuted && (part.section == "q" || part.section == "k")) {
    tensor.gguf.head_rows = config_.model.head_dim;
  }
  tensors_.emplace(hf_name, std::move(tensor));
}

void SourceReader::name_tensors() {
  // "blk.3.attn_q.weight" and what it becomes.
  struct Place {
    const Part* part;
    int layer;
    bool is_scale;
  };
  std::map<std::string, Place> places;
  for (int layer = 0; layer < config_.model.layers; ++layer) {
    for (const Part& part : kParts) {
      const std::string name = "blk." + std::to_string(layer) + "." + std::string(part.name);
      places[name + ".weight"] = {&part, layer, false};
      if (part.kind == PartKind::kMatrix) places[name + ".scale"] = {&part, layer, true};
    }
  }
  const std::vector<int64_t> table = {config_.model.vocab, config_.model.dim};
  for (size_t i = 0; i < parts_.size(); ++i) {
    for (const TensorEntry& entry : parts_[i].tensors) {
      CheckpointTensor tensor = place(i, entry);
      const auto found = places.find(entry.name);
      std::string name = entry.name;  // kept where nobody knows it: the importer refuses it
      if (found != places.end() && !found->second.is_scale) {
        name_layer_tensor(*found->second.part, found->second.layer, std::move(tensor));
        continue;
      }
      if (found != places.end()) {
        as_plain(tensor);
        name = "model.layers." + std::to_string(found->second.layer) + "." +
               found->second.part->hf_name + ".weight_scale";
      } else if (entry.name == kEmbeddingName || entry.name == kHeadName) {
        check_shape(tensor, table);
        if (tensor.gguf.type != Type::kF32) as_plain(tensor);
        name = entry.name == kHeadName ? "lm_head.weight" : "model.embed_tokens.weight";
      } else if (entry.name == "output_norm.weight") {
        check_shape(tensor, {config_.model.dim});
        as_plain(tensor);
        name = "model.norm.weight";
      } else if (entry.name == kRopeFactorsName) {
        check_shape(tensor, {config_.model.head_dim / 2});
      }
      if (!tensors_.emplace(name, tensor).second) {
        fail(tensor, "is there under another name as well");
      }
    }
  }
}

void SourceReader::take_i2s_layout(const Checkpoint& checkpoint) {
  const uint32_t number = traits(Type::kI2sWindow128).number;
  const auto is_i2s = [&](const CheckpointTensor& tensor) {
    return tensor.coding == RowCoding::kGguf && traits(tensor.gguf.type).number == number;
  };
  const auto example = std::find_if(tensors_.begin(), tensors_.end(),
                                    [&](const auto& entry) { return is_i2s(entry.second); });
  if (example == tensors_.end()) return;
  std::optional<Type> layout;
  if (!options_.i2s_layout.empty()) {
    layout = find_i2s_layout(options_.i2s_layout);
    if (!layout) {
      throw Error(ExitCode::kUsage, "--i2s-layout " + printable(options_.i2s_layout) +
                                        " is unknown; expected x86, arm or rows");
    }
  } else {
    layout = probe_i2s_layout(checkpoint, config_.model);
    if (!layout) {
      fail(example->second,
           "is I2_S, of which there are three layouts, and the weights do not show clearly which "
           "it is; name it: --i2s-layout x86 (of Microsoft's converter and x86 builds), arm, or "
           "rows (x86 builds without ACT_PARALLEL)",
           ExitCode::kUnsupported);
    }
  }
  for (auto& [name, tensor] : tensors_) {
    if (!is_i2s(tensor)) continue;
    if (!tensor_bytes(*layout, tensor.shape[0], tensor.shape[1])) {
      fail(tensor, "has the shape " + shape_text(tensor.shape) + ", which the I2_S layout " +
                       i2s_layout_name(*layout) + " cannot have");
    }
    tensor.gguf.type = *layout;
  }
  notes_.push_back(std::string("I2_S has the layout ") + i2s_layout_name(*layout) +
                   (options_.i2s_layout.empty() ? ", as the weights show" : ", as you said"));
}

// LLaMA-3's scaling: a number for each frequency, which is divided by it.
void SourceReader::read_rope_factors(const Checkpoint& checkpoint) {
  const auto found = tensors_.find(std::string(kRopeFactorsName));
  if (found == tensors_.end()) return;
  rope_divisors_ = read_numbers(checkpoint, found->second, 0, 1);
  for (const float divisor : rope_divisors_) {
    if (divisor > 0) continue;
    fail(found->second, "holds " + std::to_string(divisor) + ", expected numbers above 0");
  }
  tensors_.erase(found);
}

void SourceReader::choose_dtype(const Checkpoint& checkpoint, CheckpointTensor& table) {
  if (table.gguf.head_rows != 0 || gguf::rows_together(table) != 1) {
    fail(table, "is " + table.dtype + ", which no embedding or head is known to be",
         ExitCode::kUnsupported);
  }
  const TableChoice choice = choose_table_dtype(checkpoint, table);
  table.gguf.table_dtype = choice.dtype;
  // Those stay ternary where each group of columns has one scale.
  if (has_float_activations() && gguf::is_ternary(table.gguf.type)) return;
  notes_.push_back(table.name + " (" + table.dtype + ") is kept as " + to_string(choice.dtype) +
                   (choice.exact ? ", exactly" : ", the nearer of f16 and bf16"));
}

void SourceReader::look_at_values(const Checkpoint& checkpoint) {
  for (auto& [name, tensor] : tensors_) {
    if (tensor.coding != RowCoding::kGguf || tensor.shape.size() != 2) continue;
    if (tensor.name == kEmbeddingName || tensor.name == kHeadName) {
      choose_dtype(checkpoint, tensor);
      continue;
    }
    // The importer finds the scales of models with float activations.
    if (!name.starts_with("model.") || has_float_activations()) continue;
    const auto block = find_scale_block(checkpoint, tensor);
    if (!block) {
      fail(tensor,
           "is not ternary: its values are not 0 and one magnitude, neither in the matrix nor in "
           "rows nor in blocks of 256 to 32; edgellm runs ternary models only (master weights are "
           "converted from their Hugging Face folder)",
           ExitCode::kUnsupported);
    }
    tensor.gguf.scale_block = *block;
  }
}

ImportSource SourceReader::read() {
  refuse_rotated();
  const TensorEntry* embedding = find(kEmbeddingName);
  if (embedding == nullptr || embedding->shape.size() != 2) {
    metadata().fail(quoted(std::string(kEmbeddingName)) +
                    " is missing or no matrix; expected a language model");
  }
  config_ = read_config(metadata(), embedding->shape[0], find(kHeadName) == nullptr, ignore_keys_);
  if (!config_.assumption.empty()) notes_.push_back(config_.assumption);
  check_complete();
  find_q2_layout();
  name_tensors();

  // The first checkpoint is for looking at the values that decide how the second is read.
  std::vector<InputFile> files;
  for (const GgufFile& part : parts_) files.emplace_back(part.file.path());
  Checkpoint unread(std::move(files), tensors_);
  take_i2s_layout(unread);
  read_rope_factors(unread);
  look_at_values(unread);

  HfTokenizer tokenizer = options_.tokenizer.empty()
                              ? read_tokenizer(metadata(), config_.model, notes_)
                              : HfTokenizer{};
  std::vector<std::string> texts;
  std::string tokenizer_path = path_;
  if (!options_.tokenizer.empty()) {
    const HfTokenizerFiles given = given_tokenizer_files(options_.tokenizer, "");
    tokenizer = read_hf_tokenizer(given, config_.model);
    tokenizer_path = given.tokenizer_json;
    texts = tokenizer_texts(given);
  }
  std::vector<InputFile> inputs;
  for (GgufFile& part : parts_) inputs.push_back(std::move(part.file));
  HfConfig hf;
  hf.model = config_.model;
  return {.path = path_,
          .name = std::filesystem::path(path_).filename().string(),
          .config_path = path_,
          .sizes_from = "its metadata",
          .hf = std::move(hf),
          .rope_divisors = std::move(rope_divisors_),
          .tokenizer = std::move(tokenizer),
          .tokenizer_path = tokenizer_path,
          .checkpoint = Checkpoint(std::move(inputs), std::move(tensors_)),
          .texts = std::move(texts),
          .licence = parts_.front().metadata.find_text("general.license").value_or(""),
          .notes = std::move(notes_)};
}

}  // namespace

ImportSource gguf_source(const std::string& path, const GgufOptions& options,
                         const std::vector<std::string>& ignore_keys) {
  return SourceReader(path, options, ignore_keys).read();
}

}  // namespace edgellm::model_io
