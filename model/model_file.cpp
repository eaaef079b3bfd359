#include "model/model_file.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <limits>
#include <unordered_map>

#include "base/clock.h"
#include "base/error.h"
#include "base/files.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/number_format.h"
#include "base/text.h"
#include "model/float_bits.h"
#include "model/import/older_file.h"
#include "model/layout.h"
#include "model/model_file_impl.h"

static_assert(std::endian::native == std::endian::little, "the file is read as it lies in memory");

namespace edgellm {

using namespace model_io;

void Mapping::map(int fd, size_t bytes, const std::string& path) {
  void* address = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd, 0);
  if (address == MAP_FAILED && errno == ENOMEM) {
    // The file is in order; a limit on the process's address space is in the way.
    throw Error(ExitCode::kRuntime, "not enough memory to map the " + std::to_string(bytes) +
                                        " bytes of " + printable_path(path) +
                                        "; if ulimit -v shows a limit, raise it");
  }
  if (address == MAP_FAILED) {
    fail_file(path, std::string("cannot be mapped into memory: ") + std::strerror(errno));
  }
  data_ = static_cast<std::byte*>(address);
  bytes_ = bytes;
}

Mapping::~Mapping() {
  if (data_ != nullptr) ::munmap(data_, bytes_);
}

void Mapping::release(const void* begin, size_t bytes) const {
  // Whole pages around the range: a neighbour's bytes only have to be read again.
  static const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  const auto first = static_cast<size_t>(static_cast<const std::byte*>(begin) - data_);
  const size_t from = first / page * page;
  const size_t to = std::min((first + bytes + page - 1) / page * page, bytes_);
  ::madvise(data_ + from, to - from, MADV_DONTNEED);
}

namespace {

struct Header {
  uint32_t version;
  uint32_t reserved;
  uint64_t metadata_bytes;
  uint64_t metadata_hash;
};

constexpr char kConvertHint[] =
    "; to convert a Hugging Face folder type: edgellm convert FOLDER -o OUT.tmac2";

// What a file is that is not ours, as its first bytes tell.
std::string foreign_format(std::string_view start) {
  if (start.substr(0, 5) == "TMAC2") {
    return "starts like a .tmac2 file, but its line-end bytes were changed: it was copied as text; "
           "copy it again as binary";
  }
  if (older_format(start)) {
    return "is an older .tmac2 file, which is converted before it runs; type: edgellm convert "
           "OLD --tokenizer tokenizer.json -o NEW.tmac2";
  }
  if (start.substr(0, 4) == "GGUF") {
    return std::string("is a GGUF file, expected a .tmac2 file") + kConvertHint;
  }
  if (start.substr(0, 2) == "PK") {
    return std::string("is a zip archive (a PyTorch checkpoint?), expected a .tmac2 file") +
           kConvertHint;
  }
  if (start.size() > 8 && start[8] == '{') {
    return std::string("is a safetensors file, expected a .tmac2 file") + kConvertHint;
  }
  return std::string("is not a .tmac2 file (wrong magic)") + kConvertHint;
}

Header read_header(const InputFile& file) {
  std::array<char, kHeaderBytes> bytes{};
  const auto there = static_cast<size_t>(std::min<uint64_t>(file.size(), bytes.size()));
  if (there == 0) fail_file(file.path(), "is empty, expected a .tmac2 file");
  file.read(0, bytes.data(), there);
  const std::string_view start(bytes.data(), there);
  const std::string_view magic(kMagic, 8);
  if (start.substr(0, 8) != magic.substr(0, there)) fail_file(file.path(), foreign_format(start));
  if (there < kHeaderBytes) fail_file(file.path(), "is cut off inside the header");

  Header header{};
  std::memcpy(&header.version, bytes.data() + 8, 4);
  std::memcpy(&header.reserved, bytes.data() + 12, 4);
  std::memcpy(&header.metadata_bytes, bytes.data() + 16, 8);
  std::memcpy(&header.metadata_hash, bytes.data() + 24, 8);
  if (header.version > kVersion) {
    throw Error(ExitCode::kUnsupported,
                printable_path(file.path()) + " has format version " +
                    std::to_string(header.version) + ", this edgellm reads version " +
                    std::to_string(kVersion) + ": it was made by a newer edgellm; use that one");
  }
  if (header.version != kVersion) fail_file(file.path(), "is damaged: format version 0");
  if (header.reserved != 0) fail_file(file.path(), "is damaged: reserved header bytes are not 0");
  if (header.metadata_bytes == 0 || header.metadata_bytes > kMaxMetadataBytes) {
    fail_file(file.path(), "is damaged: its metadata claims " +
                               std::to_string(header.metadata_bytes) + " bytes, expected 1 to " +
                               std::to_string(kMaxMetadataBytes));
  }
  if (header.metadata_bytes > file.size() - kHeaderBytes) {
    fail_file(file.path(), "is cut off: its metadata claims " +
                               std::to_string(header.metadata_bytes) + " bytes, the file has " +
                               std::to_string(file.size()));
  }
  return header;
}

// Sections lie behind the metadata, aligned, apart from each other, and the file ends with the
// last.
void check_places(const std::vector<Section>& sections, uint64_t metadata_end, uint64_t file_bytes,
                  const std::string& path) {
  std::vector<const Section*> order;
  for (const Section& section : sections) order.push_back(&section);
  std::sort(order.begin(), order.end(),
            [](const Section* a, const Section* b) { return a->offset < b->offset; });
  uint64_t end = metadata_end;
  for (const Section* section : order) {
    const std::string subject = "section '" + printable(section->name) + "'";
    if (section->offset % kSectionAlignment != 0) {
      fail_in_file(path, subject + " starts at " + std::to_string(section->offset) +
                             ", expected a multiple of " + std::to_string(kSectionAlignment));
    }
    if (section->offset < end) fail_in_file(path, subject + " overlaps what stands before it");
    // Both are below 2^63: no overflow.
    if (section->offset > file_bytes || section->bytes > file_bytes - section->offset) {
      fail_file(path, "is cut off: " + subject + " needs " +
                          std::to_string(section->offset + section->bytes) +
                          " bytes of file, there are " + std::to_string(file_bytes) +
                          "; copy or convert it again");
    }
    end = section->offset + section->bytes;
  }
  if (order.empty()) fail_file(path, "has no sections");
  if (order.front()->offset % kFirstSectionAlignment != 0) {
    fail_in_file(path, "its first section starts at " + std::to_string(order.front()->offset) +
                           ", expected a multiple of " + std::to_string(kFirstSectionAlignment));
  }
  if (end != file_bytes) {
    fail_file(path, "has " + std::to_string(file_bytes) + " bytes, expected " +
                        std::to_string(end) + ": something was added to it");
  }
}

// Finds the sections that the architecture calls for and makes views of them.
class Binder {
 public:
  explicit Binder(OpenedModel& impl);
  void bind();

