#include "model/import/name_map.h"

#include <algorithm>
#include <array>
#include <set>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/files.h"
#include "base/text.h"
#include "model/import/coded_rows.h"
#include "model/import/tensor_values.h"
#include "model/layout.h"

namespace edgellm::model_io {
namespace {

// What the parts of a layer are called in a checkpoint.
struct PartName {
  std::string_view part;
  std::string_view name;
  // A sub-norm has two names: that of transformers and that of 1bitLLM's code.
  std::string_view other_name = {};
};
constexpr PartName kAttnNorm = {"attn_norm", "input_layernorm"};
constexpr PartName kFfnNorm = {"ffn_norm", "post_attention_layernorm"};
constexpr PartName kQNorm = {"q_norm", "self_attn.q_norm"};
constexpr PartName kKNorm = {"k_norm", "self_attn.k_norm"};
constexpr PartName kAttnSubNorm = {"attn_sub_norm", "self_attn.attn_sub_norm",
                                   "self_attn.inner_attn_ln"};
constexpr PartName kFfnSubNorm = {"ffn_sub_norm", "mlp.ffn_sub_norm", "mlp.ffn_layernorm"};
constexpr PartName kMatrixNames[] = {{"q", "self_attn.q_proj"}, {"k", "self_attn.k_proj"},
                                     {"v", "self_attn.v_proj"}, {"o", "self_attn.o_proj"},
                                     {"gate", "mlp.gate_proj"}, {"up", "mlp.up_proj"},
                                     {"down", "mlp.down_proj"}};

constexpr const char* kInputGain = ".rms_norm.weight";  // behind a matrix's name

// Folds scales into one while they are equal. Blocks of zeros in a GGUF file have the scale 0 here,
// which is that of any other.
class CommonScale {
 public:
  explicit CommonScale(bool zero_is_any) : zero_is_any_(zero_is_any) {}

  void add(float scale) {
    if (scale == 0 && zero_is_any_) return;
    if (found_ && scale != value_) equal_ = false;
    value_ = scale;
    found_ = true;
  }
  bool equal() const { return equal_; }
  float value() const { return value_; }

 private:
  bool zero_is_any_;
  bool found_ = false;
  bool equal_ = true;
  float value_ = 0;
};

// The scales of a matrix, by row. One where all are equal: that is what such a matrix had before it
// was written by rows or blocks. Empty where the blocks of a row have different ones.
std::vector<float> read_row_scales(const Checkpoint& checkpoint, const CheckpointTensor& tensor) {
  const bool zero_is_any = tensor.coding == RowCoding::kGguf;
  std::vector<float> scales;
  CommonScale of_matrix(zero_is_any);
  bool rows_have_one = true;
  for_each_rows(tensor, [&](int64_t first, int64_t n) {
    if (!rows_have_one) return;
    const CodedRows rows = read_coded_rows(checkpoint, tensor, first, n);
    const size_t per_row = rows.scales.size() / static_cast<size_t>(n);
    for (size_t begin = 0; begin < rows.scales.size(); begin += per_row) {
      CommonScale of_row(zero_is_any);
      for (size_t i = begin; i < begin + per_row; ++i) of_row.add(rows.scales[i]);
      rows_have_one = rows_have_one && of_row.equal();
      of_matrix.add(of_row.value());
      scales.push_back(of_row.value());
    }
  });
  if (!rows_have_one) return {};
  if (of_matrix.equal()) scales.assign(1, of_matrix.value());
  return scales;
}

class Mapper {
 public:
  explicit Mapper(ImportSource& source)
      : source_(source), hf_(source.hf), checkpoint_(source.checkpoint) {}

  NameMap run();

 private:
  using Shape = std::vector<int64_t>;

  [[noreturn]] void fail(const CheckpointTensor& tensor, const std::string& what,
                         ExitCode code = ExitCode::kModelFile) const {
    fail_tensor(checkpoint_, tensor, what, code);
  }

