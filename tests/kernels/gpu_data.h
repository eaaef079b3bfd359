// Operands and working memory of the CUDA ops on the GPU.
#pragma once

#include <algorithm>
#include <catch2/catch.hpp>

#include "kernels/cuda/code_tile.h"
#include "kernels/cuda/cuda.h"
#include "kernels/integer_attention.h"
#include "kernels/ref/ref.h"
#include "tests/kernels/on_device.h"
#include "tests/kernels/op_data.h"

namespace edgellm::test {

// A ternary matrix in the GPU's own order.
struct TernaryOnDevice {
  OnDevice<uint8_t> codes;
  OnDevice<float> scale;
  OnDevice<uint8_t> group_scale;
  TernaryMatrix matrix;

  explicit TernaryOnDevice(const TernaryMatrix& host)
      : codes(at_pitch(host)),
        scale(std::span(host.scale, static_cast<size_t>(host.n_scales))),
        group_scale(std::span(static_cast<const uint8_t*>(host.group_scale), scale_bytes(host))),
        matrix{codes.data(), scale.data(),       host.n_scales,        host.rows,
               host.cols,    group_scale.data(), host.group_scale_type} {
    const OnDevice<int32_t> invalid(std::vector<int32_t>{0});
    cuda::repack(codes.data(), host.rows, host.cols, invalid.data(), nullptr);
    finish();
    require(invalid.read()[0] == 0, "repack() found invalid codes in a valid matrix");
  }

 private:
  static size_t scale_bytes(const TernaryMatrix& host) {
    if (host.n_scales > 0) return 0;
    return static_cast<size_t>(host.rows) * static_cast<size_t>(group_count(host.cols)) *
           (host.group_scale_type == DenseType::kF32 ? 4 : 2);
  }
  static std::vector<uint8_t> at_pitch(const TernaryMatrix& host) {
    const size_t pitch = cuda::ternary_pitch(host.cols);
    const size_t row_bytes = (static_cast<size_t>(host.cols) + 3) / 4;
    std::vector<uint8_t> rows(pitch * static_cast<size_t>(host.rows), 0);
    for (size_t r = 0; r < static_cast<size_t>(host.rows); ++r) {
      std::memcpy(&rows[r * pitch], host.codes + r * row_bytes, row_bytes);
    }
    return rows;
  }
};

// The cache on the GPU, with the content of one in the order of ref. What no row of ref has is
// poisoned.
struct CacheOnDevice {
  const CacheData& host;
  OnDevice<uint8_t> keys, values;
  OnDevice<float> units;
  OnDevice<int32_t> table;
  KvCache cache;

  explicit CacheOnDevice(const CacheData& of)
      : host(of),
        keys(in_device_order(of, of.k, false)),
        values(in_device_order(of, of.v, true)),
        units(of.units.empty() ? std::vector<float>{0.0f} : of.units),
        table(of.block_table),
        cache(of.cache) {
    cache.k = keys.data();
    cache.v = values.data();
    cache.units = units.data();
    cache.block_table = table.data();
  }

  // Empty where the content is that of `host`.
  std::string difference() const {
    const std::vector<uint8_t> device_keys = keys.read();
    const std::vector<uint8_t> device_values = values.read();
    std::string found;
    for_each_byte(host, [&](size_t key_from, size_t key_at, size_t value_from, size_t value_at) {
      if (byte_of(host, host.k, key_from) != device_keys[key_at]) found = "keys";
      if (byte_of(host, host.v, value_from) != device_values[value_at]) found = "values";
    });
    if (!host.units.empty() && found.empty()) found = first_difference(host.units, units.read());
    return found;
  }

