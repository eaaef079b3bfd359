// convert_hf: a Hugging Face folder becomes a `.tmac2` file. Tensors stream through small buffers;
// only a packed matrix is held whole (its four row blocks interleave).

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <set>

#include "base/error.h"
#include "model/convert.h"
#include "model/file_io.h"
#include "model/float_bits.h"
#include "model/hash.h"
#include "model/hf_config.h"
#include "model/hf_tokenizer.h"
#include "model/json.h"
#include "model/layout.h"
#include "model/model_writer.h"
#include "model/safetensors.h"
#include "model/ternary.h"
#include "model/text.h"

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

class Importer {
 public:
  Importer(const std::string& folder, const std::string& output, const ConvertOptions& options);
  void run();

 private:
  struct Matrix {
    std::string section;
    const CheckpointTensor* weight = nullptr;
    const CheckpointTensor* scale = nullptr;  // of a packed matrix
    int64_t rows = 0;
    int64_t cols = 0;
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
  float packed_multiplier(const Matrix& matrix) const;
  void compare_head(const CheckpointTensor& head, const CheckpointTensor& embedding);
  template <typename Use>
  void for_each_block(const CheckpointTensor& tensor, const Use& use);

  void report(const std::string& what, uint64_t bytes);

  std::string folder_;
  std::string output_;
  const ConvertOptions& options_;
  HfConfig hf_;
  HfTokenizer tokenizer_;
  Checkpoint checkpoint_;
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

Importer::Importer(const std::string& folder, const std::string& output,
                   const ConvertOptions& options)
    : folder_(checked_folder(folder)),
      output_(output),
      options_(options),
      hf_(read_hf_config(folder_ + "/config.json", options.ignore_keys)),
      tokenizer_(read_hf_tokenizer(folder_, hf_.model)),
      checkpoint_(folder_),
      block_(kBlockBytes) {}

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
  if (tensor == nullptr) fail_file(folder_, "tensor '" + name + "' is missing");
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

void Importer::find_matrix(const std::string& name, const std::string& section,
                           const std::vector<int64_t>& shape) {
  Matrix matrix = {section, &take_needed(name + ".weight"), take(name + ".weight_scale"), shape[0],
                   shape[1]};
  const CheckpointTensor& weight = *matrix.weight;
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
    fail_file(folder_, "tensor '" + prefix + part.names[0] +
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
    fail_file(folder_, "tensor 'lm_head.weight' is missing, and tie_word_embeddings is not true");
  }
  check_float(*head_, shape);
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
  check_float(*embedding_, {hf_.model.vocab, hf_.model.dim});
  for (int layer = 0; layer < hf_.model.layers; ++layer) find_layer(layer);
  const CheckpointTensor& final_norm = take_needed("model.norm.weight");
  check_float(final_norm, {hf_.model.dim});
  norms_.push_back({std::string(kFinalNorm), &final_norm, hf_.model.dim});
  find_head();
  check_all_understood();
}

std::vector<std::string> source_text_files(const std::string& folder) {
  std::vector<std::string> names;
  for (const char* name : {"chat_template.jinja", "config.json", "generation_config.json",
                           "model.safetensors.index.json", "special_tokens_map.json",
                           "tokenizer.json", "tokenizer_config.json"}) {
    if (path_exists(folder + "/" + name)) names.emplace_back(name);
  }
  return names;
}

std::vector<FileIdentity> Importer::input_identities() const {
  std::vector<FileIdentity> inputs;
  for (const InputFile& file : checkpoint_.files()) inputs.push_back(file.identity());
  for (const std::string& name : source_text_files(folder_)) {
    inputs.push_back(InputFile(folder_ + "/" + name).identity());
  }
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
  for (const std::string& name : source_text_files(folder_)) hash(InputFile(folder_ + "/" + name));
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
  metadata.provenance.source = base_name(folder_);
  metadata.provenance.converter_version = EDGELLM_VERSION;
  metadata.provenance.licence = read_licence(folder_);
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

void Importer::write_dense(std::string_view section, const CheckpointTensor& tensor) {
  for_each_block(tensor, [&](const std::byte* data, size_t bytes) {
    const size_t n = bytes / float_dtype_bytes(tensor.dtype);
    values_.resize(n);
    widen(tensor.dtype, data, n, values_.data());
    if (!all_finite(values_.data(), n)) fail(tensor, "holds a value that is not finite");
    writer_->append(section, data, bytes);
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

void Importer::write_matrix(const Matrix& matrix) {
  if (matrix.scale != nullptr) {
    write_packed(matrix);
  } else {
    write_masters(matrix);
  }
}

// A tied checkpoint may carry its head as well; transformers would ignore it, so it must not be
// another one.
void Importer::compare_head(const CheckpointTensor& head, const CheckpointTensor& embedding) {
  std::vector<std::byte> other(kBlockBytes);
  uint64_t at = 0;
  for_each_block(head, [&](const std::byte* data, size_t bytes) {
    checkpoint_.read(embedding, at, other.data(), bytes);
    at += bytes;
    if (std::memcmp(data, other.data(), bytes) != 0) {
      fail(head,
           "differs from 'model.embed_tokens.weight', but tie_word_embeddings is true; if "
           "the head is meant to be used, set it to false in config.json");
    }
  });
}

void Importer::run() {
  if (tokenizer_.info.present && options_.check_tokenizer) {
    options_.check_tokenizer(tokenizer_.tokenizer_json,
                             folder_ + "/" + std::string(kTokenizerJson));
  }
  find_tensors();
  for (const InputFile& file : checkpoint_.files()) total_ += 2 * file.size();
  for (const std::string& name : source_text_files(folder_)) {
    total_ += InputFile(folder_ + "/" + name).size();
  }
  const std::vector<float> inv_freq = rope_inv_freq(hf_.model);
  if (!all_finite(inv_freq.data(), inv_freq.size())) {
    throw Error(ExitCode::kUnsupported,
                printable_path(folder_) + "/config.json: rope_theta gives infinite frequencies");
  }
  const ModelConfig& config = hf_.model;
  const std::vector<SectionPlan> plan =
      plan_sections(config, float_dtype(embedding_->dtype),
                    config.tied_head ? DType::kBF16 : float_dtype(head_->dtype),
                    tokenizer_.tokenizer_json.size());
  writer_ = std::make_unique<ModelWriter>(output_, make_metadata(), plan, input_identities());

  if (tokenizer_.info.present) {
    writer_->append(kTokenizerJson, tokenizer_.tokenizer_json.data(),
                    tokenizer_.tokenizer_json.size());
  }
  writer_->append(kInvFreq, inv_freq.data(), inv_freq.size() * sizeof(float));
  for (const Vector& norm : norms_) write_norm(norm);
  write_dense(kEmbedding, *embedding_);
  for (const Matrix& matrix : matrices_) write_matrix(matrix);
  if (config.tied_head && head_ != nullptr) compare_head(*head_, *embedding_);
  if (!config.tied_head) write_dense(kHead, *head_);
  writer_->seal();
  if (options_.make_golden) writer_->set_golden(options_.make_golden(writer_->temp_path()));
  writer_->commit();
  if (options_.progress) options_.progress("converted", total_, total_);
}

}  // namespace

void convert_hf(const std::string& source, const std::string& output,
                const ConvertOptions& options) {
  Importer(source, output, options).run();
}

}  // namespace edgellm
