#include "model/import/gguf/file.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <set>
#include <utility>

#include "base/text.h"

namespace edgellm::model_io::gguf {
namespace {

// The largest vocabularies with their merges take some tens of megabytes.
constexpr uint64_t kMaxHeaderBytes = uint64_t{128} << 20;
constexpr uint64_t kMaxKeyBytes = 65535;  // the format's own limit
constexpr uint64_t kMaxTensors = 1 << 20;
constexpr uint32_t kMaxDimensions = 4;

// The type of a value of the metadata, by the file's number.
enum class ValueType : uint32_t {
  kU8,
  kI8,
  kU16,
  kI16,
  kU32,
  kI32,
  kF32,
  kBool,
  kString,
  kArray,
  kU64,
  kI64,
  kF64,
};
constexpr uint32_t kNumValueTypes = 13;

// The least that a value of this type takes.
uint64_t value_bytes(ValueType type) {
  switch (type) {
    case ValueType::kU8:
    case ValueType::kI8:
    case ValueType::kBool:
      return 1;
    case ValueType::kU16:
    case ValueType::kI16:
      return 2;
    case ValueType::kU32:
    case ValueType::kI32:
    case ValueType::kF32:
      return 4;
    default:
      return 8;
  }
}

// The header in ascending order, through a window: it has half a million small values.
class HeaderReader {
 public:
  explicit HeaderReader(const InputFile& file) : file_(file) {}

  uint64_t at() const { return at_; }
  uint64_t remaining() const { return file_.size() - at_; }

  template <typename T>
  T read(const std::string& what) {
    T value;
    read_bytes(&value, sizeof(T), what);
    return value;
  }
  std::string text(uint64_t max_bytes, const std::string& what) {
    const auto bytes = read<uint64_t>(what);
    if (bytes > max_bytes) {
      fail_in_file(file_.path(), what + " is " + std::to_string(bytes) +
                                     " bytes long, expected at most " + std::to_string(max_bytes));
    }
    check(bytes, what);
    std::string result(static_cast<size_t>(bytes), '\0');
    read_bytes(result.data(), result.size(), what);
    return result;
  }
  // Throws where the file has fewer than n more items of at least `item_bytes` bytes.
  void check_count(uint64_t n, uint64_t item_bytes, const std::string& what) const {
    if (n <= remaining() / item_bytes) return;
    fail_file(file_.path(), "is cut off or damaged: " + what + " claims " + std::to_string(n) +
                                " entries at byte " + std::to_string(at_) + ", the file has " +
                                std::to_string(file_.size()) + " bytes");
  }

 private:
  void check(uint64_t bytes, const std::string& what) const {
    if (bytes > remaining()) {
      fail_file(file_.path(), "is cut off or damaged: " + what + " takes " + std::to_string(bytes) +
                                  " bytes from byte " + std::to_string(at_) + ", the file has " +
                                  std::to_string(file_.size()));
    }
    if (at_ + bytes > kMaxHeaderBytes) {
      fail_in_file(file_.path(), "its metadata is larger than " +
                                     std::to_string(kMaxHeaderBytes >> 20) +
                                     " MiB, the most that edgellm reads");
    }
  }
  void read_bytes(void* to, size_t bytes, const std::string& what) {
    check(bytes, what);
    if (at_ < window_at_ || at_ + bytes > window_at_ + window_.size()) load(bytes);
    std::memcpy(to, window_.data() + (at_ - window_at_), bytes);
    at_ += bytes;
  }
  void load(size_t bytes) {
    constexpr size_t kWindowBytes = size_t{1} << 20;
    window_at_ = at_;
    window_.resize(
        static_cast<size_t>(std::min<uint64_t>(remaining(), std::max(bytes, kWindowBytes))));
    file_.read(window_at_, window_.data(), window_.size());
  }

