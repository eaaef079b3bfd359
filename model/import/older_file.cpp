#include "model/import/older_file.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <map>
#include <span>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "model/float_bits.h"
#include "model/layout.h"

namespace edgellm::model_io {
namespace {

constexpr std::string_view kTm2Magic("TM2\0", 4);
constexpr std::string_view kTmacMagic("TMAC", 4);
constexpr uint64_t kTm2HeaderBytes = 4 + 7 * 4;
constexpr uint64_t kTmacHeaderBytes = 4 + 7 * 4;
// Longer than any name of Hugging Face.
constexpr uint32_t kMaxNameBytes = 1000;

// Values one after another, none of them beyond the end of the file.
class Cursor {
 public:
  Cursor(const InputFile& file, uint64_t at) : file_(file), at_(at) {}

  uint64_t at() const { return at_; }
  bool at_end() const { return at_ == file_.size(); }

  // `what` is for the message: "the flag of tensor ...".
  template <typename T>
  T read(const std::string& what) {
    T value;
    file_.read(skip(sizeof(T), what), &value, sizeof(T));
    return value;
  }
  std::string text(uint32_t bytes, const std::string& what) {
    if (bytes == 0 || bytes > kMaxNameBytes) {
      fail_file(file_.path(), what + " is " + std::to_string(bytes) +
                                  " bytes long, expected 1 to " + std::to_string(kMaxNameBytes));
    }
    std::string result(bytes, '\0');
    file_.read(skip(bytes, what), result.data(), bytes);
    return result;
  }
  // Moves behind `bytes` bytes and returns where they begin.
  uint64_t skip(uint64_t bytes, const std::string& what) {
    if (bytes > file_.size() - at_) {
      fail_file(file_.path(), "is cut off or damaged: " + what + " takes " + std::to_string(bytes) +
                                  " bytes from byte " + std::to_string(at_) + ", the file has " +
                                  std::to_string(file_.size()));
    }
    return std::exchange(at_, at_ + bytes);
  }

 private:
  const InputFile& file_;
  uint64_t at_;
};

std::string quoted_name(const std::string& name) { return "tensor '" + printable(name) + "'"; }

std::string layer_tensor(int layer, const char* part) {
  return "model.layers." + std::to_string(layer) + "." + part + ".weight";
}

// --- TM2: tensors without names, in one order --------------------------------------------------

class Tm2Tensors {
 public:
  Tm2Tensors(const InputFile& file, const ModelConfig& config)
      : file_(file), config_(config), cursor_(file, kTm2HeaderBytes) {}

  std::map<std::string, CheckpointTensor> read();

 private:
  void add(const std::string& name, std::vector<int64_t> shape, bool may_be_coded);

