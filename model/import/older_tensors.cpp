#include "model/import/older_tensors.h"

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "model/import/file_cursor.h"
#include "model/layout.h"

namespace edgellm::model_io {
namespace {

std::string quoted_name(const std::string& name) { return "tensor '" + printable(name) + "'"; }

std::string layer_tensor(int layer, const char* part) {
  return "model.layers." + std::to_string(layer) + "." + part + ".weight";
}

// ---- TM2: tensors without names, in one order ---------------------------------------------------

class Tm2Tensors {
 public:
  Tm2Tensors(const InputFile& file, const OlderHeader& header, const ModelConfig& config)
      : file_(file), config_(config), cursor_(file, header.bytes) {}

  std::map<std::string, CheckpointTensor> read();

 private:
  void add(const std::string& name, std::vector<int64_t> shape, bool may_be_coded);

  const InputFile& file_;
  const ModelConfig& config_;
  FileCursor cursor_;
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
  // Sizes are at most 2^24 and counts 2^32, as validate() and int32 have it: no
  // product overflows.
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

// ---- TMAC: named tensors ------------------------------------------------------------------------

class TmacTensors {
 public:
  TmacTensors(const InputFile& file, const OlderHeader& header, const ModelConfig& config)
      : file_(file), config_(config), cursor_(file, header.bytes) {}

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
  FileCursor cursor_;
};

// The shape [rows, cols] of the matrix of this name. Files of the program that
// made them give the shape of the packed bytes instead.
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

}  // namespace

Checkpoint older_checkpoint(InputFile file, const OlderHeader& header, const ModelConfig& config) {
  auto tensors = header.format == OlderFormat::kTm2 ? Tm2Tensors(file, header, config).read()
                                                    : TmacTensors(file, header, config).read();
  return {std::move(file), std::move(tensors)};
}

}  // namespace edgellm::model_io