 private:
  using Shape = std::vector<int64_t>;
  const Section& find(const std::string& name) const;
  void expect(const Section& section, const std::vector<DType>& dtypes, const Shape& shape) const;
  const std::byte* data(const Section& section) const {
    return impl_.mapping.data() + section.offset;
  }
  std::span<const float> floats(const std::string& name, int64_t size) const;
  DenseTensor dense(std::string_view name) const;
  TernaryTensor ternary(const std::string& name, const Shape& shape);
  TernaryTensor ternary(int layer, std::string_view matrix) {
    return ternary(layer_section(layer, matrix), matrix_shape(config_, matrix));
  }
  void bind_table(std::string_view name, DenseTensor& dense_table, TernaryTensor& ternary_table);
  std::span<const float> scale(const Section& section, int rows);
  LayerWeights layer(int index);

  OpenedModel& impl_;
  const ModelConfig& config_;
  std::unordered_map<std::string_view, const Section*> by_name_;
};

Binder::Binder(OpenedModel& impl) : impl_(impl), config_(impl.metadata.config) {
  for (const Section& section : impl.metadata.sections) by_name_[section.name] = &section;
}

const Section& Binder::find(const std::string& name) const {
  const auto it = by_name_.find(name);
  if (it == by_name_.end()) fail_in_file(impl_.path, "section '" + name + "' is missing");
  return *it->second;
}

void Binder::expect(const Section& section, const std::vector<DType>& dtypes,
                    const Shape& shape) const {
  if (std::find(dtypes.begin(), dtypes.end(), section.dtype) == dtypes.end()) {
    std::vector<std::string> names;
    for (const DType dtype : dtypes) names.emplace_back(to_string(dtype));
    fail_in_file(impl_.path, "section '" + section.name + "' is " + to_string(section.dtype) +
                                 ", expected " + join(names, " or "));
  }
  if (section.shape != shape) {
    fail_in_file(impl_.path, "section '" + section.name + "' has the shape " +
                                 shape_text(section.shape) + ", the architecture needs " +
                                 shape_text(shape));
  }
}

std::span<const float> Binder::floats(const std::string& name, int64_t size) const {
  const Section& section = find(name);
  expect(section, {DType::kF32}, {size});
  return {reinterpret_cast<const float*>(data(section)), static_cast<size_t>(size)};
}

DenseTensor Binder::dense(std::string_view name) const {
  const Section& section = find(std::string(name));
  expect(section, {DType::kBF16, DType::kF16, DType::kF32}, {config_.vocab, config_.dim});
  return {data(section), section.dtype, config_.vocab, config_.dim};
}

std::span<const float> Binder::scale(const Section& section, int rows) {
  // One row may be called [1] or [rows], which is the same.
  const bool per_row = section.shape != Shape{1};
  expect(section, {DType::kF32, DType::kF16}, {per_row ? rows : 1});
  const auto size = static_cast<size_t>(section.shape[0]);
  if (section.dtype == DType::kF32) return {reinterpret_cast<const float*>(data(section)), size};
  const auto* halves = reinterpret_cast<const uint16_t*>(data(section));
  std::vector<float>& widened = impl_.widened_scales.emplace_back(size);
  std::transform(halves, halves + size, widened.begin(), f16_to_float);
  return widened;
}

TernaryTensor Binder::ternary(const std::string& name, const Shape& shape) {
  const Section& section = find(name);
  expect(section, {DType::kT2}, shape);
  TernaryTensor tensor;
  tensor.codes = reinterpret_cast<const uint8_t*>(data(section));
  tensor.rows = static_cast<int>(shape[0]);
  tensor.cols = static_cast<int>(shape[1]);
  const Section& scales = find(section.name + ".scale");
  if (section.group == 0) {
    tensor.scale = scale(scales, tensor.rows);
    return tensor;
  }
  if (config_.activation_quant == ActivationQuant::kInt8Row) {
    throw Error(ExitCode::kUnsupported,
                printable_path(impl_.path) + ": section '" + name +
                    "' has a scale for each group of columns, which this edgellm knows beside "
                    "activation_quant int16_group only");
  }
  expect(scales, {DType::kF16, DType::kF32}, {shape[0], group_count(shape[1])});
  tensor.group_scale = data(scales);
  tensor.group_scale_dtype = scales.dtype;
  return tensor;
}

// An embedding or a head.
void Binder::bind_table(std::string_view name, DenseTensor& dense_table,
                        TernaryTensor& ternary_table) {
  if (find(std::string(name)).dtype != DType::kT2) {
    dense_table = dense(name);
    return;
  }
  if (config_.activation_quant == ActivationQuant::kInt8Row) {
    throw Error(ExitCode::kUnsupported,
                printable_path(impl_.path) + ": section '" + std::string(name) +
                    "' is ternary, which this edgellm knows beside activation_quant int16_group "
                    "only");
  }
  ternary_table = ternary(std::string(name), {config_.vocab, config_.dim});
  dense_table.rows = config_.vocab;
  dense_table.cols = config_.dim;
}

LayerWeights Binder::layer(int index) {
  LayerWeights layer;
  layer.attn_norm = floats(layer_section(index, "attn_norm"), config_.dim);
  layer.q = ternary(index, "q");
  layer.k = ternary(index, "k");
  layer.v = ternary(index, "v");
  if (config_.qk_norm) {
    layer.q_norm = floats(layer_section(index, "q_norm"), config_.head_dim);
    layer.k_norm = floats(layer_section(index, "k_norm"), config_.head_dim);
  }
  if (config_.attn_sub_norm) {
    layer.attn_sub_norm = floats(layer_section(index, "attn_sub_norm"), config_.q_dim());
  }
  layer.o = ternary(index, "o");
  layer.ffn_norm = floats(layer_section(index, "ffn_norm"), config_.dim);
  layer.gate = ternary(index, "gate");
  layer.up = ternary(index, "up");
  if (config_.ffn_sub_norm) {
    layer.ffn_sub_norm = floats(layer_section(index, "ffn_sub_norm"), config_.ffn);
  }
  layer.down = ternary(index, "down");
  if (config_.input_norms) {
    const auto gain = [&](std::string_view matrix, const TernaryTensor& tensor) {
      return floats(input_norm_section(index, matrix), tensor.cols);
    };
    layer.input_norms = {gain("q", layer.q),      gain("k", layer.k),       gain("v", layer.v),
                         gain("o", layer.o),      gain("gate", layer.gate), gain("up", layer.up),
                         gain("down", layer.down)};
  }
  return layer;
}

void Binder::bind() {
  Weights& weights = impl_.weights;
  bind_table(kEmbedding, weights.embedding, weights.ternary_embedding);
  if (config_.tied_head) {
    weights.head = weights.embedding;
    weights.ternary_head = weights.ternary_embedding;
  } else {
    bind_table(kHead, weights.head, weights.ternary_head);
  }
  weights.final_norm = floats(std::string(kFinalNorm), config_.dim);
  weights.inv_freq = floats(std::string(kInvFreq), config_.head_dim / 2);
  // No reserve: the count is a claim until a section was found for every layer.
  for (int i = 0; i < config_.layers; ++i) weights.layers.push_back(layer(i));
  if (impl_.metadata.tokenizer.present) {
    const Section& section = find(std::string(kTokenizerJson));
    expect(section, {DType::kU8}, {static_cast<int64_t>(section.bytes)});
    impl_.tokenizer_json = {reinterpret_cast<const char*>(data(section)),
                            static_cast<size_t>(section.bytes)};
  }
}

}  // namespace