  const InputFile& file_;
  const ModelConfig& config_;
  Cursor cursor_;
  std::map<std::string, CheckpointTensor> tensors_;
};

void Tm2Tensors::add(const std::string& name, std::vector<int64_t> shape, bool may_be_coded) {
  const std::string what = quoted_name(name);
  CheckpointTensor tensor;
  tensor.name = name;
  tensor.shape = std::move(shape);
  const uint64_t flag_at = cursor_.at();
  const auto flag = cursor_.read<uint8_t>("the flag of " + what);
  const bool coded = flag == 1;
  if (flag > 1 || (coded && !may_be_coded)) {
    fail_file(file_.path(), "byte " + std::to_string(flag_at) + ", the flag of " + what + ", is " +
                                std::to_string(flag) + ", expected " +
                                (may_be_coded ? "0 (float32) or 1 (ternary)" : "0 (float32)") +
                                "; only TM2 files with the tensors in BitNet's order can be read");
  }
  if (coded) {
    const auto rows = cursor_.read<int32_t>("the row count of " + what);
    const auto cols = cursor_.read<int32_t>("the column count of " + what);
    const std::vector<int64_t> found = {rows, cols};
    if (found != tensor.shape) {
      fail_file(file_.path(), what + " has the shape " + shape_text(found) + ", expected " +
                                  shape_text(tensor.shape));
    }
    tensor.dtype = "ternary";
    tensor.coding = RowCoding::kTm2;
  } else {
    tensor.dtype = "F32";
  }
  // Sizes are at most 2^24 and counts 2^32, as validate() and int32 have it: no product overflows.
  const auto rows = static_cast<uint64_t>(tensor.shape[0]);
  const uint64_t cols = tensor.shape.size() == 2 ? static_cast<uint64_t>(tensor.shape[1]) : 1;
  tensor.bytes = coded ? rows * (2 + (cols + 3) / 4) : rows * cols * 4;
  tensor.offset = cursor_.skip(tensor.bytes, what);
  tensors_.emplace(name, std::move(tensor));
}

std::map<std::string, CheckpointTensor> Tm2Tensors::read() {
  const auto matrix = [&](const std::string& name, std::string_view part) {
    add(name, matrix_shape(config_, part), true);
  };
  const std::vector<int64_t> table = {config_.vocab, config_.dim};
  add("model.embed_tokens.weight", table, true);
  for (int layer = 0; layer < config_.layers; ++layer) {
    add(layer_tensor(layer, "input_layernorm"), {config_.dim}, false);
    matrix(layer_tensor(layer, "self_attn.q_proj"), "q");
    matrix(layer_tensor(layer, "self_attn.k_proj"), "k");
    matrix(layer_tensor(layer, "self_attn.v_proj"), "v");
    matrix(layer_tensor(layer, "self_attn.o_proj"), "o");
    add(layer_tensor(layer, "self_attn.attn_sub_norm"), {config_.q_dim()}, false);
    add(layer_tensor(layer, "post_attention_layernorm"), {config_.dim}, false);
    matrix(layer_tensor(layer, "mlp.gate_proj"), "gate");
    matrix(layer_tensor(layer, "mlp.up_proj"), "up");
    matrix(layer_tensor(layer, "mlp.down_proj"), "down");
    add(layer_tensor(layer, "mlp.ffn_sub_norm"), {config_.ffn}, false);
  }
  add("model.norm.weight", {config_.dim}, false);
  add("lm_head.weight", table, true);
  if (!cursor_.at_end()) {
    fail_file(file_.path(), "has " + std::to_string(file_.size() - cursor_.at()) +
                                " bytes behind its last tensor, expected none");
  }
  return std::move(tensors_);
}

// --- TMAC: named tensors -----------------------------------------------------------------------

class TmacTensors {
 public:
  TmacTensors(const InputFile& file, const ModelConfig& config)
      : file_(file), config_(config), cursor_(file, kTmacHeaderBytes) {}

  std::map<std::string, CheckpointTensor> read();

 private:
  CheckpointTensor read_tensor();
  void place_coded(CheckpointTensor& tensor, uint64_t n_scales) const;
  void place_plain(CheckpointTensor& tensor, uint64_t element_bytes) const;
  std::vector<int64_t> matrix_shape_of(const CheckpointTensor& tensor) const;
  [[noreturn]] void fail(const CheckpointTensor& tensor, const std::string& what,
                         ExitCode code = ExitCode::kModelFile) const {
    throw Error(code, printable_path(file_.path()) + ": " + quoted_name(tensor.name) + " " + what);
  }

