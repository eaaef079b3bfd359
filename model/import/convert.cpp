// convert_hf, convert_older and convert_gguf: a checkpoint becomes a `.tmac2` file. Tensors stream
// through small buffers; only a packed matrix is held whole (its four row blocks interleave).

#include "model/convert.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <map>
#include <memory>
#include <utility>

#include "base/error.h"
#include "base/files.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/text.h"
#include "model/float_bits.h"
#include "model/import/coded_rows.h"
#include "model/import/gguf/rows.h"
#include "model/import/gguf/source.h"
#include "model/import/name_map.h"
#include "model/import/older_file.h"
#include "model/import/source.h"
#include "model/import/tensor_values.h"
#include "model/import/ternary_survey.h"
#include "model/layout.h"
#include "model/model_writer.h"
#include "model/ternary.h"

namespace edgellm {
namespace {

using namespace model_io;

// Streams the tensors of a source into a ModelWriter, as the name map says.
class Importer {
 public:
  Importer(ImportSource source, const std::string& output, const ConvertOptions& options)
      : source_(std::move(source)), output_(output), options_(options), block_(kImportBlockBytes) {}

  ConvertedModel run();

 private:
  [[noreturn]] void fail(const CheckpointTensor& tensor, const std::string& what,
                         ExitCode code = ExitCode::kModelFile) const {
    fail_tensor(checkpoint_, tensor, what, code);
  }

  std::vector<float> checked_inv_freq() const;
  void read_values(const CheckpointTensor& tensor, int64_t first, int64_t n);
  void survey(const std::string& section, const CheckpointTensor& tensor, bool may_be_dense);
  void survey_matrices();
  DType dtype_of(std::string_view section, const CheckpointTensor& table) const;
  std::vector<SectionPlan> plan() const;
  std::vector<FileIdentity> input_identities() const;
  Metadata make_metadata();
  std::string hash_sources();

  void write_norm(const MappedNorm& norm);
  void write_table(std::string_view section, const CheckpointTensor& table);
  void write_matrix(const MappedMatrix& matrix);
  void write_packed(const MappedMatrix& matrix);
  void write_masters(const MappedMatrix& matrix);
  void write_coded(const MappedMatrix& matrix);
  void write_surveyed(const std::string& section, const CheckpointTensor& tensor);
  float packed_multiplier(const MappedMatrix& matrix) const;
  MasterStatistics master_statistics(const CheckpointTensor& weight);
  template <typename Use>
  void for_each_block(const CheckpointTensor& tensor, const Use& use);

  void report(const std::string& what, uint64_t bytes);