 private:
  // A byte of the GPU's tiles is byte `from % 8` of element `from / 8` of ref; of codes, that
  // digit.
  static uint8_t byte_of(const CacheData& of, const std::vector<uint8_t>& pool, size_t from) {
    const size_t element = from / 8;
    if (of.cache.type != KvType::kI16) {
      return pool[element * static_cast<size_t>(kv_element_bytes(of.cache.type)) + from % 8];
    }
    int16_t code;
    std::memcpy(&code, &pool[2 * element], 2);
    const Digits digits = digits_of(code);
    return static_cast<uint8_t>(from % 8 == 0 ? digits.high : digits.low);
  }
  template <class Visit>
  static void for_each_byte(const CacheData& of, const Visit& visit) {
    const KvCache& kv = of.cache;
    const int bytes = kv_element_bytes(kv.type);
    const int digits = cuda::digit_count(kv.type);
    for (int s = 0; s < of.sequences; ++s) {
      for (int p = 0; p < kv.blocks_per_sequence * kv.block_size; ++p) {
        for (int h = 0; h < kv.kv_heads; ++h) {
          const size_t tile = kv.tile_offset(s, p, h);
          const auto place = [&](int d, int byte, bool is_value) {
            if (!is_coded(kv.type)) {
              return (tile + static_cast<size_t>(cuda::value_index(p, d, kv.head_dim))) * 4 +
                     static_cast<size_t>(byte);
            }
            return tile * static_cast<size_t>(digits) +
                   static_cast<size_t>(is_value
                                           ? cuda::value_byte(p, d, byte, digits, kv.tile_dims())
                                           : cuda::key_byte(p, d, byte, digits));
          };
          for (int d = 0; d < kv.head_dim; ++d) {
            for (int b = 0; b < bytes; ++b) {
              visit((tile + ref::key_index(p, d, kv.head_dim)) * 8 + static_cast<size_t>(b),
                    place(d, b, false),
                    (tile + ref::value_index(p, d, kv.head_dim)) * 8 + static_cast<size_t>(b),
                    place(d, b, true));
            }
          }
        }
      }
    }
  }
  static std::vector<uint8_t> in_device_order(const CacheData& of, const std::vector<uint8_t>& pool,
                                              bool is_value) {
    std::vector<uint8_t> bytes(pool.size(), 0x7f);
    for_each_byte(of, [&](size_t key_from, size_t key_at, size_t value_from, size_t value_at) {
      bytes[is_value ? value_at : key_at] = byte_of(of, pool, is_value ? value_from : key_from);
    });
    return bytes;
  }
};

// A workspace for up to `rows` rows, `width` columns, `heads` heads and `chunks` attention chunks.
struct WorkspaceOnDevice {
  static constexpr size_t kWidestFfn = 1024;  // of FfnUpArgs with a gain for up

  OnDevice<int8_t> codes;
  OnDevice<float> s, r, attention;
  OnDevice<uint32_t> rms;
  OnDevice<int32_t> sum, rms_read, attention_done, head_done;
  OnDevice<unsigned long long> best;
  OnDevice<float> group_unit, up;
  OnDevice<int32_t> group_sum;
  cuda::Workspace workspace;

  WorkspaceOnDevice(size_t rows, int width, size_t heads, int chunks, size_t head_dim)
      : codes(rows * std::max(2 * cuda::quantised_row_bytes(width),
                              cuda::attention_row_bytes(KvType::kI16, static_cast<int>(heads),
                                                        static_cast<int>(head_dim)))),
        s(rows),
        r(rows),
        attention(cuda::kMaxInlineRows * heads * static_cast<size_t>(chunks) *
                  static_cast<size_t>(cuda::attention_state(static_cast<int>(head_dim)))),
        rms(std::vector<uint32_t>(rows, 0)),
        sum(rows),
        rms_read(std::vector<int32_t>(rows, 0)),
        attention_done(std::vector<int32_t>(cuda::kMaxInlineRows * heads, 0)),
        head_done(std::vector<int32_t>(1, 0)),
        best(std::vector<unsigned long long>(rows, 0)),
        group_unit(units(rows, width)),
        up(rows * kWidestFfn),
        group_sum(units(rows, width)) {
    workspace.codes = codes.data();
    workspace.row_s = s.data();
    workspace.row_r = r.data();
    workspace.row_sum = sum.data();
    workspace.rms = rms.data();
    workspace.rms_read = rms_read.data();
    workspace.attention = attention.data();
    workspace.attention_done = attention_done.data();
    workspace.best = best.data();
    workspace.head_done = head_done.data();
    workspace.max_chunks = chunks;
    workspace.group_unit = group_unit.data();
    workspace.group_sum = group_sum.data();
    workspace.up = up.data();
  }

  // Whether the RMS factors that a launch told itself are zero again for the next.
  bool told_are_clear() const {
    const auto is_zero = [](auto value) { return value == 0; };
    return std::ranges::all_of(rms.read(), is_zero) &&
           std::ranges::all_of(rms_read.read(), is_zero);
  }