ModelFile::ModelFile(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ModelFile::ModelFile(ModelFile&&) noexcept = default;
ModelFile& ModelFile::operator=(ModelFile&&) noexcept = default;
ModelFile::~ModelFile() = default;

ModelFile ModelFile::open(const std::string& path) {
  if (is_folder(path)) {
    fail_file(path,
              "is a folder, expected a .tmac2 file; if it is a Hugging Face model type: "
              "edgellm convert " +
                  printable_path(path) + " -o OUT.tmac2");
  }
  const int64_t start_ns = now_ns();
  const InputFile file(path);
  const Header header = read_header(file);

  auto impl = std::make_unique<Impl>();
  impl->path = path;
  impl->metadata_end = kHeaderBytes + header.metadata_bytes;
  std::string metadata(static_cast<size_t>(header.metadata_bytes), '\0');
  file.read(kHeaderBytes, metadata.data(), metadata.size());
  impl->id = xxh3(metadata.data(), metadata.size());
  if (impl->id != header.metadata_hash) {
    fail_file(path, "is damaged: the hash of its metadata is " + hex64(impl->id) + ", expected " +
                        hex64(header.metadata_hash) + "; copy or convert it again");
  }
  impl->metadata = parse_metadata(metadata, path);
  check_places(impl->metadata.sections, impl->metadata_end, file.size(), path);
  if (file.size() > std::numeric_limits<size_t>::max()) {
    throw Error(ExitCode::kUnsupported, printable_path(path) + " is too large for this machine");
  }
  impl->mapping.map(file.fd(), static_cast<size_t>(file.size()), path);
  Binder(*impl).bind();
  if (log_enabled(LogLevel::kDebug)) {
    log(LogLevel::kDebug, "opened " + path + " in " + human_ms(now_ns() - start_ns) + ": " +
                              human_bytes(file.size()) + ", " +
                              std::to_string(impl->metadata.sections.size()) + " sections, id " +
                              hex64(impl->id));
  }
  return ModelFile(std::move(impl));
}

void ModelFile::release_pages(const LayerWeights& layer) const {
  for (const TernaryTensor* tensor :
       {&layer.q, &layer.k, &layer.v, &layer.o, &layer.gate, &layer.up, &layer.down}) {
    release_pages(*tensor);
  }
}

void ModelFile::release_pages(const TernaryTensor& tensor) const {
  if (tensor.codes == nullptr) return;
  impl_->mapping.release(tensor.codes, tensor.bytes());
  if (tensor.group_scale == nullptr) return;
  const auto bytes =
      tensor_bytes(tensor.group_scale_dtype, {tensor.rows, group_count(tensor.cols)});
  require(bytes.has_value(), "scales of this file");
  impl_->mapping.release(tensor.group_scale, static_cast<size_t>(*bytes));
}

void ModelFile::release_pages(const DenseTensor& tensor) const {
  if (tensor.data == nullptr) return;
  const auto bytes = tensor_bytes(tensor.dtype, {tensor.rows, tensor.cols});
  require(bytes.has_value(), "a tensor of this file");
  impl_->mapping.release(tensor.data, static_cast<size_t>(*bytes));
}

uint64_t ModelFile::parameter_count() const {
  return model_io::parameter_count(impl_->metadata.config);
}

const std::string& ModelFile::path() const { return impl_->path; }
uint64_t ModelFile::file_bytes() const { return impl_->mapping.bytes(); }
uint64_t ModelFile::id() const { return impl_->id; }
const ModelConfig& ModelFile::config() const { return impl_->metadata.config; }
const Weights& ModelFile::weights() const { return impl_->weights; }
const TokenizerInfo& ModelFile::tokenizer() const { return impl_->metadata.tokenizer; }
std::string_view ModelFile::tokenizer_json() const { return impl_->tokenizer_json; }
const std::optional<Golden>& ModelFile::golden() const { return impl_->metadata.golden; }
const Provenance& ModelFile::provenance() const { return impl_->metadata.provenance; }
std::span<const Section> ModelFile::sections() const { return impl_->metadata.sections; }

}  // namespace edgellm
