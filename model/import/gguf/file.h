// A GGUF file taken apart: its metadata, and which tensors lie where. Versions 2 and 3,
// little-endian.
//
// Nothing in the file is believed before it was compared with the file's size: counts, lengths of
// strings and arrays, shapes, offsets. Tensors are not read here.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/error.h"
#include "base/files.h"

namespace edgellm::model_io::gguf {

// A value of the metadata. Arrays of numbers are kept as the wider of two types.
using Value = std::variant<bool, int64_t, double, std::string, std::vector<int64_t>,
                           std::vector<double>, std::vector<std::string>>;

// Keys and values. The readers throw Error that names the file and the key.
class GgufMetadata {
 public:
  explicit GgufMetadata(std::string path) : path_(std::move(path)) {}

  // False where the key is there already.
  bool add(const std::string& key, Value value);

  bool has(const std::string& key) const { return values_.contains(key); }
  std::vector<std::string> keys_with_prefix(const std::string& prefix) const;

  std::string text(const std::string& key) const;
  int64_t integer(const std::string& key, int64_t low, int64_t high) const;
  double number(const std::string& key) const;      // a finite float
  double any_number(const std::string& key) const;  // or an integer
  bool flag(const std::string& key) const;
  const std::vector<std::string>& texts(const std::string& key) const;
  std::vector<double> numbers(const std::string& key) const;

  // The same where the key may be absent.
  std::optional<std::string> find_text(const std::string& key) const;
  std::optional<int64_t> find_integer(const std::string& key, int64_t low, int64_t high) const;
  std::optional<double> find_number(const std::string& key) const;
  std::optional<bool> find_flag(const std::string& key) const;

  const std::string& path() const { return path_; }
  [[noreturn]] void fail(const std::string& what, ExitCode code = ExitCode::kModelFile) const;

 private:
  template <typename T>
  const T& get(const std::string& key, const char* expected) const;

  std::string path_;
  std::map<std::string, Value> values_;
};

struct TensorEntry {
  std::string name;
  uint32_t type = 0;           // ggml's number
  std::vector<int64_t> shape;  // rows first: the reverse of what the file holds
  uint64_t offset = 0;         // from the start of the file
  uint64_t span = 0;           // bytes up to the next tensor or the file's end

  uint64_t n_values() const;
};

struct GgufFile {
  InputFile file;
  GgufMetadata metadata;
  uint64_t alignment = 32;
  std::vector<TensorEntry> tensors;  // in the order of their offsets
};

GgufFile read_gguf(const std::string& path);

}  // namespace edgellm::model_io::gguf