  const InputFile& file_;
  const ModelConfig& config_;
  Cursor cursor_;
};

// The shape [rows, cols] of the matrix of this name. Files of the program that made them give the
// shape of the packed bytes instead.
std::vector<int64_t> TmacTensors::matrix_shape_of(const CheckpointTensor& tensor) const {
  const std::string& name = tensor.name;
  for (const auto& [ending, part] : {std::pair{".q_proj.weight", "q"},
                                     {".k_proj.weight", "k"},
                                     {".v_proj.weight", "v"},
                                     {".o_proj.weight", "o"},
                                     {".gate_proj.weight", "gate"},
                                     {".up_proj.weight", "up"},
                                     {".down_proj.weight", "down"}}) {
    if (name.ends_with(ending)) return matrix_shape(config_, part);
  }
  if (name.ends_with("embed_tokens.weight") || name == "lm_head.weight") {
    return {config_.vocab, config_.dim};
  }
  fail(tensor, "has row scales, but edgellm knows no matrix of that name", ExitCode::kUnsupported);
}

void TmacTensors::place_coded(CheckpointTensor& tensor, uint64_t n_scales) const {
  const std::vector<int64_t> shape = matrix_shape_of(tensor);
  const auto rows = static_cast<uint64_t>(shape[0]);
  const uint64_t n_values = rows * static_cast<uint64_t>(shape[1]);
  const bool ternary = tensor.coding == RowCoding::kTmacTernary;
  const uint64_t bytes = ternary ? (n_values + 3) / 4 : n_values;
  const std::vector<int64_t> packed = {static_cast<int64_t>(bytes)};
  if (tensor.shape != shape && !(ternary && tensor.shape == packed)) {
    fail(tensor, "has the shape " + shape_text(tensor.shape) + ", config.json calls for " +
                     shape_text(shape) + (ternary ? " or, packed, " + shape_text(packed) : ""));
  }
  if (tensor.bytes != bytes) {
    fail(tensor, "has " + std::to_string(tensor.bytes) + " bytes of data, expected " +
                     std::to_string(bytes));
  }
  if (n_scales != rows) {
    fail(tensor, "has " + std::to_string(n_scales) + " scales, expected one for each of " +
                     std::to_string(rows) + " rows");
  }
  tensor.shape = shape;
}

void TmacTensors::place_plain(CheckpointTensor& tensor, uint64_t element_bytes) const {
  uint64_t expected = element_bytes;
  for (const int64_t extent : tensor.shape) {
    const auto size = static_cast<uint64_t>(extent);
    // Beyond the file's size the exact product does not matter.
    const bool is_beyond = size != 0 && expected > file_.size() / size;
    expected = is_beyond ? file_.size() + 1 : expected * size;
  }
  if (tensor.bytes != expected) {
    fail(tensor, "has " + std::to_string(tensor.bytes) +
                     " bytes of data, which is not the size of " + tensor.dtype + " " +
                     shape_text(tensor.shape));
  }
}

CheckpointTensor TmacTensors::read_tensor() {
  constexpr uint32_t kMaxSizes = 8;
  CheckpointTensor tensor;
  const std::string at = "the tensor at byte " + std::to_string(cursor_.at());
  const auto name_bytes = cursor_.read<uint32_t>("the name of " + at);
  tensor.name = cursor_.text(name_bytes, "the name of " + at);
  const std::string what = quoted_name(tensor.name);
  const auto dtype_bytes = cursor_.read<uint32_t>("the dtype of " + what);
  const std::string dtype = cursor_.text(dtype_bytes, "the dtype of " + what);
  const auto n_sizes = cursor_.read<uint32_t>("the shape of " + what);
  if (n_sizes > kMaxSizes) {
    fail(tensor, "has a shape of " + std::to_string(n_sizes) + " sizes, expected at most " +
                     std::to_string(kMaxSizes));
  }
  for (uint32_t i = 0; i < n_sizes; ++i) {
    tensor.shape.push_back(cursor_.read<uint32_t>("the shape of " + what));
  }
  tensor.bytes = cursor_.read<uint64_t>("the size of " + what);
  tensor.offset = cursor_.skip(tensor.bytes, what);
  const auto scales_bytes = cursor_.read<uint64_t>("the scales' size of " + what);
  tensor.scales_offset = cursor_.skip(scales_bytes, "the scales of " + what);
  if (scales_bytes % 4 != 0) {
    fail(tensor, "has " + std::to_string(scales_bytes) + " bytes of scales, no multiple of 4");
  }
  const uint64_t n_scales = scales_bytes / 4;

  if (dtype == "bitnet" || dtype == "int8") {
    tensor.coding = dtype == "bitnet" ? RowCoding::kTmacTernary : RowCoding::kTmacInt8;
    tensor.dtype = dtype == "bitnet" ? "ternary" : "int8";
    place_coded(tensor, n_scales);
    return tensor;
  }
  if (dtype != "fp16") {
    fail(tensor, "has the dtype '" + printable(dtype) + "'; supported are bitnet, int8 and fp16",
         ExitCode::kUnsupported);
  }
  tensor.dtype = "F16";
  place_plain(tensor, 2);
  // Their writer gives one scale of 1 to what has none.
  float scale = 1;
  if (n_scales == 1) file_.read(tensor.scales_offset, &scale, 4);
  if (n_scales > 1 || scale != 1) fail(tensor, "is fp16 and has scales, expected none or one of 1");
  return tensor;
}

std::map<std::string, CheckpointTensor> TmacTensors::read() {
  // Bounds what a file of very many very small tensors can make of memory.
  const size_t max_tensors = 16 * static_cast<size_t>(config_.layers) + 16;
  std::map<std::string, CheckpointTensor> tensors;
  while (!cursor_.at_end()) {
    CheckpointTensor tensor = read_tensor();
    const std::string name = tensor.name;
    if (!tensors.emplace(name, std::move(tensor)).second) {
      fail_file(file_.path(), quoted_name(name) + " is in the file twice");
    }
    if (tensors.size() > max_tensors) {
      fail_file(file_.path(), "holds more tensors than a model of " +
                                  std::to_string(config_.layers) + " layers has");
    }
  }
  return tensors;
}

// --- Rows --------------------------------------------------------------------------------------

// A code of TMAC (0, 1, 2 for -1, 0, +1) as one of t2; 3 in both is none.
constexpr uint8_t t2_of_tmac(unsigned code) {
  constexpr uint8_t kCodes[] = {3, 0, 1, 2};
  return kCodes[code];
}

}  // namespace

std::optional<OlderFormat> older_format(std::string_view head) {
  if (head.starts_with(kTm2Magic)) return OlderFormat::kTm2;
  // "TMAC2" begins our own files; the version that follows "TMAC" in an older one is no digit.
  if (head.starts_with(kTmacMagic) && !head.starts_with("TMAC2")) return OlderFormat::kTmac;
  return std::nullopt;
}

OlderHeader read_older_header(const InputFile& file) {
  Cursor cursor(file, 4);
  OlderHeader header;
  std::string head(static_cast<size_t>(std::min<uint64_t>(8, file.size())), '\0');
  file.read(0, head.data(), head.size());
  const auto format = older_format(head);
  if (!format) fail_file(file.path(), "begins neither with TM2 nor with TMAC");
  header.format = *format;
  if (header.format == OlderFormat::kTm2) {
    for (int64_t* size : {&header.dim, &header.ffn, &header.layers, &header.heads, &header.kv_heads,
                          &header.vocab, &header.max_context}) {
      *size = cursor.read<int32_t>("the header");
    }
    // A negative vocabulary is how llama2.c and its kin say that the head is a matrix of its own;
    // here there is always one.
    header.vocab = std::abs(header.vocab);
  } else {
    const auto version = cursor.read<uint32_t>("the header");
    if (version != 2) {
      throw Error(ExitCode::kUnsupported, printable_path(file.path()) +
                                              ": is a TMAC file of version " +
                                              std::to_string(version) + "; supported is 2");
    }
    for (int64_t* size : {&header.dim, &header.layers, &header.heads, &header.vocab}) {
      *size = cursor.read<uint32_t>("the header");
    }
    const auto bits = cursor.read<uint32_t>("the header");
    if (bits != 2) {
      throw Error(ExitCode::kUnsupported, printable_path(file.path()) + ": has weights of " +
                                              std::to_string(bits) +
                                              " bits; supported is 2 (ternary)");
    }
    cursor.read<uint32_t>("the header");  // group: of that program's look-up tables
  }
  header.bytes = cursor.at();
  return header;
}

HfConfig older_config(const InputFile& file, const OlderHeader& header,
                      const std::string& config_path, const std::vector<std::string>& ignore_keys) {
  const auto size = [&](const char* name, int64_t value) {
    if (value < 1 || value > INT32_MAX) {
      fail_file(file.path(), std::string("its header says ") + name + " = " +
                                 std::to_string(value) + ", expected at least 1");
    }
    return static_cast<int>(value);
  };
  if (config_path.empty()) {
    if (header.format == OlderFormat::kTmac) {
      throw Error(ExitCode::kUsage,
                  printable_path(file.path()) +
                      ": a TMAC file does not say how its model computes; add --config with the "
                      "config.json of the model it was made from");
    }
    HfConfig config;
    ModelConfig& model = config.model;
    model.architecture = "BitNetForCausalLM";
    model.dim = size("dim", header.dim);
    model.ffn = size("hidden_dim", header.ffn);
    model.layers = size("n_layers", header.layers);
    model.heads = size("n_heads", header.heads);
    model.kv_heads = size("n_kv_heads", header.kv_heads);
    model.vocab = size("vocab_size", header.vocab);
    model.max_context = size("seq_len", header.max_context);
    if (model.dim % model.heads != 0) {
      fail_file(file.path(), "its header says dim = " + std::to_string(model.dim) +
                                 " and n_heads = " + std::to_string(model.heads) +
                                 ", expected a multiple");
    }
    model.head_dim = model.dim / model.heads;
    model.act = Activation::kRelu2;
    model.attn_sub_norm = true;
    model.ffn_sub_norm = true;
    model.norm_eps = 1e-5f;
    model.rope_theta = 500000;
    try {
      validate(model);
    } catch (const Error& error) {
      throw Error(error.code(), printable_path(file.path()) + ": " + error.what());
    }
    return config;
  }

  HfConfig config = read_hf_config(config_path, ignore_keys, WeightsKnown::kTernary);
  const ModelConfig& model = config.model;
  const auto compare = [&](const char* name, int64_t in_file, int64_t in_config) {
    if (in_file == in_config) return;
    fail_file(file.path(), std::string("its header says ") + name + " = " +
                               std::to_string(in_file) + ", " + printable_path(config_path) +
                               " says " + std::to_string(in_config) +
                               "; give the config.json of this model");
  };
  compare("hidden size", header.dim, model.dim);
  compare("layers", header.layers, model.layers);
  compare("heads", header.heads, model.heads);
  compare("vocabulary", header.vocab, model.vocab);
  if (header.format == OlderFormat::kTm2) {
    compare("hidden_dim", header.ffn, model.ffn);
    compare("n_kv_heads", header.kv_heads, model.kv_heads);
    if (!model.attn_sub_norm || !model.ffn_sub_norm) {
      throw Error(ExitCode::kUnsupported, printable_path(file.path()) +
                                              ": every layer of a TM2 file has sub-norms, a " +
                                              model.architecture + " has none");
    }
  }
  return config;
}

Checkpoint older_checkpoint(InputFile file, const OlderHeader& header, const ModelConfig& config) {
  auto tensors = header.format == OlderFormat::kTm2 ? Tm2Tensors(file, config).read()
                                                    : TmacTensors(file, config).read();
  return {std::move(file), std::move(tensors)};
}

CodedRows read_coded_rows(const Checkpoint& checkpoint, const CheckpointTensor& tensor,
                          int64_t first, int64_t n) {
  const auto n_rows = static_cast<size_t>(n);
  const auto cols = static_cast<size_t>(tensor.shape[1]);
  const size_t row_bytes = (cols + 3) / 4;
  const auto fail = [&](const std::string& what, size_t row) {
    fail_file(checkpoint.path_of(tensor), quoted_name(tensor.name) + " " + what + " in row " +
                                              std::to_string(static_cast<size_t>(first) + row));
  };
  CodedRows rows;
  rows.scales.resize(n_rows);
  if (tensor.coding == RowCoding::kTm2) {
    const size_t stride = 2 + row_bytes;
    std::vector<uint8_t> bytes(n_rows * stride);
    checkpoint.read(tensor, static_cast<uint64_t>(first) * stride, bytes.data(), bytes.size());
    rows.codes.resize(n_rows * row_bytes);
    // Bits behind the last column belong to nothing.
    const auto last_mask = static_cast<uint8_t>(cols % 4 == 0 ? 0xFF : (1 << (2 * (cols % 4))) - 1);
    for (size_t row = 0; row < n_rows; ++row) {
      uint16_t scale = 0;
      std::memcpy(&scale, bytes.data() + row * stride, 2);
      rows.scales[row] = f16_to_float(scale);
      uint8_t* codes = rows.codes.data() + row * row_bytes;
      std::memcpy(codes, bytes.data() + row * stride + 2, row_bytes);
      codes[row_bytes - 1] &= last_mask;
      for (size_t i = 0; i < row_bytes; ++i) {
        if (((codes[i] >> 1) & ~codes[i] & 0x55) != 0)
          fail("holds the code 10, which is no value,", row);
      }
    }
  } else {
    checkpoint.read_scales(tensor, static_cast<uint64_t>(first), rows.scales.data(), n_rows);
    const size_t begin = static_cast<size_t>(first) * cols;
    const size_t n_values = n_rows * cols;
    if (tensor.coding == RowCoding::kTmacInt8) {
      rows.values.resize(n_values);
      checkpoint.read(tensor, begin, rows.values.data(), n_values);
    } else {
      // One run of codes for the whole matrix: a row may begin within a byte.
      std::vector<uint8_t> bytes((begin + n_values + 3) / 4 - begin / 4);
      checkpoint.read(tensor, begin / 4, bytes.data(), bytes.size());
      rows.codes.resize(n_rows * row_bytes);
      for (size_t i = 0; i < n_values; ++i) {
        const size_t at = begin % 4 + i;
        const uint8_t code = t2_of_tmac((bytes[at / 4] >> (2 * (at % 4))) & 3u);
        if (code == 2) fail("holds the code 3, which is no value,", i / cols);
        const size_t col = i % cols;
        uint8_t& byte = rows.codes[i / cols * row_bytes + col / 4];
        byte = static_cast<uint8_t>(byte | (code << (2 * (col % 4))));
      }
    }
  }
  for (size_t row = 0; row < n_rows; ++row) {
    float& scale = rows.scales[row];
    if (!std::isfinite(scale) || scale < 0) {
      fail("has the scale " + std::to_string(scale) + ", expected a finite number of 0 or more,",
           row);
    }
    scale += 0.0f;  // -0 becomes 0
  }
  return rows;
}

DType coded_dtype(const CheckpointTensor& tensor) {
  require(tensor.coding != RowCoding::kNone, "a tensor with row scales");
  return tensor.coding == RowCoding::kTm2 ? DType::kF16 : DType::kF32;
}

std::vector<std::byte> decode_rows(const CheckpointTensor& tensor, const CodedRows& rows) {
  const size_t n_rows = rows.scales.size();
  const auto cols = static_cast<size_t>(tensor.shape[1]);
  const size_t row_bytes = (cols + 3) / 4;
  std::vector<float> values(n_rows * cols);
  for (size_t row = 0; row < n_rows; ++row) {
    const float scale = rows.scales[row];
    for (size_t col = 0; col < cols; ++col) {
      float& value = values[row * cols + col];
      if (tensor.coding == RowCoding::kTmacInt8) {
        value = static_cast<float>(rows.values[row * cols + col]) * scale / 127.0f;
      } else {
        const unsigned code = (rows.codes[row * row_bytes + col / 4] >> (2 * (col % 4))) & 3u;
        value = code == 0 ? 0.0f : code == 1 ? scale : -scale;
      }
    }
  }
  if (coded_dtype(tensor) == DType::kF32) {
    const auto bytes = std::as_bytes(std::span(values));
    return {bytes.begin(), bytes.end()};
  }
  std::vector<std::byte> halves(2 * values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    const uint16_t half = exact_f16(values[i]);
    std::memcpy(halves.data() + 2 * i, &half, 2);
  }
  return halves;
}

}  // namespace edgellm::model_io
