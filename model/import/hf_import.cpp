// convert_hf and convert_older: a checkpoint becomes a `.tmac2` file. Tensors stream through small
// buffers; only a packed matrix is held whole (its four row blocks interleave).

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <set>

#include "base/error.h"
#include "base/file_io.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/text.h"
#include "model/convert.h"
#include "model/float_bits.h"
#include "model/import/hf_config.h"
#include "model/import/hf_tokenizer.h"
#include "model/import/older_file.h"
#include "model/import/safetensors.h"
#include "model/layout.h"
#include "model/model_writer.h"
#include "model/ternary.h"

namespace edgellm {
namespace {

using namespace model_io;

// Large enough that a read costs little, small enough to stay in the second-level cache.
constexpr size_t kBlockBytes = size_t{512} << 10;
constexpr uint64_t kMaxLicenceBytes = uint64_t{64} << 10;

bool is_float_dtype(const std::string& dtype) {
  return dtype == "BF16" || dtype == "F16" || dtype == "F32";
}

size_t float_dtype_bytes(const std::string& dtype) { return dtype == "F32" ? 4 : 2; }

DType float_dtype(const std::string& dtype) {
  if (dtype == "BF16") return DType::kBF16;
  if (dtype == "F16") return DType::kF16;
  require(dtype == "F32", "a float dtype");
  return DType::kF32;
}

void widen(const std::string& dtype, const std::byte* from, size_t n, float* to) {
  if (dtype == "F32") {
    std::memcpy(to, from, n * 4);
    return;
  }
  const bool is_bf16 = dtype == "BF16";
  for (size_t i = 0; i < n; ++i) {
    uint16_t bits = 0;
    std::memcpy(&bits, from + 2 * i, 2);
    to[i] = is_bf16 ? bf16_to_float(bits) : f16_to_float(bits);
  }
}

// What the parts of a layer are called in a checkpoint. A sub-norm has two names: that of
// transformers and that of 1bitLLM's code.
struct PartName {
  std::string_view part;
  std::vector<std::string> names;
};
const std::vector<PartName> kLayerNorms = {
    {"attn_norm", {"input_layernorm"}},
    {"ffn_norm", {"post_attention_layernorm"}},
    {"attn_sub_norm", {"self_attn.attn_sub_norm", "self_attn.inner_attn_ln"}},
    {"ffn_sub_norm", {"mlp.ffn_sub_norm", "mlp.ffn_layernorm"}}};
const std::vector<PartName> kLayerMatrices = {
    {"q", {"self_attn.q_proj"}}, {"k", {"self_attn.k_proj"}}, {"v", {"self_attn.v_proj"}},
    {"o", {"self_attn.o_proj"}}, {"gate", {"mlp.gate_proj"}}, {"up", {"mlp.up_proj"}},
    {"down", {"mlp.down_proj"}}};

// Where a conversion begins: a checkpoint and what is known of its model.
struct Source {
  std::string path;         // of the folder or file, for messages
  std::string name;         // for the provenance
  std::string config_path;  // of config.json; may be empty
  HfConfig hf;
  bool tie_is_known = true;  // else the head is tied if it equals the embedding
  HfTokenizer tokenizer;
  std::string tokenizer_path;  // of tokenizer.json
  Checkpoint checkpoint;
  std::vector<std::string> texts;  // paths of all other files that were read
  std::string licence;
};

class Importer {
 public:
  Importer(Source source, const std::string& output, const ConvertOptions& options);
  ConvertedModel run();

 private:
  struct Matrix {
    std::string section;
    const CheckpointTensor* weight = nullptr;
    const CheckpointTensor* scale = nullptr;  // of a packed matrix
    int64_t rows = 0;
    int64_t cols = 0;
    std::vector<float> row_scales;  // of an older file: one, or one for each row
  };
  struct Vector {
    std::string section;
    const CheckpointTensor* tensor = nullptr;
    int64_t size = 0;
  };

  [[noreturn]] void fail(const CheckpointTensor& tensor, const std::string& what,
                         ExitCode code = ExitCode::kModelFile) const;