  const CheckpointTensor* take(const std::string& name);
  const CheckpointTensor& take_needed(const std::string& name);
  void check_float(const CheckpointTensor& tensor, const Shape& shape) const;
  void check_table(const CheckpointTensor& tensor, const Shape& shape) const;
  void map_layer(int layer);
  void map_norm(int layer, const PartName& part, int64_t size);
  void map_sub_norm(int layer, const PartName& part, int64_t size);
  void map_input_norm(int layer, const PartName& part, int64_t size);
  void map_matrix(const std::string& name, const std::string& section, const Shape& shape);
  void refuse_block_scales(const MappedMatrix& matrix) const;
  void multiply_scales(MappedMatrix& matrix) const;
  void check_packed(const MappedMatrix& matrix, const std::string& name) const;
  void check_unpacked(const MappedMatrix& matrix) const;
  void check_scale(const CheckpointTensor& scale) const;
  void map_head();
  void check_all_understood() const;

  ImportSource& source_;
  HfConfig& hf_;
  const Checkpoint& checkpoint_;
  std::set<std::string> understood_;
  bool has_input_gains_ = false;
  NameMap map_;
};

std::string layer_prefix(int layer) { return "model.layers." + std::to_string(layer) + "."; }

const CheckpointTensor* Mapper::take(const std::string& name) {
  const CheckpointTensor* tensor = checkpoint_.find(name);
  if (tensor != nullptr) understood_.insert(name);
  return tensor;
}

const CheckpointTensor& Mapper::take_needed(const std::string& name) {
  const CheckpointTensor* tensor = take(name);
  if (tensor == nullptr) fail_in_file(source_.path, "tensor '" + name + "' is missing");
  return *tensor;
}

void Mapper::check_float(const CheckpointTensor& tensor, const Shape& shape) const {
  if (tensor.coding != RowCoding::kGguf && !is_float_dtype(tensor.dtype)) {
    fail(tensor, "is " + tensor.dtype + ", expected BF16, F16 or F32");
  }
  if (tensor.shape != shape) {
    fail(tensor, "has the shape " + shape_text(tensor.shape) + ", " + source_.sizes_from +
                     " calls for " + shape_text(shape));
  }
}

// An embedding or a head.
void Mapper::check_table(const CheckpointTensor& tensor, const Shape& shape) const {
  if (tensor.coding == RowCoding::kNone) {
    check_float(tensor, shape);
  } else {
    require(tensor.shape == shape, "coded tensors were measured when they were found");
  }
}

void Mapper::map_norm(int layer, const PartName& part, int64_t size) {
  const CheckpointTensor& norm =
      take_needed(layer_prefix(layer) + std::string(part.name) + ".weight");
  check_float(norm, {size});
  map_.norms.push_back({layer_section(layer, part.part), &norm, size});
}

void Mapper::map_sub_norm(int layer, const PartName& part, int64_t size) {
  const std::string name = layer_prefix(layer) + std::string(part.name) + ".weight";
  const CheckpointTensor* first = take(name);
  const CheckpointTensor* second =
      take(layer_prefix(layer) + std::string(part.other_name) + ".weight");
  if (first != nullptr && second != nullptr) {
    fail(*second, "is a second name of '" + first->name + "'; expected one of the two");
  }
  const CheckpointTensor* norm = first != nullptr ? first : second;
  if (norm == nullptr) {
    fail_in_file(source_.path, "tensor '" + name + "' is missing (every layer of a " +
                                   hf_.model.architecture + " has one)");
  }
  check_float(*norm, {size});
  map_.norms.push_back({layer_section(layer, part.part), norm, size});
}

// Where a checkpoint holds no gain of any input norm, transformers computes with gains of 1.
void Mapper::map_input_norm(int layer, const PartName& part, int64_t size) {
  MappedNorm norm;
  norm.section = input_norm_section(layer, part.part);
  norm.size = size;
  if (has_input_gains_) {
    norm.tensor = &take_needed(layer_prefix(layer) + std::string(part.name) + kInputGain);
    check_float(*norm.tensor, {size});
  }
  map_.norms.push_back(std::move(norm));
}

void Mapper::map_matrix(const std::string& name, const std::string& section, const Shape& shape) {
  MappedMatrix matrix;
  matrix.section = section;
  matrix.weight = &take_needed(name + ".weight");
  matrix.scale = take(name + ".weight_scale");
  matrix.rows = shape[0];
  matrix.cols = shape[1];
  const CheckpointTensor& weight = *matrix.weight;
  if (weight.coding == RowCoding::kTmacInt8) {
    fail(weight, "is int8, expected ternary weights", ExitCode::kUnsupported);
  }
  const bool is_surveyed = hf_.model.activation_quant == ActivationQuant::kInt16Group;
  if (is_surveyed && weight.coding == RowCoding::kGguf) {
    if (matrix.scale != nullptr) {
      fail(*matrix.scale, "is a factor of a matrix, which edgellm knows of int8 models only",
           ExitCode::kUnsupported);
    }
    check_float(weight, shape);
  } else if (weight.coding != RowCoding::kNone) {
    matrix.row_scales = read_row_scales(checkpoint_, weight);
    refuse_block_scales(matrix);
    if (weight.coding == RowCoding::kGguf && matrix.scale != nullptr) multiply_scales(matrix);
  } else if (weight.dtype == "U8") {
    check_packed(matrix, name);
  } else {
    if (!is_float_dtype(weight.dtype)) {
      fail(weight, "is " + weight.dtype + ", expected U8 (packed), BF16, F16 or F32");
    }
    check_float(weight, shape);
    if (matrix.scale != nullptr) check_unpacked(matrix);
  }
  map_.matrices.push_back(std::move(matrix));
}

// One int8 scale for a row of activations leaves no room for scales of parts of a row.
void Mapper::refuse_block_scales(const MappedMatrix& matrix) const {
  if (!matrix.row_scales.empty()) return;
  fail(*matrix.weight,
       "has a scale for every " + std::to_string(matrix.weight->gguf.scale_block) +
           " inputs of a row, which edgellm computes for qwen3 only; supported are one for the "
           "matrix and one for each row",
       ExitCode::kUnsupported);
}

// A GGUF matrix may have a factor beside its scales.
void Mapper::multiply_scales(MappedMatrix& matrix) const {
  const CheckpointTensor& factor = *matrix.scale;
  check_scale(factor);
  float value = 0;
  std::array<std::byte, 4> bytes{};
  checkpoint_.read(factor, 0, bytes.data(), float_dtype_bytes(factor.dtype));
  widen(factor.dtype, bytes.data(), 1, &value);
  for (float& scale : matrix.row_scales) scale *= value;
  const bool valid = value > 0 && all_finite(matrix.row_scales.data(), matrix.row_scales.size());
  if (!valid) fail(factor, "is " + std::to_string(value) + ", expected a finite number above 0");
}

void Mapper::check_packed(const MappedMatrix& matrix, const std::string& name) const {
  const CheckpointTensor& weight = *matrix.weight;
  const Shape packed_shape = {matrix.rows / 4, matrix.cols};
  if (matrix.rows % 4 != 0 || weight.shape != packed_shape) {
    fail(weight, "has the shape " + shape_text(weight.shape) + ", config.json calls for " +
                     shape_text({matrix.rows, matrix.cols}) +
                     " packed by four rows: " + shape_text(packed_shape));
  }
  if (matrix.scale == nullptr) {
    fail(weight, "is packed (U8) and has no '" + name + ".weight_scale'");
  }
  const CheckpointTensor& scale = *matrix.scale;
  check_scale(scale);
  if (hf_.scale_meaning == ScaleMeaning::kUnknown) {
    fail(scale,
         "may multiply or divide: config.json has no quantization_config to say which (add "
         "\"quantization_config\": {\"quant_method\": \"bitnet\", \"linear_class\": ...})",
         ExitCode::kUnsupported);
  }
  if (hf_.quant_mode == QuantMode::kOnline) {
    fail(weight,
         "is packed (U8), but quantization_config.quantization_mode is online, which "
         "means float weights",
         ExitCode::kUnsupported);
  }
}

// A packed checkpoint of autobitlinear that transformers has loaded and saved again: -1, 0 and +1
// as floats, and the scale as before.
void Mapper::check_unpacked(const MappedMatrix& matrix) const {
  const CheckpointTensor& scale = *matrix.scale;
  check_scale(scale);
  if (hf_.scale_meaning == ScaleMeaning::kMultiplies && hf_.quant_mode == QuantMode::kOffline) {
    return;
  }
  fail(scale,
       "stands beside a weight of " + matrix.weight->dtype +
           ", which is supported where quantization_config says linear_class autobitlinear and "
           "quantization_mode offline only; else it belongs to packed (U8) weights",
       ExitCode::kUnsupported);
}

void Mapper::check_scale(const CheckpointTensor& scale) const {
  if (!is_float_dtype(scale.dtype)) {
    fail(scale, "is " + scale.dtype + ", expected BF16, F16 or F32");
  }
  if (scale.bytes != float_dtype_bytes(scale.dtype)) {
    fail(scale, "has the shape " + shape_text(scale.shape) + ", expected [1]",
         ExitCode::kUnsupported);
  }
}

void Mapper::map_layer(int layer) {
  const ModelConfig& config = hf_.model;
  map_norm(layer, kAttnNorm, config.dim);
  map_norm(layer, kFfnNorm, config.dim);
  if (config.qk_norm) {
    map_norm(layer, kQNorm, config.head_dim);
    map_norm(layer, kKNorm, config.head_dim);
  }
  if (config.attn_sub_norm) map_sub_norm(layer, kAttnSubNorm, config.q_dim());
  if (config.ffn_sub_norm) map_sub_norm(layer, kFfnSubNorm, config.ffn);
  for (const PartName& part : kMatrixNames) {
    map_matrix(layer_prefix(layer) + std::string(part.name), layer_section(layer, part.part),
               matrix_shape(config, part.part));
    if (config.input_norms) map_input_norm(layer, part, matrix_shape(config, part.part)[1]);
  }
}

void Mapper::map_head() {
  map_.head = take("lm_head.weight");
  if (map_.head == nullptr) {
    if (hf_.model.tied_head) return;
    fail_in_file(source_.path,
                 "tensor 'lm_head.weight' is missing, and tie_word_embeddings is not true");
  }
  const CheckpointTensor& head = *map_.head;
  const CheckpointTensor& embedding = *map_.embedding;
  check_table(head, {hf_.model.vocab, hf_.model.dim});
  if (!source_.tie_is_known) {
    hf_.model.tied_head = table_dtype(head) == table_dtype(embedding) &&
                          tables_are_equal(checkpoint_, head, embedding);
  }
  if (hf_.model.tied_head && head.dtype != embedding.dtype) {
    fail(head, "is " + head.dtype + " and the embedding is " + embedding.dtype +
                   ", but tie_word_embeddings is true: they must be equal");
  }
}

void Mapper::check_all_understood() const {
  for (const auto& [name, tensor] : checkpoint_.tensors()) {
    if (understood_.contains(name)) continue;
    // Old checkpoints store this table; it follows from rope_theta.
    if (name.ends_with(".rotary_emb.inv_freq")) continue;
    fail(tensor,
         "is not part of a " + hf_.model.architecture + " of " + std::to_string(hf_.model.layers) +
             " layers; edgellm does not support it",
         ExitCode::kUnsupported);
  }
}

NameMap Mapper::run() {
  if (hf_.model.input_norms) {
    has_input_gains_ = std::ranges::any_of(
        checkpoint_.tensors(), [](const auto& entry) { return entry.first.ends_with(kInputGain); });
    if (!has_input_gains_) {
      source_.notes.emplace_back(
          "use_rms_norm is true and no rms_norm has a weight; each is taken as 1, as in "
          "transformers");
    }
  }
  map_.embedding = &take_needed("model.embed_tokens.weight");
  check_table(*map_.embedding, {hf_.model.vocab, hf_.model.dim});
  for (int layer = 0; layer < hf_.model.layers; ++layer) map_layer(layer);
  const CheckpointTensor& final_norm = take_needed("model.norm.weight");
  check_float(final_norm, {hf_.model.dim});
  map_.norms.push_back({std::string(kFinalNorm), &final_norm, hf_.model.dim});
  map_head();
  check_all_understood();
  return std::move(map_);
}

}  // namespace

NameMap map_names(ImportSource& source) { return Mapper(source).run(); }

}  // namespace edgellm::model_io
