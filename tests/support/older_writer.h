// Writes models in the two formats of earlier programs (docs/format.md, "Older files"), from plain
// numbers: its own idea of both, independent of the reader's.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "kernels/canonical.h"
#include "model/model_file.h"

namespace edgellm::test {

struct OlderMatrix {
  int rows = 0;
  int cols = 0;
  std::vector<int> codes;     // [rows, cols]: -1, 0, 1; int8 values of an int8 table
  std::vector<float> scales;  // [rows]
};

// An embedding or a head: plain numbers, or a matrix whose rows have scales.
struct OlderTable {
  std::vector<float> values;  // [vocab, dim]; empty where `matrix` holds them
  OlderMatrix matrix;
  bool int8 = false;
};

struct OlderLayer {
  std::vector<float> attn_norm, attn_sub_norm, ffn_norm, ffn_sub_norm;
  OlderMatrix q, k, v, o, gate, up, down;
};

struct OlderModel {
  int dim = 0, ffn = 0, heads = 0, kv_heads = 0, vocab = 0, max_context = 0;
  OlderTable embedding, head;
  std::vector<float> final_norm;
  std::vector<OlderLayer> layers;
};

inline OlderMatrix older_matrix(const TernaryTensor& tensor) {
  OlderMatrix matrix{tensor.rows, tensor.cols, {}, {}};
  for (int row = 0; row < tensor.rows; ++row) {
    const uint8_t* codes = tensor.codes + static_cast<size_t>(row) * tensor.row_bytes();
    for (int col = 0; col < tensor.cols; ++col) {
      const int code = (codes[col / 4] >> (2 * (col % 4))) & 3;
      matrix.codes.push_back(code == 3 ? -1 : code);
    }
    const auto at = tensor.scale.size() == 1 ? 0 : static_cast<size_t>(row);
    matrix.scales.push_back(tensor.scale[at]);
  }
  return matrix;
}

inline std::vector<float> dense_values(const DenseTensor& tensor) {
  std::vector<float> values(static_cast<size_t>(tensor.rows) * static_cast<size_t>(tensor.cols));
  for (size_t i = 0; i < values.size(); ++i) {
    uint16_t half = 0;
    if (tensor.dtype == DType::kF32) {
      std::memcpy(&values[i], tensor.data + 4 * i, 4);
    } else {
      std::memcpy(&half, tensor.data + 2 * i, 2);
      values[i] = tensor.dtype == DType::kBF16 ? from_bfloat16(half) : from_half(half);
    }
  }
  return values;
}

inline OlderModel older_model(const ModelFile& file) {
  const ModelConfig& config = file.config();
  const Weights& weights = file.weights();
  OlderModel model{config.dim,   config.ffn,
                   config.heads, config.kv_heads,
                   config.vocab, config.max_context,
                   {},           {},
                   {},           {}};
  const auto floats = [](std::span<const float> from) {
    return std::vector<float>(from.begin(), from.end());
  };
  model.embedding.values = dense_values(weights.embedding);
  model.head.values = dense_values(weights.head);
  model.final_norm = floats(weights.final_norm);
  for (const LayerWeights& layer : weights.layers) {
    model.layers.push_back({floats(layer.attn_norm), floats(layer.attn_sub_norm),
                            floats(layer.ffn_norm), floats(layer.ffn_sub_norm),
                            older_matrix(layer.q), older_matrix(layer.k), older_matrix(layer.v),
                            older_matrix(layer.o), older_matrix(layer.gate), older_matrix(layer.up),
                            older_matrix(layer.down)});
  }
  return model;
}

// The table as int8 rows with the scale of their largest value.
inline OlderTable int8_table(const std::vector<float>& values, int rows, int cols) {
  OlderTable table{{}, {rows, cols, {}, {}}, true};
  for (int row = 0; row < rows; ++row) {
    const float* from = values.data() + static_cast<size_t>(row) * static_cast<size_t>(cols);
    float scale = 1e-8f;
    for (int col = 0; col < cols; ++col) scale = std::max(scale, std::fabs(from[col]));
    table.matrix.scales.push_back(scale);
    for (int col = 0; col < cols; ++col) {
      table.matrix.codes.push_back(static_cast<int>(std::lround(from[col] / scale * 127.0f)));
    }
  }
  return table;
}

// The same as ternary rows; scales that a float16 holds.
inline OlderTable ternary_table(const std::vector<float>& values, int rows, int cols) {
  OlderTable table = int8_table(values, rows, cols);
  table.int8 = false;
  for (int& code : table.matrix.codes) code = code > 40 ? 1 : code < -40 ? -1 : 0;
  for (float& scale : table.matrix.scales) scale = from_half(to_half(scale));
  return table;
}

// The numbers that a table with row scales stands for.
inline std::vector<float> decoded(const OlderTable& table) {
  std::vector<float> values;
  for (size_t i = 0; i < table.matrix.codes.size(); ++i) {
    const float scale = table.matrix.scales[i / static_cast<size_t>(table.matrix.cols)];
    const auto code = static_cast<float>(table.matrix.codes[i]);
    values.push_back(table.int8 ? code * scale / 127.0f : code == 0 ? 0 : code * scale);
  }
  return values;
}

class OlderBytes {
 public:
  template <typename T>
  void put(T value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  void put_text(const std::string& text) {
    put(static_cast<uint32_t>(text.size()));
    bytes_ += text;
  }
  std::string& bytes() { return bytes_; }

 private:
  std::string bytes_;
};

inline std::string tm2_bytes(const OlderModel& model, bool negative_vocab = false) {
  OlderBytes file;
  file.bytes() = std::string("TM2\0", 4);
  for (const int size :
       {model.dim, model.ffn, static_cast<int>(model.layers.size()), model.heads, model.kv_heads,
        negative_vocab ? -model.vocab : model.vocab, model.max_context}) {
    file.put(static_cast<int32_t>(size));
  }
  const auto floats = [&](const std::vector<float>& values) {
    file.put(uint8_t{0});
    for (const float value : values) file.put(value);
  };
  const auto matrix = [&](const OlderMatrix& from) {
    file.put(uint8_t{1});
    file.put(static_cast<int32_t>(from.rows));
    file.put(static_cast<int32_t>(from.cols));
    for (int row = 0; row < from.rows; ++row) {
      file.put(to_half(from.scales[static_cast<size_t>(row)]));
      unsigned byte = 0;
      for (int col = 0; col < from.cols; ++col) {
        const int code = from.codes[static_cast<size_t>(row) * static_cast<size_t>(from.cols) +
                                    static_cast<size_t>(col)];
        byte |= (code == 0 ? 0u : code > 0 ? 1u : 3u) << (2 * (col % 4));
        if (col % 4 == 3 || col + 1 == from.cols) {
          file.put(static_cast<uint8_t>(byte));
          byte = 0;
        }
      }
    }
  };
  const auto table = [&](const OlderTable& from) {
    if (from.values.empty()) {
      matrix(from.matrix);
    } else {
      floats(from.values);
    }
  };
  table(model.embedding);
  for (const OlderLayer& layer : model.layers) {
    floats(layer.attn_norm);
    for (const OlderMatrix* m : {&layer.q, &layer.k, &layer.v, &layer.o}) matrix(*m);
    floats(layer.attn_sub_norm);
    floats(layer.ffn_norm);
    for (const OlderMatrix* m : {&layer.gate, &layer.up, &layer.down}) matrix(*m);
    floats(layer.ffn_sub_norm);
  }
  floats(model.final_norm);
  table(model.head);
  return file.bytes();
}

inline std::string tmac_header(const OlderModel& model, uint32_t version = 2, uint32_t bits = 2) {
  OlderBytes file;
  file.bytes() = "TMAC";
  for (const uint32_t value :
       {version, static_cast<uint32_t>(model.dim), static_cast<uint32_t>(model.layers.size()),
        static_cast<uint32_t>(model.heads), static_cast<uint32_t>(model.vocab), bits, 4u}) {
    file.put(value);
  }
  return file.bytes();
}

inline std::string tmac_tensor(const std::string& name, const std::string& dtype,
                               const std::vector<uint32_t>& shape, const std::string& data,
                               const std::vector<float>& scales) {
  OlderBytes file;
  file.put_text(name);
  file.put_text(dtype);
  file.put(static_cast<uint32_t>(shape.size()));
  for (const uint32_t extent : shape) file.put(extent);
  file.put(static_cast<uint64_t>(data.size()));
  file.bytes() += data;
  file.put(static_cast<uint64_t>(4 * scales.size()));
  for (const float scale : scales) file.put(scale);
  return file.bytes();
}

inline std::string tmac_halves(const std::string& name, const std::vector<float>& values) {
  OlderBytes data;
  for (const float value : values) data.put(to_half(value));
  return tmac_tensor(name, "fp16", {static_cast<uint32_t>(values.size())}, data.bytes(), {1.0f});
}

// As their writer did it, with the shape of the packed bytes; or with that of the matrix.
inline std::string tmac_matrix(const std::string& name, const OlderMatrix& matrix,
                               bool packed_shape) {
  std::string data((matrix.codes.size() + 3) / 4, '\0');
  for (size_t i = 0; i < matrix.codes.size(); ++i) {
    data[i / 4] = static_cast<char>(static_cast<uint8_t>(data[i / 4]) |
                                    ((matrix.codes[i] + 1) << (2 * (i % 4))));
  }
  const std::vector<uint32_t> shape =
      packed_shape ? std::vector<uint32_t>{static_cast<uint32_t>(data.size())}
                   : std::vector<uint32_t>{static_cast<uint32_t>(matrix.rows),
                                           static_cast<uint32_t>(matrix.cols)};
  return tmac_tensor(name, "bitnet", shape, data, matrix.scales);
}

// `with_head` is false for a tied model, whose head their writer left out.
inline std::string tmac_bytes(const OlderModel& model, bool with_head, bool packed_shape = true) {
  std::string bytes = tmac_header(model);
  const auto table = [&](const std::string& name, const OlderTable& from) {
    if (!from.int8) {
      bytes += tmac_matrix(name, from.matrix, false);
      return;
    }
    std::string data;
    for (const int code : from.matrix.codes) data += static_cast<char>(code);
    bytes += tmac_tensor(
        name, "int8",
        {static_cast<uint32_t>(from.matrix.rows), static_cast<uint32_t>(from.matrix.cols)}, data,
        from.matrix.scales);
  };
  table("model.embed_tokens.weight", model.embedding);
  for (size_t i = 0; i < model.layers.size(); ++i) {
    const OlderLayer& layer = model.layers[i];
    const std::string prefix = "model.layers." + std::to_string(i) + ".";
    for (const auto& [name, matrix] : {std::pair{"self_attn.q_proj", &layer.q},
                                       {"self_attn.k_proj", &layer.k},
                                       {"self_attn.v_proj", &layer.v},
                                       {"self_attn.o_proj", &layer.o},
                                       {"mlp.gate_proj", &layer.gate},
                                       {"mlp.up_proj", &layer.up},
                                       {"mlp.down_proj", &layer.down}}) {
      bytes += tmac_matrix(prefix + name + ".weight", *matrix, packed_shape);
    }
    for (const auto& [name, norm] : {std::pair{"input_layernorm", &layer.attn_norm},
                                     {"post_attention_layernorm", &layer.ffn_norm},
                                     {"self_attn.attn_sub_norm", &layer.attn_sub_norm},
                                     {"mlp.ffn_sub_norm", &layer.ffn_sub_norm}}) {
      if (!norm->empty()) bytes += tmac_halves(prefix + name + ".weight", *norm);
    }
  }
  bytes += tmac_halves("model.norm.weight", model.final_norm);
  if (with_head) table("lm_head.weight", model.head);
  return bytes;
}

}  // namespace edgellm::test
