#include "model/import/safetensors.h"

#include <algorithm>
#include <array>
#include <set>

#include "base/error.h"
#include "base/json.h"
#include "base/text.h"

namespace edgellm::model_io {
namespace {

// The limit of the format's own library.
constexpr uint64_t kMaxHeaderBytes = 100'000'000;
constexpr uint64_t kMaxIndexBytes = uint64_t{64} << 20;

struct ElementType {
  const char* name;
  uint64_t bytes;
};
constexpr std::array<ElementType, 16> kElementTypes = {{{"BOOL", 1},
                                                        {"U8", 1},
                                                        {"I8", 1},
                                                        {"F8_E5M2", 1},
                                                        {"F8_E4M3", 1},
                                                        {"F8_E8M0", 1},
                                                        {"I16", 2},
                                                        {"U16", 2},
                                                        {"F16", 2},
                                                        {"BF16", 2},
                                                        {"I32", 4},
                                                        {"U32", 4},
                                                        {"F32", 4},
                                                        {"F64", 8},
                                                        {"I64", 8},
                                                        {"U64", 8}}};

uint64_t element_bytes(const Fields& fields, const std::string& dtype) {
  for (const ElementType& type : kElementTypes) {
    if (dtype == type.name) return type.bytes;
  }
  fields.fail(fields.name("dtype") + " is '" + printable(dtype) + "', which edgellm does not know",
              ExitCode::kUnsupported);
}

// One entry of a header; offsets count from the end of the header, at `data_start` of the file.
CheckpointTensor parse_tensor(const Fields& fields, const std::string& name, uint64_t data_start,
                              uint64_t data_bytes) {
  CheckpointTensor tensor;
  tensor.name = name;
  tensor.dtype = fields.text("dtype");
  uint64_t expected = element_bytes(fields, tensor.dtype);
  for (const Json& value : fields.array("shape")) {
    int64_t extent = 0;
    if (!integer_in(value, 0, INT64_MAX, extent)) {
      fields.fail(fields.name("shape") + " holds " + value_text(value));
    }
    tensor.shape.push_back(extent);
    const auto size = static_cast<uint64_t>(extent);
    // Beyond the file's size the exact product does not matter.
    if (size != 0 && expected > data_bytes / size)
      expected = data_bytes + 1;
    else
      expected *= size;
  }
  const Json& offsets = fields.array("data_offsets");
  int64_t begin = 0;
  int64_t end = 0;
  if (offsets.size() != 2 || !integer_in(offsets[0], 0, INT64_MAX, begin) ||
      !integer_in(offsets[1], begin, INT64_MAX, end)) {
    fields.fail(fields.name("data_offsets") + " is not [begin, end]");
  }
  if (static_cast<uint64_t>(end) > data_bytes) {
    fields.fail(fields.name("data_offsets") + " ends at " + std::to_string(end) + " of " +
                std::to_string(data_bytes) + " bytes of data: the file is cut off; " +
                "download it again");
  }
  tensor.offset = data_start + static_cast<uint64_t>(begin);
  tensor.bytes = static_cast<uint64_t>(end - begin);
  if (tensor.bytes != expected) {
    fields.fail(fields.name("data_offsets") + " spans " + std::to_string(tensor.bytes) +
                " bytes, which is not the size of " + tensor.dtype + " " +
                shape_text(tensor.shape));
  }
  return tensor;
}

}  // namespace

Checkpoint::Checkpoint(const std::string& folder) {
  const std::string single = folder + "/model.safetensors";
  const std::string index = folder + "/model.safetensors.index.json";
  if (path_exists(single)) {
    add_file(single);
  } else if (path_exists(index)) {
    add_shards(folder, index);
  } else {
    fail_file(folder,
              "has neither model.safetensors nor model.safetensors.index.json; PyTorch .bin files "
              "must be saved as safetensors first (transformers: "
              "save_pretrained(..., safe_serialization=True))");
  }
}

Checkpoint::Checkpoint(InputFile file, std::map<std::string, CheckpointTensor> tensors)
    : tensors_(std::move(tensors)) {
  files_.push_back(std::move(file));
}

Checkpoint::Checkpoint(std::vector<InputFile> files,
                       std::map<std::string, CheckpointTensor> tensors)
    : files_(std::move(files)), tensors_(std::move(tensors)) {}

void Checkpoint::add_shards(const std::string& folder, const std::string& index_path) {
  const Json json = parse_json_object(read_text_file(index_path, kMaxIndexBytes), {index_path});
  const Fields map = Fields(json, {index_path}).object("weight_map");
  std::set<std::string> shards;
  for (const auto& [tensor, value] : map.json().items()) {
    const std::string shard = map.text(tensor);
    // Only files of this folder: an index must not lead to other places of the disk.
    if (shard.empty() || shard == "." || shard == ".." || shard.find('/') != std::string::npos ||
        shard.find('\0') != std::string::npos) {
      map.fail("weight_map names '" + printable(shard) + "', which is not a file beside the index");
    }
    shards.insert(shard);
  }
  if (shards.empty()) map.fail("weight_map is empty");
  for (const std::string& shard : shards) add_file(folder + "/" + shard);
  for (const auto& [name, value] : map.json().items()) {
    const CheckpointTensor* tensor = find(name);
    const std::string path = folder + "/" + value.get_ref<const std::string&>();
    if (tensor == nullptr || path_of(*tensor) != path) {
      map.fail("tensor '" + printable(name) + "' is not in " + printable(value.get<std::string>()) +
               ", where the index says it is");
    }
  }
}

void Checkpoint::add_file(const std::string& path) {
  InputFile file(path);
  uint64_t header_bytes = 0;
  if (file.size() < 8) fail_file(path, "is cut off: a safetensors file has at least 8 bytes");
  file.read(0, &header_bytes, 8);
  if (header_bytes < 2 || header_bytes > std::min(kMaxHeaderBytes, file.size() - 8)) {
    fail_file(path, "is no whole safetensors file: its header claims " +
                        std::to_string(header_bytes) + " bytes, the file has " +
                        std::to_string(file.size()) + "; download it again");
  }
  std::string header(static_cast<size_t>(header_bytes), '\0');
  file.read(8, header.data(), header.size());
  const Json json = parse_json_object(header, {path, "header"});
  const uint64_t data_start = 8 + header_bytes;
  const uint64_t data_bytes = file.size() - data_start;

  std::vector<const CheckpointTensor*> order;
  for (const auto& [name, entry] : json.items()) {
    if (name == "__metadata__") continue;
    const std::string where = "tensor '" + printable(name) + "'";
    CheckpointTensor tensor =
        parse_tensor(Fields(entry, {path, where}), name, data_start, data_bytes);
    tensor.file = files_.size();
    const auto [it, is_new] = tensors_.emplace(name, std::move(tensor));
    if (!is_new) {
      fail_in_file(path, where + " is in " + printable_path(path_of(it->second)) + " too");
    }
    order.push_back(&it->second);
  }
  // The tensors fill the data without gaps or overlaps.
  std::sort(order.begin(), order.end(), [](const CheckpointTensor* a, const CheckpointTensor* b) {
    return std::pair(a->offset, a->bytes) < std::pair(b->offset, b->bytes);
  });
  uint64_t end = data_start;
  for (const CheckpointTensor* tensor : order) {
    if (tensor->offset != end) {
      fail_in_file(path, "tensor '" + printable(tensor->name) + "' starts at byte " +
                             std::to_string(tensor->offset) + " of the file, expected " +
                             std::to_string(end) + " (tensors must not overlap or leave gaps)");
    }
    end += tensor->bytes;
  }
  if (end != file.size()) {
    fail_file(path, "has " + std::to_string(file.size()) + " bytes, its tensors end at " +
                        std::to_string(end));
  }
  files_.push_back(std::move(file));
}

const CheckpointTensor* Checkpoint::find(const std::string& name) const {
  const auto it = tensors_.find(name);
  return it == tensors_.end() ? nullptr : &it->second;
}

void Checkpoint::read(const CheckpointTensor& tensor, uint64_t at, void* to, size_t bytes) const {
  require(at <= tensor.bytes && bytes <= tensor.bytes - at, "a range of the tensor");
  files_[tensor.file].read(tensor.offset + at, to, bytes);
}

void Checkpoint::read_scales(const CheckpointTensor& tensor, uint64_t first, float* to,
                             size_t n) const {
  const auto rows = static_cast<uint64_t>(tensor.shape.at(0));
  require(first <= rows && n <= rows - first, "rows of the tensor");
  files_[tensor.file].read(tensor.scales_offset + 4 * first, to, 4 * n);
}

}  // namespace edgellm::model_io