  // Finding and checking what the checkpoint holds.
  const CheckpointTensor* take(const std::string& name);
  const CheckpointTensor& take_needed(const std::string& name);
  void check_float(const CheckpointTensor& tensor, const std::vector<int64_t>& shape) const;
  void check_table(const CheckpointTensor& tensor, const std::vector<int64_t>& shape) const;
  void find_tensors();
  void find_layer(int layer);
  void find_sub_norm(int layer, const PartName& part, int64_t size);
  void find_matrix(const std::string& name, const std::string& section,
                   const std::vector<int64_t>& shape);
  void find_head();
  void check_all_understood() const;

  // Converting it.
  Metadata make_metadata();
  std::vector<FileIdentity> input_identities() const;
  std::string hash_sources();
  void write_norm(const Vector& norm);
  void write_dense(std::string_view section, const CheckpointTensor& tensor);
  void write_matrix(const Matrix& matrix);
  void write_packed(const Matrix& matrix);
  void write_masters(const Matrix& matrix);
  void write_coded(const Matrix& matrix);
  std::vector<float> read_row_scales(const CheckpointTensor& tensor) const;
  float packed_multiplier(const Matrix& matrix) const;
  DType table_dtype(const CheckpointTensor& tensor) const;
  std::vector<std::byte> table_rows(const CheckpointTensor& tensor, int64_t first, int64_t n) const;
  bool equals_embedding(const CheckpointTensor& head);
  template <typename Use>
  void for_each_block(const CheckpointTensor& tensor, const Use& use);

  void report(const std::string& what, uint64_t bytes);

