// Random operands of the ops, with what tests must not be kind to: scales and gains far from 1,
// rows that are zero, tiny, huge or have one outlier, and poison around everything that is written.
#pragma once

#include <cstring>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "kernels/canonical.h"
#include "kernels/cpu/primitives.h"
#include "kernels/integer_attention.h"
#include "kernels/ops.h"
#include "kernels/ref/ref.h"
#include "tests/support/random.h"

namespace edgellm::test {

struct TernaryData {
  std::vector<uint8_t> codes;
  std::vector<float> scale;
  std::vector<uint8_t> group_scale;  // f16 or f32
  TernaryMatrix matrix;

  TernaryData(Random& random, int rows, int cols, bool scale_per_row = false) {
    const size_t row_bytes = (static_cast<size_t>(cols) + 3) / 4;
    codes.resize(static_cast<size_t>(rows) * row_bytes);
    constexpr uint8_t kCodes[3] = {0, 1, 3};
    for (int r = 0; r < rows; ++r) {
      for (int c = 0; c < cols; ++c) {
        codes[static_cast<size_t>(r) * row_bytes + static_cast<size_t>(c / 4)] |=
            static_cast<uint8_t>(kCodes[random.below(3)] << (2 * (c % 4)));
      }
    }
    scale.resize(scale_per_row ? static_cast<size_t>(rows) : 1);
    for (float& s : scale)
      s = random.uniform(0.3f, 2.7f) / std::sqrt(0.66f * static_cast<float>(cols));
    matrix = {codes.data(), scale.data(), static_cast<int>(scale.size()), rows, cols};
  }

  // With a scale for each group of columns; now and then it is 0.
  static TernaryData grouped(Random& random, int rows, int cols, DenseType type) {
    TernaryData data(random, rows, cols);
    const size_t n = static_cast<size_t>(rows) * static_cast<size_t>(group_count(cols));
    for (size_t i = 0; i < n; ++i) {
      const float value = random.below(17) == 0 ? 0.0f : data.scale[0] * random.uniform(0.2f, 3.0f);
      const uint16_t half = to_half(value);
      const auto* from = type == DenseType::kF16 ? reinterpret_cast<const uint8_t*>(&half)
                                                 : reinterpret_cast<const uint8_t*>(&value);
      data.group_scale.insert(data.group_scale.end(), from,
                              from + (type == DenseType::kF16 ? 2 : 4));
    }
    data.matrix.scale = nullptr;
    data.matrix.n_scales = 0;
    data.matrix.group_scale = data.group_scale.data();
    data.matrix.group_scale_type = type;
    return data;
  }
};

// Of the kinds of scales that beside Activations::kInt16Group exist, the one with this number.
inline TernaryData int16_weights(Random& random, int rows, int cols, int kind) {
  return kind == 0   ? TernaryData(random, rows, cols)
         : kind == 1 ? TernaryData(random, rows, cols, true)
                     : TernaryData::grouped(random, rows, cols,
                                            kind == 2 ? DenseType::kF16 : DenseType::kF32);
}

struct DenseData {
  std::vector<uint8_t> bytes;
  DenseMatrix matrix;

  DenseData(Random& random, int rows, int cols, DenseType type) {
    const size_t n = static_cast<size_t>(rows) * static_cast<size_t>(cols);
    bytes.resize(n * (type == DenseType::kF32 ? 4 : 2));
    for (size_t i = 0; i < n; ++i) {
      const float value = 0.7f * random.normal();
      if (type == DenseType::kF32) {
        std::memcpy(&bytes[4 * i], &value, 4);
      } else {
        const uint16_t half = type == DenseType::kF16
                                  ? to_half(value)
                                  : static_cast<uint16_t>(float_to_bits(value) >> 16);
        std::memcpy(&bytes[2 * i], &half, 2);
      }
    }
    matrix = {bytes.data(), type, rows, cols};
  }
};

// Activation rows of very different sizes. Row r is of kind (r + first) % 7.
inline std::vector<float> activation_rows(Random& random, int rows, int cols) {
  std::vector<float> x(static_cast<size_t>(rows) * static_cast<size_t>(cols));
  const int first = random.below(7);
  for (int r = 0; r < rows; ++r) {
    float* row = x.data() + static_cast<size_t>(r) * static_cast<size_t>(cols);
    const int kind = rows == 1 ? 0 : (r + first) % 7;
    for (int c = 0; c < cols; ++c) {
      const float n = random.normal();
      row[c] = kind == 1   ? 0.0f
               : kind == 2 ? 1e-8f * n
               : kind == 3 ? 1e4f * n
               : kind == 4 ? (n > 0 ? 3.0f : -3.0f)
               : kind == 5 ? n * n * n
                           : n;
    }
    if (kind == 6) row[random.below(cols)] = -1000.0f;
  }
  return x;
}

inline std::vector<float> gains(Random& random, int n) {
  std::vector<float> g(static_cast<size_t>(n));
  for (float& v : g) v = 1.0f + 0.4f * random.normal();
  return g;
}

// An output array between two guards, all of it filled with a NaN that no op computes.
template <class T>
class Poisoned {
 public:
  explicit Poisoned(size_t n) : n_(n), bytes_((n + 2 * kGuard) * sizeof(T), 0xfe) {}
  T* data() { return reinterpret_cast<T*>(bytes_.data()) + kGuard; }
  size_t size() const { return n_; }
  std::span<T> values() { return {data(), n_}; }
  bool guards_intact() const {
    for (size_t i = 0; i < kGuard * sizeof(T); ++i) {
      if (bytes_[i] != 0xfe || bytes_[bytes_.size() - 1 - i] != 0xfe) return false;
    }
    return true;
  }

