// Writes GGUF files from plain numbers, with its own idea of the layouts: where each weight goes,
// not where each byte comes from.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "kernels/canonical.h"
#include "model/config.h"
#include "model/float_bits.h"
#include "tests/support/older_writer.h"

namespace edgellm::test {

template <typename T>
std::string raw_bytes(T value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

class GgufWriter {
 public:
  struct Tensor {
    std::string name;
    uint32_t type = 0;
    std::vector<uint64_t> shape;  // rows first
    std::string bytes;
  };

  // The metadata; a key that is set again replaces the old one.
  void set(const std::string& key, uint32_t value) {
    keys_[key] = raw_bytes(4u) + raw_bytes(value);
  }
  void set(const std::string& key, int value) { keys_[key] = raw_bytes(5u) + raw_bytes(value); }
  void set(const std::string& key, float value) { keys_[key] = raw_bytes(6u) + raw_bytes(value); }
  void set(const std::string& key, bool value) {
    keys_[key] = raw_bytes(7u) + raw_bytes(static_cast<uint8_t>(value));
  }
  void set(const std::string& key, uint16_t value) {
    keys_[key] = raw_bytes(2u) + raw_bytes(value);
  }
  void set(const std::string& key, const std::string& value) {
    keys_[key] = raw_bytes(8u) + text(value);
  }
  void set(const std::string& key, const char* value) { set(key, std::string(value)); }
  void set(const std::string& key, const std::vector<std::string>& values) {
    std::string all = raw_bytes(9u) + raw_bytes(8u) + raw_bytes(uint64_t{values.size()});
    for (const std::string& value : values) all += text(value);
    keys_[key] = all;
  }
  void set(const std::string& key, const std::vector<float>& values) { set_list(key, 6, values); }
  void set(const std::string& key, const std::vector<int32_t>& values) { set_list(key, 5, values); }
  // A value as the file has it: its type, then its bytes.
  void set_raw(const std::string& key, const std::string& value) { keys_[key] = value; }
  void erase(const std::string& key) { keys_.erase(key); }

  void add(Tensor tensor) { tensors.push_back(std::move(tensor)); }
  void erase_tensor(const std::string& name) {
    std::erase_if(tensors, [&](const Tensor& tensor) { return tensor.name == name; });
  }
  Tensor& tensor(const std::string& name) {
    for (Tensor& tensor : tensors) {
      if (tensor.name == name) return tensor;
    }
    throw std::out_of_range(name);
  }

  std::vector<Tensor> tensors;
  uint32_t version = 3;
  uint64_t alignment = 32;

  // Header, metadata and list of tensors; then everything.
  std::string header() const {
    std::string file = "GGUF" + raw_bytes(version) + raw_bytes(uint64_t{tensors.size()}) +
                       raw_bytes(uint64_t{keys_.size()});
    for (const auto& [key, value] : keys_) file += text(key) + value;
    uint64_t offset = 0;
    for (const Tensor& tensor : tensors) {
      file += text(tensor.name) + raw_bytes(static_cast<uint32_t>(tensor.shape.size()));
      for (auto it = tensor.shape.rbegin(); it != tensor.shape.rend(); ++it) file += raw_bytes(*it);
      file += raw_bytes(tensor.type) + raw_bytes(offset);
      offset += padded(tensor.bytes.size());
    }
    return file;
  }
  std::string bytes() const {
    std::string file = header();
    file.resize(padded(file.size()));
    for (const Tensor& tensor : tensors) {
      file += tensor.bytes;
      file.resize(padded(file.size()));
    }
    return file;
  }

 private:
  template <typename T>
  void set_list(const std::string& key, uint32_t type, const std::vector<T>& values) {
    std::string all = raw_bytes(9u) + raw_bytes(type) + raw_bytes(uint64_t{values.size()});
    for (const T value : values) all += raw_bytes(value);
    keys_[key] = all;
  }
  static std::string text(const std::string& value) {
    return raw_bytes(uint64_t{value.size()}) + value;
  }
  uint64_t padded(uint64_t bytes) const { return (bytes + alignment - 1) / alignment * alignment; }

  std::map<std::string, std::string> keys_;
};

// ---- layouts ------------------------------------------------------------------------------------

// Sets two bits of a byte, counted from the low end.
inline void put_pair(std::string& bytes, size_t at, int shift, int code) {
  bytes[at] = static_cast<char>(static_cast<uint8_t>(bytes[at]) | ((code + 1) << shift));
}

// Bytes of base-3 digits, the first the most significant of five.
class Trits {
 public:
  explicit Trits(size_t n) : values_(n) {}
  void put(size_t at, int digit, int code) {
    constexpr int kPowers[] = {81, 27, 9, 3, 1};
    values_[at] += kPowers[digit] * (code + 1);
  }
  std::string bytes() const {
    std::string result;
    for (const int value : values_) result += static_cast<char>((value * 256 + 242) / 243);
    return result;
  }

 private:
  std::vector<int> values_;
};

// n codes with their scale.
inline std::string ternary_block(const std::string& type, const int* codes, int n, float scale) {
  const std::string d = raw_bytes(to_half(scale));
  if (type == "TQ1_0") {
    Trits trits(52);
    for (int i = 0; i < 32; ++i) {
      for (int k = 0; k < 5; ++k) trits.put(i, k, codes[k * 32 + i]);
    }
    for (int i = 0; i < 16; ++i) {
      for (int k = 0; k < 5; ++k) trits.put(32 + i, k, codes[160 + k * 16 + i]);
    }
    for (int i = 0; i < 4; ++i) {
      for (int k = 0; k < 4; ++k) trits.put(48 + i, k, codes[240 + k * 4 + i]);
    }
    return trits.bytes() + d;
  }
  if (type == "PTQ1_0") {
    Trits trits(26);
    for (int k = 0; k < 5; ++k) {
      for (int i = 0; i < 16; ++i) trits.put(i, k, codes[k * 16 + i]);
      for (int i = 0; i < 8; ++i) trits.put(16 + i, k, codes[80 + k * 8 + i]);
    }
    for (int k = 0; k < 4; ++k) {
      for (int i = 0; i < 2; ++i) trits.put(24 + i, k, codes[120 + k * 2 + i]);
    }
    return trits.bytes() + d;
  }
  if (type == "TQ2_0") {
    std::string bytes(64, '\0');
    for (int b = 0; b < 2; ++b) {
      for (int k = 0; k < 4; ++k) {
        for (int m = 0; m < 32; ++m)
          put_pair(bytes, 32 * b + m, 2 * k, codes[128 * b + 32 * k + m]);
      }
    }
    return bytes + d;
  }
  std::string bytes(static_cast<size_t>(n) / 4, '\0');  // Q2_0
  for (int i = 0; i < n; ++i) put_pair(bytes, i / 4, 2 * (i % 4), codes[i]);
  return d + bytes;
}

inline std::string iq1_bn_block(const int* codes) {
  // The last of five digits comes first.
  Trits trits(13);
  for (int group = 0; group < 4; ++group) {
    for (int i = 0; i < 15; ++i) trits.put(3 * group + i / 5, 4 - i % 5, codes[16 * group + i]);
    trits.put(12, 4 - group, codes[16 * group + 15]);
  }
  return trits.bytes();
}

inline std::string iq2_bn_block(const int* codes) {
  std::string bytes(16, '\0');
  for (int part = 0; part < 4; ++part) {
    for (int j = 0; j < 16; ++j) put_pair(bytes, j, 2 * part, codes[16 * part + j]);
  }
  return bytes;
}

inline std::string iq2_bn_r4_rows(const int* codes, int cols, const float* scales) {
  std::string bytes;
  for (int k = 0; k < 4; ++k) bytes += raw_bytes(scales[k]);
  for (int first = 0; first < cols; first += 64) {
    std::string block(64, '\0');
    for (int k = 0; k < 4; ++k) {
      for (int l = 0; l < 4; ++l) {
        for (int s = 0; s < 4; ++s) {
          for (int i = 0; i < 4; ++i) {
            put_pair(block, 16 * l + 4 * k + i, 2 * s,
                     codes[k * cols + first + 16 * l + 4 * s + i]);
          }
        }
      }
    }
    bytes += block;
  }
  return bytes;
}

inline std::string i2_s(const OlderMatrix& matrix, const std::string& layout) {
  std::string bytes(matrix.codes.size() / 4, '\0');
  for (size_t i = 0; i < matrix.codes.size(); ++i) {
    const auto cols = static_cast<size_t>(matrix.cols);
    const size_t row = i / cols;
    const size_t window = layout == "arm" ? 64 : 128;
    const size_t at =
        layout == "rows" ? row / 4 * cols + i % cols : i / window * (window / 4) + i % (window / 4);
    const size_t place = layout == "rows" ? row % 4 : i % window / (window / 4);
    put_pair(bytes, at, 6 - 2 * static_cast<int>(place), matrix.codes[i]);
  }
  return bytes + raw_bytes(matrix.scales.at(0)) + std::string(28, '\0');
}

struct GgufType {
  uint32_t number;
  int block;  // 0: not in blocks with a scale each
};
// Types by name; "I2_S/arm" is one with a layout, "Q2_0/128" one with a block.
inline GgufType gguf_type(const std::string& name) {
  static const std::map<std::string, GgufType> kTypes = {
      {"F32", {0, 0}},         {"F16", {1, 0}},        {"BF16", {30, 0}},
      {"TQ1_0", {34, 256}},    {"TQ2_0", {35, 256}},   {"I2_S/x86", {36, 0}},
      {"I2_S/arm", {36, 0}},   {"I2_S/rows", {36, 0}}, {"Q2_0/64", {42, 64}},
      {"Q2_0/128", {42, 128}}, {"PQ2_0", {142, 128}},  {"PTQ1_0", {143, 128}},
      {"IQ1_BN", {134, 0}},    {"IQ2_BN", {135, 0}},   {"IQ2_BN_R4", {335, 0}}};
  return kTypes.at(name);
}

inline std::string float_bytes(const std::vector<float>& values, const std::string& type) {
  std::string bytes;
  for (const float value : values) {
    bytes += type == "F32"   ? raw_bytes(value)
             : type == "F16" ? raw_bytes(to_half(value))
                             : raw_bytes(model_io::float_to_bf16(value));
  }
  return bytes;
}

inline std::string matrix_bytes(const OlderMatrix& matrix, const std::string& type) {
  const auto scale_of = [&](int row) {
    return matrix.scales[matrix.scales.size() == 1 ? 0 : static_cast<size_t>(row)];
  };
  if (type.starts_with("I2_S/")) return i2_s(matrix, type.substr(5));
  const int block = gguf_type(type).block;
  std::string bytes;
  for (int row = 0; row < matrix.rows; ++row) {
    const int* codes = matrix.codes.data() + static_cast<size_t>(row) * matrix.cols;
    if (block > 0) {
      for (int col = 0; col < matrix.cols; col += block) {
        // What quantisers write for a block of zeros.
        const bool zero =
            std::all_of(codes + col, codes + col + block, [](int c) { return c == 0; });
        bytes += ternary_block(type, codes + col, block, zero ? 0 : scale_of(row));
      }
    } else if (type == "IQ1_BN" || type == "IQ2_BN") {
      bytes += type == "IQ1_BN" ? raw_bytes(to_half(scale_of(row))) : raw_bytes(scale_of(row));
      for (int col = 0; col < matrix.cols; col += 64) {
        bytes += type == "IQ1_BN" ? iq1_bn_block(codes + col) : iq2_bn_block(codes + col);
      }
    } else if (type == "IQ2_BN_R4") {
      const float scales[] = {scale_of(row), scale_of(row + 1), scale_of(row + 2),
                              scale_of(row + 3)};
      bytes += iq2_bn_r4_rows(codes, matrix.cols, scales);
      row += 3;
    } else {
      std::vector<float> values;
      for (int col = 0; col < matrix.cols; ++col) {
        values.push_back(static_cast<float>(codes[col]) * scale_of(row));
      }
      bytes += float_bytes(values, type);
    }
  }
  return bytes;
}

// ---- models -------------------------------------------------------------------------------------

// The rows of q or k as llama.cpp's converter orders them for the architecture `llama`.
inline OlderMatrix with_paired_rows(const OlderMatrix& matrix, int head_dim) {
  OlderMatrix result = matrix;
  for (int row = 0; row < matrix.rows; ++row) {
    const int in_head = row % head_dim;
    const int half = head_dim / 2;
    const int to = row - in_head + (in_head < half ? 2 * in_head : 2 * (in_head - half) + 1);
    std::copy_n(matrix.codes.begin() + static_cast<ptrdiff_t>(row) * matrix.cols, matrix.cols,
                result.codes.begin() + static_cast<ptrdiff_t>(to) * matrix.cols);
    if (matrix.scales.size() > 1) result.scales[to] = matrix.scales[row];
  }
  return result;
}

struct GgufForm {
  std::string architecture = "bitnet";
  std::string matrices = "F16";
  std::string tables = "F32";
};

inline GgufWriter::Tensor gguf_matrix(const std::string& name, const OlderMatrix& matrix,
                                      const std::string& type) {
  return {name,
          gguf_type(type).number,
          {static_cast<uint64_t>(matrix.rows), static_cast<uint64_t>(matrix.cols)},
          matrix_bytes(matrix, type)};
}

// A model without a tokenizer.
inline GgufWriter gguf_model(const OlderModel& model, const ModelConfig& config,
                             const GgufForm& form) {
  GgufWriter file;
  const std::string& arch = form.architecture;
  const auto set = [&](const char* key, auto value) { file.set(arch + "." + key, value); };
  file.set("general.architecture", arch);
  set("block_count", static_cast<uint32_t>(config.layers));
  set("context_length", static_cast<uint32_t>(config.max_context));
  set("embedding_length", static_cast<uint32_t>(config.dim));
  set("feed_forward_length", static_cast<uint32_t>(config.ffn));
  set("attention.head_count", static_cast<uint32_t>(config.heads));
  set("attention.head_count_kv", static_cast<uint32_t>(config.kv_heads));
  set("attention.key_length", static_cast<uint32_t>(config.head_dim));
  set("attention.value_length", static_cast<uint32_t>(config.head_dim));
  set("attention.layer_norm_rms_epsilon", config.norm_eps);
  set("rope.dimension_count", static_cast<uint32_t>(config.head_dim));
  set("rope.freq_base", static_cast<float>(config.rope_theta));
  const auto floats = [&](const std::string& name, const std::vector<float>& values,
                          std::vector<uint64_t> shape, const std::string& type) {
    file.add({name, gguf_type(type).number, std::move(shape), float_bytes(values, type)});
  };
  const auto norm = [&](const std::string& name, const std::vector<float>& values) {
    if (!values.empty()) floats(name, values, {values.size()}, "F32");
  };
  const std::vector<uint64_t> table = {static_cast<uint64_t>(config.vocab),
                                       static_cast<uint64_t>(config.dim)};
  floats("token_embd.weight", model.embedding.values, table, form.tables);
  if (!config.tied_head) floats("output.weight", model.head.values, table, form.tables);
  norm("output_norm.weight", model.final_norm);
  for (size_t i = 0; i < model.layers.size(); ++i) {
    const OlderLayer& layer = model.layers[i];
    const std::string blk = "blk." + std::to_string(i) + ".";
    norm(blk + "attn_norm.weight", layer.attn_norm);
    norm(blk + "attn_sub_norm.weight", layer.attn_sub_norm);
    norm(blk + "ffn_norm.weight", layer.ffn_norm);
    norm(blk + "ffn_sub_norm.weight", layer.ffn_sub_norm);
    const auto matrix = [&](const char* name, const OlderMatrix& from) {
      file.add(gguf_matrix(blk + name + ".weight", from, form.matrices));
    };
    const bool paired = arch == "llama";
    matrix("attn_q", paired ? with_paired_rows(layer.q, config.head_dim) : layer.q);
    matrix("attn_k", paired ? with_paired_rows(layer.k, config.head_dim) : layer.k);
    matrix("attn_v", layer.v);
    matrix("attn_output", layer.o);
    matrix("ffn_gate", layer.gate);
    matrix("ffn_up", layer.up);
    matrix("ffn_down", layer.down);
  }
  return file;
}

// What llama.cpp's convert_hf_to_gguf.py writes of a byte-level tokenizer.json.
inline void set_byte_level_tokenizer(GgufWriter& file, const nlohmann::json& tokenizer,
                                     const std::string& pre) {
  std::map<int, std::string> tokens;
  std::map<int, int> added;
  for (const auto& [token, id] : tokenizer["model"]["vocab"].items()) tokens[id] = token;
  for (const nlohmann::json& token : tokenizer["added_tokens"]) {
    tokens[token["id"]] = token["content"];
    added[token["id"]] = token["special"] ? 3 : 4;
  }
  std::vector<std::string> list;
  std::vector<int32_t> types;
  for (int id = 0; id <= tokens.rbegin()->first; ++id) {
    const bool known = tokens.contains(id);
    list.push_back(known ? tokens[id] : "[PAD" + std::to_string(id) + "]");
    types.push_back(!known ? 5 : added.contains(id) ? added[id] : 1);
  }
  std::vector<std::string> merges;
  for (const nlohmann::json& merge : tokenizer["model"]["merges"]) {
    merges.push_back(merge.is_string()
                         ? merge.get<std::string>()
                         : merge[0].get<std::string>() + " " + merge[1].get<std::string>());
  }
  file.set("tokenizer.ggml.model", "gpt2");
  file.set("tokenizer.ggml.pre", pre);
  file.set("tokenizer.ggml.tokens", list);
  file.set("tokenizer.ggml.token_type", types);
  file.set("tokenizer.ggml.merges", merges);
}

}  // namespace edgellm::test
