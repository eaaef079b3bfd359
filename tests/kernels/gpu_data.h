// Operands and working memory of the CUDA ops on the GPU.
#pragma once

#include <catch2/catch.hpp>

#include "kernels/cuda/cuda.h"
#include "kernels/ref/ref.h"
#include "tests/kernels/on_device.h"
#include "tests/kernels/op_data.h"

namespace edgellm::test {

// A ternary matrix in the GPU's own order.
struct TernaryOnDevice {
  OnDevice<uint8_t> codes;
  OnDevice<float> scale;
  TernaryMatrix matrix;

  explicit TernaryOnDevice(const TernaryMatrix& host)
      : codes(at_pitch(host)),
        scale(std::span(host.scale, static_cast<size_t>(host.n_scales))),
        matrix{codes.data(), scale.data(), host.n_scales, host.rows, host.cols} {
    const OnDevice<int32_t> invalid(std::vector<int32_t>{0});
    cuda::repack(codes.data(), host.rows, host.cols, invalid.data(), nullptr);
    finish();
    require(invalid.read()[0] == 0, "repack() found invalid codes in a valid matrix");
  }

 private:
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

// A workspace for up to `rows` rows, `width` columns, `heads` heads and `chunks` attention chunks.
struct WorkspaceOnDevice {
  OnDevice<int8_t> codes;
  OnDevice<float> s, r, attention;
  OnDevice<int32_t> sum, attention_done, head_done;
  OnDevice<unsigned long long> best;
  cuda::Workspace workspace;

  WorkspaceOnDevice(size_t rows, int width, size_t heads, int chunks, size_t head_dim)
      : codes(rows * cuda::quantised_row_bytes(width)),
        s(rows),
        r(rows),
        attention(cuda::kMaxInlineRows * heads * static_cast<size_t>(chunks) *
                  static_cast<size_t>(cuda::attention_state(static_cast<int>(head_dim)))),
        sum(rows),
        attention_done(std::vector<int32_t>(cuda::kMaxInlineRows * heads, 0)),
        head_done(std::vector<int32_t>(1, 0)),
        best(std::vector<unsigned long long>(rows, 0)) {
    workspace = {codes.data(),          s.data(),    r.data(),         sum.data(), attention.data(),
                 attention_done.data(), best.data(), head_done.data(), chunks};
  }
};

// Runs the passes on one cache: `run(qkv args, attention args, workspace)` on the GPU, against
// ref::qkv and `expect(cache, attention args)` on the host, whose args lack the cache.
template <class Expect, class Run>
void check_qkv_and_attention(Random& random, const HeadShape& shape, KvType type, int dim,
                             int max_positions, int sequences, const std::vector<Pass>& passes,
                             const Expect& expect, const Run& run) {
  QkvData data(random, shape, type, dim, max_positions, sequences);
  const CacheData& cache = data.cache;
  const TernaryOnDevice q(data.q.matrix), k(data.k.matrix), v(data.v.matrix);
  const OnDevice<float> gain(data.gain), cosine(data.rope.cosine), sine(data.rope.sine);
  const OnDevice<uint8_t> keys(cache.k), values(cache.v);
  const OnDevice<int32_t> table(cache.block_table);
  const int chunks = cache.cache.blocks_per_sequence * cache.cache.block_size / kAttentionChunk;

  for (const Pass& pass : passes) {
    const int rows = static_cast<int>(pass.sequence.size());
    INFO("heads " << shape.heads << "/" << shape.kv_heads << " of " << shape.head_dim << ", rows "
                  << rows);
    const std::vector<float> x = activation_rows(random, rows, dim);
    const size_t width = static_cast<size_t>(rows * shape.heads * shape.head_dim);
    int32_t fault = 0;
    std::vector<float> expected_q(width), expected_out(width);
    const QkvArgs args = data.args(x, pass, expected_q.data(), &fault);
    ref::qkv(args);
    expect(cache, AttentionArgs{
                      expected_q.data(), {}, args.places, expected_out.data(), rows, args.heads});

    const OnDevice<float> device_x(x), q_out(width), out(width);
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
    device.places = {sequence.data(), position.data()};
    device.q_out = q_out.data();
    device.kv.k = keys.data();
    device.kv.v = values.data();
    device.kv.block_table = table.data();
    device.fault = device_fault.data();
    run(device, AttentionArgs{q_out.data(), device.kv, device.places, out.data(), rows, args.heads},
        workspace.workspace);
    finish();
    REQUIRE(first_difference(expected_q, q_out.read()) == "");
    const CacheData expected = cache.reordered(cuda::key_index, cuda::value_index);
    REQUIRE(keys.read() == expected.k);
    REQUIRE(values.read() == expected.v);
    REQUIRE(first_difference(expected_out, out.read()) == "");
    REQUIRE(device_fault.read()[0] == 0);
  }
}

}  // namespace edgellm::test