 private:
  static constexpr size_t kGuard = 64;
  size_t n_;
  std::vector<uint8_t> bytes_;
};

// Empty when a and b are the same bits, else the first index that differs with both values.
template <class A, class B>
std::string first_difference(const A& a, const B& b) {
  if (a.size() != b.size()) return "sizes differ";
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::memcmp(&a[i], &b[i], sizeof a[i]) != 0) {
      return "at " + std::to_string(i) + " of " + std::to_string(a.size()) + ": " +
             std::to_string(a[i]) + " and " + std::to_string(b[i]);
    }
  }
  return "";
}

// A paged KV cache whose blocks are scattered over the pool, all of it poisoned with NaN.
struct CacheData {
  int sequences;
  std::vector<int32_t> block_table;
  std::vector<uint8_t> k, v;
  std::vector<float> units;
  KvCache cache;

  CacheData(Random& random, int sequences_, int max_positions, int block_size, int kv_heads,
            int head_dim, KvType type)
      : sequences(sequences_) {
    const int blocks = (max_positions + block_size - 1) / block_size;
    for (int i = 0; i < sequences * blocks; ++i) block_table.push_back(i);
    for (int i = sequences * blocks - 1; i > 0; --i) {
      std::swap(block_table[static_cast<size_t>(i)],
                block_table[static_cast<size_t>(random.below(i + 1))]);
    }
    cache.block_table = block_table.data();
    cache.blocks_per_sequence = blocks;
    cache.block_size = block_size;
    cache.kv_heads = kv_heads;
    cache.head_dim = head_dim;
    cache.type = type;
    const size_t bytes = static_cast<size_t>(sequences * blocks) * cache.block_elements() *
                         static_cast<size_t>(kv_element_bytes(type));
    k.assign(bytes, 0xff);  // NaN in floats
    v.assign(bytes, 0xff);
    // Stale units are finite (numerics.md).
    if (is_coded(type)) {
      units.assign(static_cast<size_t>(sequences * blocks) * cache.block_elements() /
                       static_cast<size_t>(cache.tile_dims()) * 3,
                   1e30f);
    }
    point();
  }
  CacheData(const CacheData& other)
      : sequences(other.sequences),
        block_table(other.block_table),
        k(other.k),
        v(other.v),
        units(other.units),
        cache(other.cache) {
    point();
  }
  CacheData& operator=(const CacheData&) = delete;

  // The same content with tiles in a backend's order, from one in the order of ref. key_index and
  // value_index (position, d, head_dim) give an element's place in a tile.
  template <class KeyIndex, class ValueIndex>
  CacheData reordered(KeyIndex key_index, ValueIndex value_index) const {
    CacheData copy(*this);
    const auto size = static_cast<size_t>(kv_element_bytes(cache.type));
    for (int s = 0; s < sequences; ++s) {
      for (int p = 0; p < cache.blocks_per_sequence * cache.block_size; ++p) {
        for (int h = 0; h < cache.kv_heads; ++h) {
          const size_t tile = cache.tile_offset(s, p, h);
          for (int d = 0; d < cache.head_dim; ++d) {
            const size_t from_k = tile + ref::key_index(p, d, cache.head_dim);
            const size_t to_k = tile + static_cast<size_t>(key_index(p, d, cache.head_dim));
            std::memcpy(&copy.k[to_k * size], &k[from_k * size], size);
            const size_t from_v = tile + ref::value_index(p, d, cache.head_dim);
            const size_t to_v = tile + static_cast<size_t>(value_index(p, d, cache.head_dim));
            std::memcpy(&copy.v[to_v * size], &v[from_v * size], size);
          }
        }
      }
    }
    return copy;
  }
  // The same content in the order of cpu, which is that of ref for floats.
  CacheData reordered_for_cpu() const {
    CacheData copy(*this);
    if (!is_coded(cache.type)) return copy;
    std::fill(copy.k.begin(), copy.k.end(), uint8_t{0xff});
    std::fill(copy.v.begin(), copy.v.end(), uint8_t{0xff});
    const size_t digits = static_cast<size_t>(kv_element_bytes(cache.type));
    const auto code_at = [&](const std::vector<uint8_t>& pool, size_t index) {
      if (digits == 1) return Digits{static_cast<int8_t>(pool[index]), 0};
      int16_t code;
      std::memcpy(&code, &pool[2 * index], 2);
      return digits_of(code);
    };
    const auto plane = static_cast<size_t>(kAttentionChunk * cache.tile_dims());
    const auto store = [&](std::vector<uint8_t>& pool, size_t index, const Digits& code,
                           int offset) {
      pool[index] = static_cast<uint8_t>(code.high + offset);
      if (digits == 2) pool[index + plane] = static_cast<uint8_t>(code.low + offset);
    };
    for (int s = 0; s < sequences; ++s) {
      for (int p = 0; p < cache.blocks_per_sequence * cache.block_size; ++p) {
        for (int h = 0; h < cache.kv_heads; ++h) {
          const size_t tile = cache.tile_offset(s, p, h);
          for (int d = 0; d < cache.head_dim; ++d) {
            const auto key = static_cast<size_t>(cpu::key_digit_index(p, d));
            const auto value = static_cast<size_t>(cpu::value_digit_index(p, d, cache.tile_dims()));
            store(copy.k, tile * digits + key,
                  code_at(k, tile + ref::key_index(p, d, cache.head_dim)), cpu::kKeyOffset);
            store(copy.v, tile * digits + value,
                  code_at(v, tile + ref::value_index(p, d, cache.head_dim)), 0);
          }
        }
      }
    }
    return copy;
  }

