#include "model/layout.h"

#include "base/error.h"

namespace edgellm {

const char* to_string(DType dtype) {
  switch (dtype) {
    case DType::kT2:
      return "t2";
    case DType::kF32:
      return "f32";
    case DType::kF16:
      return "f16";
    case DType::kBF16:
      return "bf16";
    case DType::kI8:
      return "i8";
    case DType::kU8:
      return "u8";
  }
  throw ContractViolation("unknown dtype");
}

namespace model_io {

std::optional<DType> parse_dtype(std::string_view name) {
  for (const DType dtype :
       {DType::kT2, DType::kF32, DType::kF16, DType::kBF16, DType::kI8, DType::kU8}) {
    if (name == to_string(dtype)) return dtype;
  }
  return std::nullopt;
}

std::optional<uint64_t> tensor_bytes(DType dtype, const std::vector<int64_t>& shape) {
  constexpr uint64_t kLimit = uint64_t{1} << 62;
  if (dtype == DType::kT2 && shape.size() != 2) return std::nullopt;
  uint64_t bytes = dtype == DType::kF32 ? 4 : dtype == DType::kF16 || dtype == DType::kBF16 ? 2 : 1;
  for (size_t i = 0; i < shape.size(); ++i) {
    if (shape[i] < 1) return std::nullopt;
    auto extent = static_cast<uint64_t>(shape[i]);
    if (dtype == DType::kT2 && i == 1) extent = extent / 4 + (extent % 4 != 0 ? 1 : 0);
    if (bytes > kLimit / extent) return std::nullopt;
    bytes *= extent;
  }
  return bytes;
}

std::string layer_section(int layer, std::string_view part) {
  return "layers." + std::to_string(layer) + "." + std::string(part);
}

std::string input_norm_section(int layer, std::string_view matrix) {
  return layer_section(layer, matrix) + ".input_norm";
}

std::vector<int64_t> matrix_shape(const ModelConfig& config, std::string_view matrix) {
  if (matrix == "q") return {config.q_dim(), config.dim};
  if (matrix == "k" || matrix == "v") return {config.kv_dim(), config.dim};
  if (matrix == "o") return {config.dim, config.q_dim()};
  if (matrix == "gate" || matrix == "up") return {config.ffn, config.dim};
  require(matrix == "down", "a matrix of kMatrices");
  return {config.dim, config.ffn};
}

uint64_t parameter_count(const ModelConfig& config) {
  const auto dim = static_cast<uint64_t>(config.dim);
  uint64_t layer = 2 * dim;
  if (config.qk_norm) layer += 2 * static_cast<uint64_t>(config.head_dim);
  if (config.attn_sub_norm) layer += static_cast<uint64_t>(config.q_dim());
  if (config.ffn_sub_norm) layer += static_cast<uint64_t>(config.ffn);
  for (const std::string_view matrix : kMatrices) {
    const std::vector<int64_t> shape = matrix_shape(config, matrix);
    layer += static_cast<uint64_t>(shape[0]) * static_cast<uint64_t>(shape[1]);
    if (config.input_norms) layer += static_cast<uint64_t>(shape[1]);
  }
  const uint64_t table = static_cast<uint64_t>(config.vocab) * dim;
  return table * (config.tied_head ? 1 : 2) + static_cast<uint64_t>(config.layers) * layer + dim;
}

std::vector<SectionPlan> plan_sections(const ModelConfig& config, DType embedding, DType head,
                                       uint64_t tokenizer_json_bytes,
                                       const std::map<std::string, ScalePlan>& scales) {
  std::vector<SectionPlan> plan;
  const auto add = [&](std::string name, DType dtype, std::vector<int64_t> shape, int group = 0) {
    plan.push_back({std::move(name), dtype, std::move(shape), group});
  };
  const auto scale_of = [&](const std::string& name) {
    const auto it = scales.find(name);
    return it == scales.end() ? ScalePlan{} : it->second;
  };
  const auto add_scale = [&](const std::string& name, const std::vector<int64_t>& matrix) {
    const ScalePlan scale = scale_of(name);
    std::vector<int64_t> shape = {scale.shape == ScaleShape::kOne ? 1 : matrix[0]};
    if (scale.shape == ScaleShape::kGroups) shape.push_back(group_count(matrix[1]));
    add(name + ".scale", scale.dtype, shape);
  };
  const auto add_matrix = [&](const std::string& name, DType dtype,
                              const std::vector<int64_t>& shape) {
    const bool has_groups = dtype == DType::kT2 && scale_of(name).shape == ScaleShape::kGroups;
    add(name, dtype, shape, has_groups ? kScaleGroup : 0);
  };
  const std::vector<int64_t> table = {config.vocab, config.dim};
  if (tokenizer_json_bytes > 0) {
    add(std::string(kTokenizerJson), DType::kU8, {static_cast<int64_t>(tokenizer_json_bytes)});
  }
  add(std::string(kInvFreq), DType::kF32, {config.head_dim / 2});
  for (int layer = 0; layer < config.layers; ++layer) {
    add(layer_section(layer, "attn_norm"), DType::kF32, {config.dim});
    if (config.qk_norm) {
      add(layer_section(layer, "q_norm"), DType::kF32, {config.head_dim});
      add(layer_section(layer, "k_norm"), DType::kF32, {config.head_dim});
    }
    if (config.attn_sub_norm) {
      add(layer_section(layer, "attn_sub_norm"), DType::kF32, {config.q_dim()});
    }
    add(layer_section(layer, "ffn_norm"), DType::kF32, {config.dim});
    if (config.ffn_sub_norm) {
      add(layer_section(layer, "ffn_sub_norm"), DType::kF32, {config.ffn});
    }
    for (const std::string_view matrix : kMatrices) {
      const std::vector<int64_t> shape = matrix_shape(config, matrix);
      if (config.input_norms) {
        add(input_norm_section(layer, matrix), DType::kF32, {shape[1]});
      }
      add_scale(layer_section(layer, matrix), shape);
    }
  }
  add(std::string(kFinalNorm), DType::kF32, {config.dim});
  if (embedding == DType::kT2) add_scale(std::string(kEmbedding), table);
  if (!config.tied_head && head == DType::kT2) add_scale(std::string(kHead), table);

  add_matrix(std::string(kEmbedding), embedding, table);
  for (int layer = 0; layer < config.layers; ++layer) {
    for (const std::string_view matrix : kMatrices) {
      add_matrix(layer_section(layer, matrix), DType::kT2, matrix_shape(config, matrix));
    }
  }
  if (!config.tied_head) add_matrix(std::string(kHead), head, table);
  return plan;
}

}  // namespace model_io
}  // namespace edgellm