  ImportSource source_;
  std::string output_;
  const ConvertOptions& options_;
  const HfConfig& hf_ = source_.hf;
  const HfTokenizer& tokenizer_ = source_.tokenizer;
  const Checkpoint& checkpoint_ = source_.checkpoint;
  NameMap map_;
  // Of a model with float activations: its matrices, and its tables where they are ternary.
  std::map<std::string, TernarySurvey, std::less<>> surveys_;
  std::unique_ptr<ModelWriter> writer_;
  std::vector<std::byte> block_;
  std::vector<float> values_;
  uint64_t done_ = 0;
  uint64_t total_ = 0;
};

void Importer::report(const std::string& what, uint64_t bytes) {
  done_ += bytes;
  if (options_.progress) options_.progress(what, done_, total_);
}

std::vector<FileIdentity> Importer::input_identities() const {
  std::vector<FileIdentity> inputs;
  for (const InputFile& file : checkpoint_.files()) inputs.push_back(file.identity());
  for (const std::string& path : source_.texts) inputs.push_back(InputFile(path).identity());
  return inputs;
}

std::string Importer::hash_sources() {
  Json hashes = Json::object();
  const auto hash = [&](const InputFile& file) {
    const std::string name = std::filesystem::path(file.path()).filename().string();
    Hasher hasher;
    for (uint64_t at = 0; at < file.size(); at += block_.size()) {
      const auto bytes = static_cast<size_t>(std::min<uint64_t>(block_.size(), file.size() - at));
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

Metadata Importer::make_metadata() {
  Metadata metadata;
  metadata.config = hf_.model;
  metadata.tokenizer = tokenizer_.info;
  metadata.provenance.source = options_.source_name.empty() ? source_.name : options_.source_name;
  metadata.provenance.converter_version = EDGELLM_VERSION;
  metadata.provenance.licence = source_.licence;
  metadata.provenance.source_files_json = hash_sources();
  return metadata;
}

// Rows of a matrix as numbers, into values_.
void Importer::read_values(const CheckpointTensor& tensor, int64_t first, int64_t n) {
  if (tensor.coding == RowCoding::kGguf) {
    values_ = gguf::read_numbers(checkpoint_, tensor, first, n);
    return;
  }
  const std::vector<std::byte> data = table_rows(checkpoint_, tensor, first, n);
  values_.resize(static_cast<size_t>(n) * static_cast<size_t>(tensor.shape[1]));
  widen(tensor.dtype, data.data(), values_.size(), values_.data());
}

// Finds the scales of a matrix of floats that are ternary. A table may be an ordinary one.
void Importer::survey(const std::string& section, const CheckpointTensor& tensor,
                      bool may_be_dense) {
  TernarySurvey survey(tensor.shape[1]);
  const auto cols = static_cast<size_t>(tensor.shape[1]);
  std::string problem;
  for_each_rows(tensor, [&](int64_t first, int64_t n) {
    if (!problem.empty()) return;
    read_values(tensor, first, n);
    if (!all_finite(values_.data(), values_.size())) {
      fail(tensor, "holds a value that is not finite");
    }
    for (size_t row = 0; row < static_cast<size_t>(n) && problem.empty(); ++row) {
      problem = survey.add_row(values_.data() + row * cols);
    }
    report("examining " + printable(tensor.name), 0);
  });
  if (problem.empty()) {
    surveys_.emplace(section, std::move(survey));
  } else if (!may_be_dense) {
    fail(tensor,
         "is not ternary: " + problem + "; of a model with float activations each group of " +
             std::to_string(kScaleGroup) +
             " columns should hold 0 and one magnitude; edgellm runs ternary models only",
         ExitCode::kUnsupported);
  }
}

void Importer::survey_matrices() {
  if (hf_.model.activation_quant != ActivationQuant::kInt16Group) return;
  for (const MappedMatrix& matrix : map_.matrices) {
    survey(matrix.section, *matrix.weight, /*may_be_dense=*/false);
  }
  survey(std::string(kEmbedding), *map_.embedding, /*may_be_dense=*/true);
  if (!hf_.model.tied_head) survey(std::string(kHead), *map_.head, /*may_be_dense=*/true);
}

// Of an embedding or a head.
DType Importer::dtype_of(std::string_view section, const CheckpointTensor& table) const {
  return surveys_.contains(section) ? DType::kT2 : table_dtype(table);
}

std::vector<SectionPlan> Importer::plan() const {
  std::map<std::string, ScalePlan> scales;
  for (const MappedMatrix& matrix : map_.matrices) {
    if (matrix.row_scales.size() > 1) scales[matrix.section] = {ScaleShape::kRows, DType::kF32};
  }
  for (const auto& [section, survey] : surveys_) scales[section] = survey.plan();
  const bool is_tied = hf_.model.tied_head;
  return plan_sections(hf_.model, dtype_of(kEmbedding, *map_.embedding),
                       is_tied ? DType::kBF16 : dtype_of(kHead, *map_.head),
                       tokenizer_.tokenizer_json.size(), scales);
}

std::vector<float> Importer::checked_inv_freq() const {
  std::vector<float> inv_freq = rope_inv_freq(hf_.model);
  for (size_t i = 0; i < source_.rope_divisors.size(); ++i) inv_freq[i] /= source_.rope_divisors[i];
  if (!all_finite(inv_freq.data(), inv_freq.size())) {
    throw Error(ExitCode::kUnsupported,
                printable_path(source_.config_path) + ": rope_theta gives infinite frequencies");
  }
  return inv_freq;
}

template <typename Use>
void Importer::for_each_block(const CheckpointTensor& tensor, const Use& use) {
  for (uint64_t at = 0; at < tensor.bytes; at += block_.size()) {
    const auto bytes = static_cast<size_t>(std::min<uint64_t>(block_.size(), tensor.bytes - at));
    checkpoint_.read(tensor, at, block_.data(), bytes);
    use(block_.data(), bytes);
    report("converting " + printable(tensor.name), bytes);
  }
}

void Importer::write_norm(const MappedNorm& norm) {
  if (norm.tensor == nullptr) {
    const std::vector<float> ones(static_cast<size_t>(norm.size), 1.0f);
    writer_->append(norm.section, ones.data(), ones.size() * sizeof(float));
    return;
  }
  if (norm.tensor->coding == RowCoding::kGguf) {
    const std::vector<float> values = gguf::read_numbers(checkpoint_, *norm.tensor, 0, 1);
    writer_->append(norm.section, values.data(), values.size() * sizeof(float));
    report("converting " + printable(norm.tensor->name), norm.tensor->bytes);
    return;
  }
  for_each_block(*norm.tensor, [&](const std::byte* data, size_t bytes) {
    const size_t n = bytes / float_dtype_bytes(norm.tensor->dtype);
    values_.resize(n);
    widen(norm.tensor->dtype, data, n, values_.data());
    if (!all_finite(values_.data(), n)) fail(*norm.tensor, "holds a value that is not finite");
    writer_->append(norm.section, values_.data(), n * 4);
  });
}

// A matrix of floats that are ternary: their signs, and the scales that were found.
void Importer::write_surveyed(const std::string& section, const CheckpointTensor& tensor) {
  const TernarySurvey& survey = surveys_.find(section)->second;
  const std::vector<float> scales = survey.scales();
  if (survey.plan().dtype == DType::kF16) {
    std::vector<uint16_t> halves(scales.size());
    std::transform(scales.begin(), scales.end(), halves.begin(), exact_f16);
    writer_->append(section + ".scale", halves.data(), halves.size() * sizeof(uint16_t));
  } else {
    writer_->append(section + ".scale", scales.data(), scales.size() * sizeof(float));
  }
  const auto cols = static_cast<size_t>(tensor.shape[1]);
  const size_t row_bytes = (cols + 3) / 4;
  for_each_rows(tensor, [&](int64_t first, int64_t n) {
    read_values(tensor, first, n);
    std::vector<uint8_t> codes(static_cast<size_t>(n) * row_bytes);
    for (size_t row = 0; row < static_cast<size_t>(n); ++row) {
      code_signs(values_.data() + row * cols, tensor.shape[1], codes.data() + row * row_bytes);
    }
    writer_->append(section, codes.data(), codes.size());
    const auto rows = static_cast<uint64_t>(tensor.shape[0]);
    report("converting " + printable(tensor.name), tensor.bytes / rows * static_cast<uint64_t>(n));
  });
}

// An embedding or a head.
void Importer::write_table(std::string_view section, const CheckpointTensor& table) {
  if (surveys_.contains(section)) {
    write_surveyed(std::string(section), table);
    return;
  }
  const auto rows = static_cast<uint64_t>(table.shape[0]);
  for_each_rows(table, [&](int64_t first, int64_t n) {
    const std::vector<std::byte> data = table_rows(checkpoint_, table, first, n);
    if (table.coding == RowCoding::kNone) {
      values_.resize(data.size() / float_dtype_bytes(table.dtype));
      widen(table.dtype, data.data(), values_.size(), values_.data());
      if (!all_finite(values_.data(), values_.size())) {
        fail(table, "holds a value that is not finite");
      }
    }
    writer_->append(section, data.data(), data.size());
    report("converting " + printable(table.name), table.bytes / rows * static_cast<uint64_t>(n));
  });
}

float Importer::packed_multiplier(const MappedMatrix& matrix) const {
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

void Importer::write_packed(const MappedMatrix& matrix) {
  const float multiplier = packed_multiplier(matrix);
  writer_->append(matrix.section + ".scale", &multiplier, sizeof(multiplier));

  const auto cols = static_cast<size_t>(matrix.cols);
  std::vector<uint8_t> codes(static_cast<size_t>(matrix.rows) * ((cols + 3) / 4));
  const int64_t packed_rows = matrix.rows / 4;
  const auto rows_per_block = static_cast<int64_t>(std::max<size_t>(1, kImportBlockBytes / cols));
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

MasterStatistics Importer::master_statistics(const CheckpointTensor& weight) {
  // transformers quantises masters of the online mode at each step, whatever they are.
  MasterStatistics statistics(hf_.quant_mode == QuantMode::kOnline
                                  ? MasterStatistics::Constant::kIsIgnored
                                  : MasterStatistics::Constant::kIsMultiplier);
  for_each_block(weight, [&](const std::byte* data, size_t bytes) {
    values_.resize(bytes / float_dtype_bytes(weight.dtype));
    widen(weight.dtype, data, values_.size(), values_.data());
    statistics.add(values_.data(), values_.size());
  });
  if (!statistics.all_finite()) fail(weight, "holds a value that is not finite");
  if (hf_.quant_mode == QuantMode::kOffline && !statistics.single_magnitude()) {
    fail(weight,
         "has float weights that are not ternary, but quantization_config says that they "
         "were quantised (quantization_mode offline, or none); for master weights it says online",
         ExitCode::kUnsupported);
  }
  if (!std::isfinite(statistics.multiplier())) {
    fail(weight, "is too large: its scale overflows float32");
  }
  return statistics;
}

void Importer::write_masters(const MappedMatrix& matrix) {
  const CheckpointTensor& weight = *matrix.weight;
  const MasterStatistics statistics = master_statistics(weight);
  // With a scale the weights are -1, 0 and +1, for which this is a multiplication by 1.
  const float of_scale = matrix.scale != nullptr ? packed_multiplier(matrix) : 1.0f;
  const float multiplier = statistics.multiplier() * of_scale;
  if (!std::isfinite(multiplier)) fail(weight, "is too large: its scale overflows float32");
  writer_->append(matrix.section + ".scale", &multiplier, sizeof(multiplier));

  const auto cols = static_cast<size_t>(matrix.cols);
  const size_t element = float_dtype_bytes(weight.dtype);
  const size_t row_bytes = (cols + 3) / 4;
  const size_t rows_per_block = std::max<size_t>(1, kImportBlockBytes / (cols * element));
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

void Importer::write_coded(const MappedMatrix& matrix) {
  const std::vector<float>& scales = matrix.row_scales;
  writer_->append(matrix.section + ".scale", scales.data(), scales.size() * sizeof(float));
  const CheckpointTensor& weight = *matrix.weight;
  for_each_rows(weight, [&](int64_t first, int64_t n) {
    const CodedRows rows = read_coded_rows(checkpoint_, weight, first, n);
    writer_->append(matrix.section, rows.codes.data(), rows.codes.size());
    report("converting " + printable(weight.name), rows.codes.size());
  });
}

void Importer::write_matrix(const MappedMatrix& matrix) {
  if (surveys_.contains(matrix.section)) {
    write_surveyed(matrix.section, *matrix.weight);
  } else if (!matrix.row_scales.empty()) {
    write_coded(matrix);
  } else if (matrix.weight->dtype == "U8") {
    write_packed(matrix);
  } else {
    write_masters(matrix);
  }
}

ConvertedModel Importer::run() {
  if (tokenizer_.info.present && options_.check_tokenizer) {
    options_.check_tokenizer(tokenizer_.tokenizer_json, source_.tokenizer_path);
  }
  map_ = map_names(source_);
  // Every file is read twice: to hash it, and to convert it.
  for (const InputFile& file : checkpoint_.files()) total_ += 2 * file.size();
  for (const std::string& path : source_.texts) total_ += InputFile(path).size();
  survey_matrices();
  const std::vector<float> inv_freq = checked_inv_freq();
  writer_ = std::make_unique<ModelWriter>(output_, make_metadata(), plan(), input_identities(),
                                          options_.dry_run);
  if (tokenizer_.info.present) {
    writer_->append(kTokenizerJson, tokenizer_.tokenizer_json.data(),
                    tokenizer_.tokenizer_json.size());
  }
  writer_->append(kInvFreq, inv_freq.data(), inv_freq.size() * sizeof(float));
  for (const MappedNorm& norm : map_.norms) write_norm(norm);
  write_table(kEmbedding, *map_.embedding);
  for (const MappedMatrix& matrix : map_.matrices) write_matrix(matrix);
  const bool is_tied = hf_.model.tied_head;
  // A tied checkpoint may carry its head as well; transformers would ignore it, so it must not be
  // another one.
  if (is_tied && map_.head != nullptr &&
      !tables_are_equal(checkpoint_, *map_.head, *map_.embedding)) {
    fail(*map_.head,
         "differs from 'model.embed_tokens.weight', but tie_word_embeddings is true; if "
         "the head is meant to be used, set it to false in config.json");
  }
  if (!is_tied) write_table(kHead, *map_.head);
  writer_->seal();
  if (!options_.dry_run) {
    if (options_.make_golden) writer_->set_golden(options_.make_golden(writer_->temp_path()));
    writer_->commit();
  }
  if (options_.progress) options_.progress("converted", total_, total_);
  return {hf_.model,
          tokenizer_.info,
          writer_->metadata().sections,
          writer_->file_bytes(),
          parameter_count(hf_.model),
          std::move(source_.notes)};
}

}  // namespace

ConvertedModel convert_hf(const std::string& source, const std::string& output,
                          const ConvertOptions& options) {
  return Importer(hf_source(source, options.ignore_keys), output, options).run();
}

bool is_older_file(std::string_view head) { return older_format(head).has_value(); }

ConvertedModel convert_older(const std::string& source, const std::string& output,
                             const OlderFileOptions& older, const ConvertOptions& options) {
  return Importer(older_source(source, older, options.ignore_keys), output, options).run();
}

bool is_gguf_file(std::string_view head) { return head.starts_with("GGUF"); }

ConvertedModel convert_gguf(const std::string& source, const std::string& output,
                            const GgufOptions& gguf, const ConvertOptions& options) {
  return Importer(gguf_source(source, gguf, options.ignore_keys), output, options).run();
}

}  // namespace edgellm