 private:
  static size_t units(size_t rows, int width) {
    return static_cast<size_t>(group_count(width)) *
           static_cast<size_t>(cuda::group_stride(static_cast<int>(rows)));
  }
};

// The first rows of a pass that are each alone in their sequence.
inline int decode_rows(const Pass& pass) {
  int n = 0;
  while (n < static_cast<int>(pass.sequence.size()) &&
         std::count(pass.sequence.begin(), pass.sequence.end(),
                    pass.sequence[static_cast<size_t>(n)]) == 1) {
    ++n;
  }
  return n;
}

// Runs the passes on one cache: `run(qkv args, attention args, workspace)` on the GPU, against ref.
template <class Run>
void check_qkv_and_attention(Random& random, const HeadShape& shape, KvType type, int dim,
                             int max_positions, int sequences, const std::vector<Pass>& passes,
                             const Run& run) {
  QkvData data(random, shape, type, dim, max_positions, sequences);
  const CacheData& cache = data.cache;
  const TernaryOnDevice q(data.q.matrix), k(data.k.matrix), v(data.v.matrix);
  const OnDevice<float> gain(data.gain), cosine(data.rope.cosine), sine(data.rope.sine);
  const CacheOnDevice device_cache(cache);
  const int chunks =
      cuda::divide_up(cache.cache.blocks_per_sequence * cache.cache.block_size, kIntegerChunk);

  for (const Pass& pass : passes) {
    const int rows = static_cast<int>(pass.sequence.size());
    INFO("heads " << shape.heads << "/" << shape.kv_heads << " of " << shape.head_dim << ", rows "
                  << rows);
    const std::vector<float> x = activation_rows(random, rows, dim);
    const size_t width = static_cast<size_t>(rows) * shape.q_width();
    const size_t kv_width = static_cast<size_t>(rows) * shape.kv_width();
    int32_t fault = 0;
    std::vector<float> expected_q(width), expected_k(kv_width), expected_v(kv_width);
    std::vector<float> expected_out(width);
    const QkvArgs args =
        data.args(x, pass, {expected_q.data(), expected_k.data(), expected_v.data()}, &fault);
    ref::qkv(args);
    AttentionArgs attention;
    attention.q = expected_q.data();
    attention.k = expected_k.data();
    attention.v = expected_v.data();
    attention.kv = cache.cache;
    attention.places = {pass.sequence.data(), pass.position.data()};
    attention.out = expected_out.data();
    attention.rows = rows;
    attention.heads = shape.heads;
    attention.fault = &fault;
    ref::attention(attention);

    const OnDevice<float> device_x(x), q_out(width), k_out(kv_width), v_out(kv_width), out(width);
    const OnDevice<int32_t> sequence(pass.sequence), position(pass.position);
    const OnDevice<int32_t> device_fault(std::vector<int32_t>{0});
    const WorkspaceOnDevice workspace(static_cast<size_t>(rows), dim,
                                      static_cast<size_t>(shape.heads), chunks,
                                      static_cast<size_t>(shape.head_dim));
    QkvArgs device = args;
    device.x = device_x.data();
    device.gain = gain.data();
    device.q = q.matrix;
    device.k = k.matrix;
    device.v = v.matrix;
    device.rope_cos = cosine.data();
    device.rope_sin = sine.data();
    device.positions = position.data();
    device.q_out = q_out.data();
    device.k_out = k_out.data();
    device.v_out = v_out.data();
    device.fault = device_fault.data();
    attention.q = q_out.data();
    attention.k = k_out.data();
    attention.v = v_out.data();
    attention.kv = device_cache.cache;
    attention.places = {sequence.data(), position.data()};
    attention.out = out.data();
    attention.decode_rows = decode_rows(pass);
    attention.fault = device_fault.data();
    run(device, attention, workspace.workspace);
    finish();
    REQUIRE(first_difference(expected_q, q_out.read()) == "");
    REQUIRE(first_difference(expected_k, k_out.read()) == "");
    REQUIRE(first_difference(expected_v, v_out.read()) == "");
    REQUIRE(device_cache.difference() == "");
    REQUIRE(first_difference(expected_out, out.read()) == "");
    REQUIRE(device_fault.read()[0] == 0);
  }
}

}  // namespace edgellm::test