  Source source_;
  std::string output_;
  const ConvertOptions& options_;
  HfConfig& hf_ = source_.hf;
  HfTokenizer& tokenizer_ = source_.tokenizer;
  const Checkpoint& checkpoint_ = source_.checkpoint;
  std::set<std::string> understood_;
  std::vector<Vector> norms_;
  std::vector<Matrix> matrices_;
  const CheckpointTensor* embedding_ = nullptr;
  const CheckpointTensor* head_ = nullptr;  // also a copy of the embedding in a tied checkpoint
  std::unique_ptr<ModelWriter> writer_;
  std::vector<std::byte> block_;
  std::vector<float> values_;
  uint64_t done_ = 0;
  uint64_t total_ = 0;
};

std::string checked_folder(const std::string& source) {
  if (!path_exists(source)) fail_file(source, "no such folder");
  if (!is_folder(source)) {
    fail_file(source, "is a file, expected a Hugging Face folder (config.json, safetensors)");
  }
  return source;
}

Importer::Importer(Source source, const std::string& output, const ConvertOptions& options)
    : source_(std::move(source)), output_(output), options_(options), block_(kBlockBytes) {}

void Importer::fail(const CheckpointTensor& tensor, const std::string& what, ExitCode code) const {
  throw Error(code, printable_path(checkpoint_.path_of(tensor)) + ": tensor '" +
                        printable(tensor.name) + "' " + what);
}

const CheckpointTensor* Importer::take(const std::string& name) {
  const CheckpointTensor* tensor = checkpoint_.find(name);
  if (tensor != nullptr) understood_.insert(name);
  return tensor;
}

const CheckpointTensor& Importer::take_needed(const std::string& name) {
  const CheckpointTensor* tensor = take(name);
  if (tensor == nullptr) fail_file(source_.path, "tensor '" + name + "' is missing");
  return *tensor;
}

void Importer::check_float(const CheckpointTensor& tensor,
                           const std::vector<int64_t>& shape) const {
  if (!is_float_dtype(tensor.dtype)) {
    fail(tensor, "is " + tensor.dtype + ", expected BF16, F16 or F32");
  }
  if (tensor.shape != shape) {
    fail(tensor, "has the shape " + shape_text(tensor.shape) + ", config.json calls for " +
                     shape_text(shape));
  }
}

// An embedding or a head.
void Importer::check_table(const CheckpointTensor& tensor,
                           const std::vector<int64_t>& shape) const {
  if (tensor.coding == RowCoding::kNone) {
    check_float(tensor, shape);
  } else {
    require(tensor.shape == shape, "coded tensors were measured when they were found");
  }
}

void Importer::find_matrix(const std::string& name, const std::string& section,
                           const std::vector<int64_t>& shape) {
  Matrix matrix;
  matrix.section = section;
  matrix.weight = &take_needed(name + ".weight");
  matrix.scale = take(name + ".weight_scale");
  matrix.rows = shape[0];
  matrix.cols = shape[1];
  const CheckpointTensor& weight = *matrix.weight;
  if (weight.coding == RowCoding::kTmacInt8) {
    fail(weight, "is int8, expected ternary weights", ExitCode::kUnsupported);
  }
  if (weight.coding != RowCoding::kNone) {
    matrix.row_scales = read_row_scales(weight);
    matrices_.push_back(matrix);
    return;
  }
  if (weight.dtype != "U8") {
    if (matrix.scale != nullptr) {
      fail(*matrix.scale, "stands beside a weight of " + weight.dtype +
                              "; a weight_scale belongs to packed (U8) weights");
    }
    if (!is_float_dtype(weight.dtype)) {
      fail(weight, "is " + weight.dtype + ", expected U8 (packed), BF16, F16 or F32");
    }
    check_float(weight, shape);
    matrices_.push_back(matrix);
    return;
  }
  const std::vector<int64_t> packed_shape = {shape[0] / 4, shape[1]};
  if (shape[0] % 4 != 0 || weight.shape != packed_shape) {
    fail(weight, "has the shape " + shape_text(weight.shape) + ", config.json calls for " +
                     shape_text(shape) + " packed by four rows: " + shape_text(packed_shape));
  }
  if (matrix.scale == nullptr)
    fail(weight, "is packed (U8) and has no '" + name + ".weight_scale'");
  if (!is_float_dtype(matrix.scale->dtype)) {
    fail(*matrix.scale, "is " + matrix.scale->dtype + ", expected BF16, F16 or F32");
  }
  if (matrix.scale->bytes != float_dtype_bytes(matrix.scale->dtype)) {
    fail(*matrix.scale, "has the shape " + shape_text(matrix.scale->shape) + ", expected [1]",
         ExitCode::kUnsupported);
  }
  if (hf_.scale_meaning == ScaleMeaning::kUnknown) {
    fail(*matrix.scale,
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
  matrices_.push_back(matrix);
}

void Importer::find_sub_norm(int layer, const PartName& part, int64_t size) {
  const std::string prefix = "model.layers." + std::to_string(layer) + ".";
  const CheckpointTensor* first = take(prefix + part.names[0] + ".weight");
  const CheckpointTensor* second = take(prefix + part.names[1] + ".weight");
  if (first != nullptr && second != nullptr) {
    fail(*second, "is a second name of '" + first->name + "'; expected one of the two");
  }
  const CheckpointTensor* norm = first != nullptr ? first : second;
  if (norm == nullptr) {
    fail_file(source_.path, "tensor '" + prefix + part.names[0] +
                                ".weight' is missing (every layer of a " + hf_.model.architecture +
                                " has one)");
  }
  check_float(*norm, {size});
  norms_.push_back({layer_section(layer, part.part), norm, size});
}

void Importer::find_layer(int layer) {
  const ModelConfig& config = hf_.model;
  const std::string prefix = "model.layers." + std::to_string(layer) + ".";
  for (const PartName& part : kLayerNorms) {
    if (part.names.size() == 1) {
      const CheckpointTensor& norm = take_needed(prefix + part.names[0] + ".weight");
      check_float(norm, {config.dim});
      norms_.push_back({layer_section(layer, part.part), &norm, config.dim});
    } else if (part.part == "attn_sub_norm" ? config.attn_sub_norm : config.ffn_sub_norm) {
      find_sub_norm(layer, part, part.part == "attn_sub_norm" ? config.q_dim() : config.ffn);
    }
  }
  for (const PartName& part : kLayerMatrices) {
    find_matrix(prefix + part.names[0], layer_section(layer, part.part),
                matrix_shape(config, part.part));
  }
}

void Importer::find_head() {
  const std::vector<int64_t> shape = {hf_.model.vocab, hf_.model.dim};
  head_ = take("lm_head.weight");
  if (head_ == nullptr) {
    if (hf_.model.tied_head) return;
    fail_file(source_.path,
              "tensor 'lm_head.weight' is missing, and tie_word_embeddings is not true");
  }
  check_table(*head_, shape);
  if (!source_.tie_is_known) {
    hf_.model.tied_head =
        table_dtype(*head_) == table_dtype(*embedding_) && equals_embedding(*head_);
  }
  if (hf_.model.tied_head && head_->dtype != embedding_->dtype) {
    fail(*head_, "is " + head_->dtype + " and the embedding is " + embedding_->dtype +
                     ", but tie_word_embeddings is true: they must be equal");
  }
}

void Importer::check_all_understood() const {
  for (const auto& [name, tensor] : checkpoint_.tensors()) {
    if (understood_.contains(name)) continue;
    // Old checkpoints store this table; it follows from rope_theta.
    if (name.ends_with(".rotary_emb.inv_freq")) continue;
    fail(tensor,
         "is not part of a " + hf_.model.architecture + " of " + std::to_string(hf_.model.layers) +
             " layers as edgellm knows it",
         ExitCode::kUnsupported);
  }
}

void Importer::find_tensors() {
  embedding_ = &take_needed("model.embed_tokens.weight");
  check_table(*embedding_, {hf_.model.vocab, hf_.model.dim});
  for (int layer = 0; layer < hf_.model.layers; ++layer) find_layer(layer);
  const CheckpointTensor& final_norm = take_needed("model.norm.weight");
  check_float(final_norm, {hf_.model.dim});
  norms_.push_back({std::string(kFinalNorm), &final_norm, hf_.model.dim});
  find_head();
  check_all_understood();
}

std::vector<FileIdentity> Importer::input_identities() const {
  std::vector<FileIdentity> inputs;
  for (const InputFile& file : checkpoint_.files()) inputs.push_back(file.identity());
  for (const std::string& path : source_.texts) inputs.push_back(InputFile(path).identity());
  return inputs;
}

void Importer::report(const std::string& what, uint64_t bytes) {
  done_ += bytes;
  if (options_.progress) options_.progress(what, done_, total_);
}

std::string Importer::hash_sources() {
  Json hashes = Json::object();
  const auto hash = [&](const InputFile& file) {
    const std::string name = std::filesystem::path(file.path()).filename().string();
    Hasher hasher;
    for (uint64_t at = 0; at < file.size(); at += kBlockBytes) {
      const auto bytes = static_cast<size_t>(std::min<uint64_t>(kBlockBytes, file.size() - at));
      file.read(at, block_.data(), bytes);
      hasher.update(block_.data(), bytes);
      report("hashing " + printable(name), bytes);
    }
    hashes[printable_path(name)] = "xxh3:" + hex64(hasher.digest());
  };
  for (const InputFile& file : checkpoint_.files()) hash(file);
  for (const std::string& path : source_.texts) hash(InputFile(path));
  return hashes.dump();
}

std::string read_licence(const std::string& folder) {
  for (const char* name : {"LICENSE", "LICENSE.txt", "LICENSE.md", "LICENCE", "COPYING"}) {
    const std::string path = folder + "/" + name;
    if (!path_exists(path) || is_folder(path)) continue;
    const InputFile file(path);
    std::string text(static_cast<size_t>(std::min(file.size(), kMaxLicenceBytes)), '\0');
    file.read(0, text.data(), text.size());
    return text;
  }
  return "";
}

std::string base_name(const std::string& folder) {
  return std::filesystem::absolute(folder + "/.")
      .lexically_normal()
      .parent_path()
      .filename()
      .string();
}

Metadata Importer::make_metadata() {
  Metadata metadata;
  metadata.config = hf_.model;
  metadata.tokenizer = tokenizer_.info;
  metadata.provenance.source = source_.name;
  metadata.provenance.converter_version = EDGELLM_VERSION;
  metadata.provenance.licence = source_.licence;
  metadata.provenance.source_files_json = hash_sources();
  return metadata;
}

template <typename Use>
void Importer::for_each_block(const CheckpointTensor& tensor, const Use& use) {
  for (uint64_t at = 0; at < tensor.bytes; at += kBlockBytes) {
    const auto bytes = static_cast<size_t>(std::min<uint64_t>(kBlockBytes, tensor.bytes - at));
    checkpoint_.read(tensor, at, block_.data(), bytes);
    use(block_.data(), bytes);
    report("converting " + printable(tensor.name), bytes);
  }
}

bool all_finite(const float* values, size_t n) {
  bool finite = true;
  for (size_t i = 0; i < n; ++i) {
    finite &= (std::bit_cast<uint32_t>(values[i]) & 0x7F800000u) != 0x7F800000u;
  }
  return finite;
}

void Importer::write_norm(const Vector& norm) {
  for_each_block(*norm.tensor, [&](const std::byte* data, size_t bytes) {
    const size_t n = bytes / float_dtype_bytes(norm.tensor->dtype);
    values_.resize(n);
    widen(norm.tensor->dtype, data, n, values_.data());
    if (!all_finite(values_.data(), n)) fail(*norm.tensor, "holds a value that is not finite");
    writer_->append(norm.section, values_.data(), n * 4);
  });
}

DType Importer::table_dtype(const CheckpointTensor& tensor) const {
  return tensor.coding == RowCoding::kNone ? float_dtype(tensor.dtype) : coded_dtype(tensor);
}

// Rows [first, first + n) of an embedding or a head as they are written.
std::vector<std::byte> Importer::table_rows(const CheckpointTensor& tensor, int64_t first,
                                            int64_t n) const {
  if (tensor.coding != RowCoding::kNone) {
    return decode_rows(tensor, read_coded_rows(checkpoint_, tensor, first, n));
  }
  const size_t row_bytes = static_cast<size_t>(tensor.shape[1]) * float_dtype_bytes(tensor.dtype);
  std::vector<std::byte> rows(static_cast<size_t>(n) * row_bytes);
  checkpoint_.read(tensor, static_cast<uint64_t>(first) * row_bytes, rows.data(), rows.size());
  return rows;
}

// Calls use(first row, number of rows) until all rows of a matrix were used.
template <typename Use>
void for_each_rows(const CheckpointTensor& tensor, const Use& use) {
  const int64_t rows = tensor.shape[0];
  const auto row_bytes = static_cast<size_t>(tensor.shape[1]) * sizeof(float);
  const auto step = static_cast<int64_t>(std::max<size_t>(1, kBlockBytes / row_bytes));
  for (int64_t row = 0; row < rows; row += step) use(row, std::min(step, rows - row));
}

void Importer::write_dense(std::string_view section, const CheckpointTensor& tensor) {
  const auto rows = static_cast<uint64_t>(tensor.shape[0]);
  for_each_rows(tensor, [&](int64_t first, int64_t n) {
    const std::vector<std::byte> data = table_rows(tensor, first, n);
    if (tensor.coding == RowCoding::kNone) {
      values_.resize(data.size() / float_dtype_bytes(tensor.dtype));
      widen(tensor.dtype, data.data(), values_.size(), values_.data());
      if (!all_finite(values_.data(), values_.size())) {
        fail(tensor, "holds a value that is not finite");
      }
    }
    writer_->append(section, data.data(), data.size());
    report("converting " + printable(tensor.name), tensor.bytes / rows * static_cast<uint64_t>(n));
  });
}

float Importer::packed_multiplier(const Matrix& matrix) const {
  std::array<std::byte, 4> bytes{};
  checkpoint_.read(*matrix.scale, 0, bytes.data(), float_dtype_bytes(matrix.scale->dtype));
  float scale = 0;
  widen(matrix.scale->dtype, bytes.data(), 1, &scale);
  const float multiplier = hf_.scale_meaning == ScaleMeaning::kMultiplies ? scale : 1.0f / scale;
  if (!(scale > 0) || !std::isfinite(scale) || !std::isfinite(multiplier)) {
    fail(*matrix.scale, "is " + std::to_string(scale) + ", expected a finite number above 0");
  }
  return multiplier;
}

void Importer::write_packed(const Matrix& matrix) {
  const float multiplier = packed_multiplier(matrix);
  writer_->append(matrix.section + ".scale", &multiplier, sizeof(multiplier));

  const auto cols = static_cast<size_t>(matrix.cols);
  std::vector<uint8_t> codes(static_cast<size_t>(matrix.rows) * ((cols + 3) / 4));
  const int64_t packed_rows = matrix.rows / 4;
  const auto rows_per_block = static_cast<int64_t>(std::max<size_t>(1, kBlockBytes / cols));
  std::vector<uint8_t> packed(static_cast<size_t>(rows_per_block) * cols);
  for (int64_t row = 0; row < packed_rows; row += rows_per_block) {
    const int64_t n_rows = std::min(rows_per_block, packed_rows - row);
    const size_t bytes = static_cast<size_t>(n_rows) * cols;
    checkpoint_.read(*matrix.weight, static_cast<uint64_t>(row) * cols, packed.data(), bytes);
    for (int64_t i = 0; i < n_rows; ++i) {
      const uint8_t* from = packed.data() + static_cast<size_t>(i) * cols;
      if (repack_row(from, row + i, matrix.rows, matrix.cols, codes.data())) continue;
      const auto invalid = find_invalid_code(from, matrix.cols);
      require(invalid.has_value(), "a code that repack_row refused");
      fail(*matrix.weight, "holds the code 3, which is no ternary value, for row " +
                               std::to_string(row + i + invalid->quarter * packed_rows) +
                               ", column " + std::to_string(invalid->column));
    }
    report("converting " + printable(matrix.weight->name), bytes);
  }
  writer_->append(matrix.section, codes.data(), codes.size());
}

void Importer::write_masters(const Matrix& matrix) {
  const CheckpointTensor& weight = *matrix.weight;
  const size_t element = float_dtype_bytes(weight.dtype);
  MasterStatistics statistics;
  for_each_block(weight, [&](const std::byte* data, size_t bytes) {
    values_.resize(bytes / element);
    widen(weight.dtype, data, values_.size(), values_.data());
    statistics.add(values_.data(), values_.size());
  });
  if (!statistics.all_finite()) fail(weight, "holds a value that is not finite");
  if (hf_.quant_mode == QuantMode::kOffline && !statistics.single_magnitude()) {
    fail(weight,
         "has float weights that are not ternary, but quantization_config says that they "
         "were quantised (quantization_mode offline); for master weights it says online",
         ExitCode::kUnsupported);
  }
  const float multiplier = statistics.multiplier();
  if (!std::isfinite(multiplier)) fail(weight, "is too large: its scale overflows float32");
  writer_->append(matrix.section + ".scale", &multiplier, sizeof(multiplier));

  const auto cols = static_cast<size_t>(matrix.cols);
  const size_t row_bytes = (cols + 3) / 4;
  const size_t rows_per_block = std::max<size_t>(1, kBlockBytes / (cols * element));
  std::vector<std::byte> data(rows_per_block * cols * element);
  std::vector<uint8_t> codes(rows_per_block * row_bytes);
  values_.resize(rows_per_block * cols);
  const auto rows = static_cast<size_t>(matrix.rows);
  for (size_t row = 0; row < rows; row += rows_per_block) {
    const size_t n_rows = std::min(rows_per_block, rows - row);
    checkpoint_.read(weight, row * cols * element, data.data(), n_rows * cols * element);
    widen(weight.dtype, data.data(), n_rows * cols, values_.data());
    for (size_t i = 0; i < n_rows; ++i) {
      quantise_row(values_.data() + i * cols, matrix.cols, statistics.inverse_scale(),
                   codes.data() + i * row_bytes);
    }
    writer_->append(matrix.section, codes.data(), n_rows * row_bytes);
  }
}

// One scale where all are equal: that is what such a matrix had before it was written by rows.
std::vector<float> Importer::read_row_scales(const CheckpointTensor& tensor) const {
  std::vector<float> scales;
  for_each_rows(tensor, [&](int64_t first, int64_t n) {
    const CodedRows rows = read_coded_rows(checkpoint_, tensor, first, n);
    scales.insert(scales.end(), rows.scales.begin(), rows.scales.end());
  });
  const bool all_equal = std::all_of(scales.begin(), scales.end(),
                                     [&](float scale) { return scale == scales.front(); });
  if (all_equal) scales.resize(1);
  return scales;
}

void Importer::write_coded(const Matrix& matrix) {
  const std::vector<float>& scales = matrix.row_scales;
  writer_->append(matrix.section + ".scale", scales.data(), scales.size() * sizeof(float));
  const CheckpointTensor& weight = *matrix.weight;
  for_each_rows(weight, [&](int64_t first, int64_t n) {
    const CodedRows rows = read_coded_rows(checkpoint_, weight, first, n);
    writer_->append(matrix.section, rows.codes.data(), rows.codes.size());
    report("converting " + printable(weight.name), rows.codes.size());
  });
}

void Importer::write_matrix(const Matrix& matrix) {
  if (!matrix.row_scales.empty()) {
    write_coded(matrix);
  } else if (matrix.scale != nullptr) {
    write_packed(matrix);
  } else {
    write_masters(matrix);
  }
}

bool Importer::equals_embedding(const CheckpointTensor& head) {
  bool equal = true;
  for_each_rows(head, [&](int64_t first, int64_t n) {
    equal = equal && table_rows(head, first, n) == table_rows(*embedding_, first, n);
  });
  return equal;
}

ConvertedModel Importer::run() {
  if (tokenizer_.info.present && options_.check_tokenizer) {
    options_.check_tokenizer(tokenizer_.tokenizer_json, source_.tokenizer_path);
  }
  find_tensors();
  for (const InputFile& file : checkpoint_.files()) total_ += 2 * file.size();
  for (const std::string& path : source_.texts) total_ += InputFile(path).size();
  const std::vector<float> inv_freq = rope_inv_freq(hf_.model);
  if (!all_finite(inv_freq.data(), inv_freq.size())) {
    throw Error(ExitCode::kUnsupported,
                printable_path(source_.config_path) + ": rope_theta gives infinite frequencies");
  }
  const ModelConfig& config = hf_.model;
  std::set<std::string> row_scaled;
  for (const Matrix& matrix : matrices_) {
    if (matrix.row_scales.size() > 1) row_scaled.insert(matrix.section);
  }
  const std::vector<SectionPlan> plan = plan_sections(
      config, table_dtype(*embedding_), config.tied_head ? DType::kBF16 : table_dtype(*head_),
      tokenizer_.tokenizer_json.size(), row_scaled);
  writer_ = std::make_unique<ModelWriter>(output_, make_metadata(), plan, input_identities(),
                                          options_.dry_run);

  if (tokenizer_.info.present) {
    writer_->append(kTokenizerJson, tokenizer_.tokenizer_json.data(),
                    tokenizer_.tokenizer_json.size());
  }
  writer_->append(kInvFreq, inv_freq.data(), inv_freq.size() * sizeof(float));
  for (const Vector& norm : norms_) write_norm(norm);
  write_dense(kEmbedding, *embedding_);
  for (const Matrix& matrix : matrices_) write_matrix(matrix);
  // A tied checkpoint may carry its head as well; transformers would ignore it, so it must not be
  // another one.
  if (config.tied_head && head_ != nullptr && !equals_embedding(*head_)) {
    fail(*head_,
         "differs from 'model.embed_tokens.weight', but tie_word_embeddings is true; if "
         "the head is meant to be used, set it to false in config.json");
  }
  if (!config.tied_head) write_dense(kHead, *head_);
  writer_->seal();
  if (!options_.dry_run) {
    if (options_.make_golden) writer_->set_golden(options_.make_golden(writer_->temp_path()));
    writer_->commit();
  }
  if (options_.progress) options_.progress("converted", total_, total_);
  return {config, tokenizer_.info, writer_->metadata().sections, writer_->file_bytes(),
          parameter_count(config)};
}

// Those of the paths that lead to a file.
std::vector<std::string> existing(const std::vector<std::string>& paths) {
  std::vector<std::string> found;
  for (const std::string& path : paths) {
    if (!path.empty() && path_exists(path)) found.push_back(path);
  }
  return found;
}

std::vector<std::string> tokenizer_texts(const HfTokenizerFiles& files) {
  std::vector<std::string> paths;
  for (const char* name : {"chat_template.jinja", "config.json", "generation_config.json",
                           "special_tokens_map.json", "tokenizer.json", "tokenizer_config.json"}) {
    paths.push_back(files.path_of(name));
  }
  return existing(paths);
}

// The tokenizer.json that --tokenizer names, and the folder of what belongs to it.
HfTokenizerFiles older_tokenizer_files(const OlderFileOptions& older) {
  if (older.tokenizer.empty()) return {"", "", older.config};
  if (!is_folder(older.tokenizer)) {
    const std::string folder = std::filesystem::path(older.tokenizer).parent_path().string();
    InputFile(older.tokenizer);  // must be there
    return {folder.empty() ? "." : folder, older.tokenizer, older.config};
  }
  HfTokenizerFiles files = HfTokenizerFiles::of_folder(older.tokenizer);
  files.config_json = older.config;
  if (!path_exists(files.tokenizer_json)) fail_file(older.tokenizer, "has no tokenizer.json");
  return files;
}

}  // namespace

ConvertedModel convert_hf(const std::string& source, const std::string& output,
                          const ConvertOptions& options) {
  const std::string folder = checked_folder(source);
  const HfTokenizerFiles files = HfTokenizerFiles::of_folder(folder);
  HfConfig hf = read_hf_config(files.config_json, options.ignore_keys);
  HfTokenizer tokenizer = read_hf_tokenizer(files, hf.model);
  std::vector<std::string> texts = tokenizer_texts(files);
  const std::vector<std::string> index = existing({folder + "/model.safetensors.index.json"});
  texts.insert(texts.end(), index.begin(), index.end());
  Source all = {.path = folder,
                .name = base_name(folder),
                .config_path = files.config_json,
                .hf = std::move(hf),
                .tokenizer = std::move(tokenizer),
                .tokenizer_path = files.tokenizer_json,
                .checkpoint = Checkpoint(folder),
                .texts = std::move(texts),
                .licence = read_licence(folder)};
  return Importer(std::move(all), output, options).run();
}

bool is_older_file(std::string_view head) { return older_format(head).has_value(); }

ConvertedModel convert_older(const std::string& source, const std::string& output,
                             const OlderFileOptions& older, const ConvertOptions& options) {
  InputFile file(source);
  const OlderHeader header = read_older_header(file);
  HfConfig hf = older_config(file, header, older.config, options.ignore_keys);
  const HfTokenizerFiles files = older_tokenizer_files(older);
  HfTokenizer tokenizer = read_hf_tokenizer(files, hf.model);
  Checkpoint checkpoint = older_checkpoint(std::move(file), header, hf.model);
  Source all = {.path = source,
                .name = std::filesystem::path(source).filename().string(),
                .config_path = older.config,
                .hf = std::move(hf),
                .tie_is_known = !older.config.empty(),
                .tokenizer = std::move(tokenizer),
                .tokenizer_path = files.tokenizer_json,
                .checkpoint = std::move(checkpoint),
                .texts = tokenizer_texts(files),
                .licence = ""};
  return Importer(std::move(all), output, options).run();
}

}  // namespace edgellm
