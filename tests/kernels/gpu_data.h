// Operands and working memory of the CUDA ops on the GPU.
#pragma once

#include "kernels/cuda/cuda.h"
#include "tests/kernels/on_device.h"

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

}  // namespace edgellm::test
