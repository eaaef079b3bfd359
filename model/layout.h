// Which sections a `.tmac2` file has, in which order and of which shape: what the writer writes and
// the reader looks for (docs/format.md).
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/config.h"
#include "model/weights.h"

namespace edgellm::model_io {

inline constexpr char kMagic[] = "TMAC2\r\n\x1A";  // 8 bytes and the terminator
inline constexpr uint32_t kVersion = 1;
inline constexpr uint64_t kHeaderBytes = 32;
inline constexpr uint64_t kSectionAlignment = 256;
inline constexpr uint64_t kFirstSectionAlignment = 4096;  // a page: weights can be mapped
// More than any model needs; bounds what a hostile file can make the JSON parser allocate.
inline constexpr uint64_t kMaxMetadataBytes = uint64_t{16} << 20;

inline constexpr std::string_view kEmbedding = "embedding";
inline constexpr std::string_view kHead = "head";
inline constexpr std::string_view kFinalNorm = "final_norm";
inline constexpr std::string_view kInvFreq = "rope.inv_freq";
inline constexpr std::string_view kTokenizerJson = "tokenizer.json";

// The ternary matrices of a layer in the order of the file.
inline constexpr std::array<std::string_view, 7> kMatrices = {"q",    "k",  "v",   "o",
                                                              "gate", "up", "down"};

// Columns of a row that share a scale where a matrix has one for each group.
inline constexpr int kScaleGroup = 128;

constexpr int64_t group_count(int64_t cols) { return (cols + kScaleGroup - 1) / kScaleGroup; }

struct SectionPlan {
  std::string name;
  DType dtype = DType::kU8;
  std::vector<int64_t> shape;
  int group = 0;  // of a t2 section with a scale for each group: kScaleGroup
};

// The scales of a ternary matrix.
enum class ScaleShape : uint8_t { kOne, kRows, kGroups };
struct ScalePlan {
  ScaleShape shape = ScaleShape::kOne;
  DType dtype = DType::kF32;
};

std::optional<DType> parse_dtype(std::string_view name);

// Bytes of a tensor, empty where that does not fit in 62 bits or a size is below 1. A t2 tensor
// has exactly two sizes.
std::optional<uint64_t> tensor_bytes(DType dtype, const std::vector<int64_t>& shape);

constexpr uint64_t round_up(uint64_t value, uint64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

std::string layer_section(int layer, std::string_view part);  // "layers.3.attn_norm"

// The gain of the input norm of one of kMatrices: "layers.3.q.input_norm".
std::string input_norm_section(int layer, std::string_view matrix);

// [rows, cols] of one of kMatrices.
std::vector<int64_t> matrix_shape(const ModelConfig& config, std::string_view matrix);

// Weights of all matrices and norms, a tied head once.
uint64_t parameter_count(const ModelConfig& config);

// All sections of a model in file order: small ones, then weights. `scales` has what is not one
// float32 for the whole matrix, by the matrix's section ("layers.3.q").
std::vector<SectionPlan> plan_sections(const ModelConfig& config, DType embedding, DType head,
                                       uint64_t tokenizer_json_bytes,
                                       const std::map<std::string, ScalePlan>& scales = {});

}  // namespace edgellm::model_io