  const InputFile& file_;
  uint64_t at_ = 0;
  uint64_t window_at_ = 0;
  std::vector<char> window_;
};

bool is_float(ValueType type) { return type == ValueType::kF32 || type == ValueType::kF64; }

double read_float(HeaderReader& reader, ValueType type, const std::string& what) {
  return type == ValueType::kF32 ? static_cast<double>(reader.read<float>(what))
                                 : reader.read<double>(what);
}

// A number beyond int64 becomes its largest: no size that edgellm reads is near it.
int64_t read_integer(HeaderReader& reader, ValueType type, const std::string& what) {
  switch (type) {
    case ValueType::kU8:
    case ValueType::kBool:
      return reader.read<uint8_t>(what);
    case ValueType::kI8:
      return reader.read<int8_t>(what);
    case ValueType::kU16:
      return reader.read<uint16_t>(what);
    case ValueType::kI16:
      return reader.read<int16_t>(what);
    case ValueType::kU32:
      return reader.read<uint32_t>(what);
    case ValueType::kI32:
      return reader.read<int32_t>(what);
    case ValueType::kU64:
      return static_cast<int64_t>(std::min<uint64_t>(reader.read<uint64_t>(what), INT64_MAX));
    default:
      return reader.read<int64_t>(what);
  }
}

ValueType read_value_type(HeaderReader& reader, const std::string& path, const std::string& what) {
  const auto number = reader.read<uint32_t>(what);
  if (number >= kNumValueTypes) {
    fail_in_file(path, what + " has the type " + std::to_string(number) + ", expected 0 to " +
                           std::to_string(kNumValueTypes - 1));
  }
  return static_cast<ValueType>(number);
}

Value read_array(HeaderReader& reader, const std::string& path, const std::string& what) {
  const ValueType type = read_value_type(reader, path, what);
  const auto n = reader.read<uint64_t>(what);
  reader.check_count(n, value_bytes(type), what);
  if (type == ValueType::kArray) {
    throw Error(ExitCode::kUnsupported,
                printable_path(path) + ": " + what + " is a list of lists, which no model needs");
  }
  if (type == ValueType::kString) {
    std::vector<std::string> texts;
    for (uint64_t i = 0; i < n; ++i) texts.push_back(reader.text(kMaxHeaderBytes, what));
    return texts;
  }
  if (is_float(type)) {
    std::vector<double> numbers;
    for (uint64_t i = 0; i < n; ++i) numbers.push_back(read_float(reader, type, what));
    return numbers;
  }
  std::vector<int64_t> integers;
  for (uint64_t i = 0; i < n; ++i) integers.push_back(read_integer(reader, type, what));
  return integers;
}

Value read_value(HeaderReader& reader, const std::string& path, const std::string& what) {
  const ValueType type = read_value_type(reader, path, what);
  if (type == ValueType::kArray) return read_array(reader, path, what);
  if (type == ValueType::kString) return reader.text(kMaxHeaderBytes, what);
  if (is_float(type)) return read_float(reader, type, what);
  if (type == ValueType::kBool) return read_integer(reader, type, what) != 0;
  return read_integer(reader, type, what);
}

void check_version(uint32_t version, const std::string& path) {
  if (version == 2 || version == 3) return;
  const bool swapped = version != 0 && (version & 0xFFFF) == 0;
  const std::string what =
      swapped ? "is a big-endian GGUF file; supported are little-endian ones"
              : "is a GGUF file of version " + std::to_string(version) + "; supported are 2 and 3";
  throw Error(ExitCode::kUnsupported, printable_path(path) + ": " + what);
}

TensorEntry read_tensor(HeaderReader& reader, const std::string& path) {
  TensorEntry tensor;
  tensor.name = reader.text(kMaxKeyBytes, "the name of a tensor");
  const std::string what = "tensor '" + printable(tensor.name) + "'";
  const auto n_dimensions = reader.read<uint32_t>(what);
  if (n_dimensions == 0 || n_dimensions > kMaxDimensions) {
    fail_in_file(path, what + " has " + std::to_string(n_dimensions) +
                           " dimensions, expected 1 to " + std::to_string(kMaxDimensions));
  }
  uint64_t n_values = 1;
  for (uint32_t i = 0; i < n_dimensions; ++i) {
    const auto extent = reader.read<uint64_t>(what);
    // A byte holds eight values at most.
    if (extent == 0 || extent > uint64_t{INT64_MAX} / n_values) {
      fail_in_file(
          path, what + " has a dimension of " + std::to_string(extent) + ", which no file holds");
    }
    n_values *= extent;
    tensor.shape.push_back(static_cast<int64_t>(extent));
  }
  std::reverse(tensor.shape.begin(), tensor.shape.end());
  tensor.type = reader.read<uint32_t>(what);
  tensor.offset = reader.read<uint64_t>(what);
  return tensor;
}

// Makes offsets count from the file's start, and finds out how far each tensor can reach.
void place_tensors(GgufFile& gguf, uint64_t header_bytes) {
  const std::string& path = gguf.file.path();
  const uint64_t size = gguf.file.size();
  const uint64_t alignment = gguf.alignment;
  const uint64_t data_start = (header_bytes + alignment - 1) / alignment * alignment;
  for (TensorEntry& tensor : gguf.tensors) {
    const std::string what = "tensor '" + printable(tensor.name) + "'";
    if (tensor.offset % alignment != 0) {
      fail_in_file(path, what + " lies at " + std::to_string(tensor.offset) +
                             ", expected a multiple of " + std::to_string(alignment));
    }
    if (data_start > size || tensor.offset >= size - data_start) {
      fail_file(path, "is cut off or damaged: " + what + " lies at byte " +
                          std::to_string(tensor.offset) + " of the data, the file has " +
                          std::to_string(size) + " bytes; download it again");
    }
    tensor.offset += data_start;
  }
  std::sort(gguf.tensors.begin(), gguf.tensors.end(),
            [](const TensorEntry& a, const TensorEntry& b) { return a.offset < b.offset; });
  for (size_t i = 0; i < gguf.tensors.size(); ++i) {
    const uint64_t end = i + 1 < gguf.tensors.size() ? gguf.tensors[i + 1].offset : size;
    gguf.tensors[i].span = end - gguf.tensors[i].offset;
  }
}

}  // namespace

uint64_t TensorEntry::n_values() const {
  uint64_t n = 1;
  for (const int64_t extent : shape) n *= static_cast<uint64_t>(extent);
  return n;
}

bool GgufMetadata::add(const std::string& key, Value value) {
  return values_.emplace(key, std::move(value)).second;
}

std::vector<std::string> GgufMetadata::keys_with_prefix(const std::string& prefix) const {
  std::vector<std::string> keys;
  for (auto it = values_.lower_bound(prefix); it != values_.end() && it->first.starts_with(prefix);
       ++it) {
    keys.push_back(it->first);
  }
  return keys;
}

void GgufMetadata::fail(const std::string& what, ExitCode code) const {
  throw Error(code, printable_path(path_) + ": " + what);
}

template <typename T>
const T& GgufMetadata::get(const std::string& key, const char* expected) const {
  const auto it = values_.find(key);
  if (it == values_.end()) fail("its metadata has no " + key + ", expected " + expected);
  const T* value = std::get_if<T>(&it->second);
  if (value == nullptr) fail("its " + key + " is of another type, expected " + expected);
  return *value;
}

std::string GgufMetadata::text(const std::string& key) const {
  const auto& value = get<std::string>(key, "a string");
  if (!is_utf8(value)) fail("its " + key + " is not UTF-8 text");
  return value;
}

int64_t GgufMetadata::integer(const std::string& key, int64_t low, int64_t high) const {
  const int64_t value = get<int64_t>(key, "an integer");
  if (value < low || value > high) {
    fail("its " + key + " is " + std::to_string(value) + ", expected " + std::to_string(low) +
         " to " + std::to_string(high));
  }
  return value;
}

double GgufMetadata::number(const std::string& key) const {
  const double value = get<double>(key, "a float");
  if (!std::isfinite(value)) fail("its " + key + " is not finite");
  return value;
}

double GgufMetadata::any_number(const std::string& key) const {
  const auto it = values_.find(key);
  const auto* integer = it == values_.end() ? nullptr : std::get_if<int64_t>(&it->second);
  return integer == nullptr ? number(key) : static_cast<double>(*integer);
}

bool GgufMetadata::flag(const std::string& key) const { return get<bool>(key, "true or false"); }

const std::vector<std::string>& GgufMetadata::texts(const std::string& key) const {
  return get<std::vector<std::string>>(key, "a list of strings");
}

std::vector<double> GgufMetadata::numbers(const std::string& key) const {
  const auto it = values_.find(key);
  if (it != values_.end()) {
    if (const auto* integers = std::get_if<std::vector<int64_t>>(&it->second)) {
      return {integers->begin(), integers->end()};
    }
  }
  return get<std::vector<double>>(key, "a list of numbers");
}

std::optional<std::string> GgufMetadata::find_text(const std::string& key) const {
  return has(key) ? std::optional(text(key)) : std::nullopt;
}
std::optional<int64_t> GgufMetadata::find_integer(const std::string& key, int64_t low,
                                                  int64_t high) const {
  return has(key) ? std::optional(integer(key, low, high)) : std::nullopt;
}
std::optional<double> GgufMetadata::find_number(const std::string& key) const {
  return has(key) ? std::optional(number(key)) : std::nullopt;
}
std::optional<bool> GgufMetadata::find_flag(const std::string& key) const {
  return has(key) ? std::optional(flag(key)) : std::nullopt;
}

GgufFile read_gguf(const std::string& path) {
  GgufFile gguf{InputFile(path), GgufMetadata(path), 32, {}};
  HeaderReader reader(gguf.file);
  char magic[4];
  for (char& letter : magic) letter = reader.read<char>("the magic");
  if (std::string_view(magic, 4) != "GGUF") fail_file(path, "does not begin with GGUF");
  check_version(reader.read<uint32_t>("the version"), path);
  const auto n_tensors = reader.read<uint64_t>("the number of tensors");
  const auto n_keys = reader.read<uint64_t>("the number of keys");
  // A key has a length, a type and a value; a tensor a length, its dimensions, type and offset.
  reader.check_count(n_keys, 8 + 4 + 1, "the metadata");
  for (uint64_t i = 0; i < n_keys; ++i) {
    const std::string key = reader.text(kMaxKeyBytes, "key " + std::to_string(i));
    const std::string what = "metadata key '" + printable(key) + "'";
    if (!gguf.metadata.add(key, read_value(reader, path, what))) {
      fail_in_file(path, what + " is there twice");
    }
  }
  if (const auto alignment = gguf.metadata.find_integer("general.alignment", 1, 1 << 20)) {
    if (!std::has_single_bit(static_cast<uint64_t>(*alignment))) {
      fail_in_file(path, "its general.alignment is " + std::to_string(*alignment) +
                             ", expected a power of two");
    }
    gguf.alignment = static_cast<uint64_t>(*alignment);
  }
  reader.check_count(n_tensors, 8 + 4 + 8 + 4 + 8, "the list of tensors");
  if (n_tensors > kMaxTensors) {
    fail_file(path, "has " + std::to_string(n_tensors) + " tensors, expected at most " +
                        std::to_string(kMaxTensors));
  }
  std::set<std::string> names;
  for (uint64_t i = 0; i < n_tensors; ++i) {
    gguf.tensors.push_back(read_tensor(reader, path));
    if (!names.insert(gguf.tensors.back().name).second) {
      fail_in_file(path,
                   "tensor '" + printable(gguf.tensors.back().name) + "' is in the file twice");
    }
  }
  place_tensors(gguf, reader.at());
  return gguf;
}

}  // namespace edgellm::model_io::gguf