 private:
  void point() {
    cache.block_table = block_table.data();
    cache.k = k.data();
    cache.v = v.data();
    cache.units = units.data();
  }
};

// One pass of an attention test: the place of each row.
struct Pass {
  std::vector<int32_t> sequence, position;
};

// Sequence 0: prefill across chunk borders in two passes; 1: up to a border, with 2: one token;
// then a decode step of all three, in another order, with sequence 0 giving two rows; then rows of
// sequence 2 in falling order.
inline std::vector<Pass> attention_passes() {
  std::vector<Pass> passes(5);
  for (int p = 0; p < 130; ++p) {
    passes[p < 70 ? 0u : 1u].sequence.push_back(0);
    passes[p < 70 ? 0u : 1u].position.push_back(p);
  }
  for (int p = 0; p < 64; ++p) {
    passes[2].sequence.push_back(1);
    passes[2].position.push_back(p);
  }
  passes[2].sequence.push_back(2);
  passes[2].position.push_back(0);
  passes[3] = {{2, 0, 0, 1}, {1, 130, 131, 64}};
  for (int p = 66; p > 1; --p) {
    passes[4].sequence.push_back(2);
    passes[4].position.push_back(p);
  }
  return passes;
}

// cos and sin as the engine makes them, for positions 0 .. positions - 1.
struct RopeData {
  std::vector<float> cosine, sine;
  RopeData(int positions, int head_dim, double theta) {
    for (int p = 0; p < positions; ++p) {
      for (int i = 0; i < head_dim / 2; ++i) {
        const float exponent = static_cast<float>(2 * i) / static_cast<float>(head_dim);
        const float inv_freq =
            1.0f / static_cast<float>(std::pow(theta, static_cast<double>(exponent)));
        const double angle = static_cast<double>(static_cast<float>(p) * inv_freq);
        cosine.push_back(static_cast<float>(std::cos(angle)));
        sine.push_back(static_cast<float>(std::sin(angle)));
      }
    }
  }
};

struct HeadShape {
  int heads, kv_heads, head_dim;

  size_t q_width() const { return static_cast<size_t>(heads * head_dim); }
  size_t kv_width() const { return static_cast<size_t>(kv_heads * head_dim); }
};

// Where qkv writes.
struct QkvResults {
  float *q, *k, *v;
};

// Operands of qkv on the host, and the cache that it and attention work on.
struct QkvData {
  HeadShape shape;
  TernaryData q, k, v;
  std::vector<float> gain;
  RopeData rope;
  CacheData cache;

  QkvData(Random& random, const HeadShape& heads, KvType type, int dim, int max_positions,
          int sequences)
      : shape(heads),
        q(random, heads.heads * heads.head_dim, dim),
        k(random, heads.kv_heads * heads.head_dim, dim, true),
        v(random, heads.kv_heads * heads.head_dim, dim),
        gain(gains(random, dim)),
        rope(max_positions, heads.head_dim, 10000.0),
        cache(random, sequences, max_positions, random.below(2) == 0 ? 64 : 128, heads.kv_heads,
              heads.head_dim, type) {}

  QkvArgs args(const std::vector<float>& x, const Pass& pass, const QkvResults& out,
               int32_t* fault) const {
    QkvArgs args;
    args.x = x.data();
    args.gain = gain.data();
    args.eps = 1e-6f;
    args.q = q.matrix;
    args.k = k.matrix;
    args.v = v.matrix;
    args.rope_cos = rope.cosine.data();
    args.rope_sin = rope.sine.data();
    args.positions = pass.position.data();
    args.q_out = out.q;
    args.k_out = out.k;
    args.v_out = out.v;
    args.rows = static_cast<int>(pass.sequence.size());
    args.dim = q.matrix.cols;
    args.head_dim = shape.head_dim;
    args.fault = fault;
    return args;
  }
};

}  // namespace edgellm::test
