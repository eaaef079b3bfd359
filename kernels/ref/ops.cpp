#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/error.h"
#include "kernels/canonical.h"
#include "kernels/ref/integer_attention.h"
#include "kernels/ref/ref.h"

namespace edgellm::ref {
namespace {

void set_fault(int32_t* fault, int value) {
  if (*fault == 0) *fault = value;
}

size_t at(int row, int width, int column = 0) {
  return static_cast<size_t>(row) * static_cast<size_t>(width) + static_cast<size_t>(column);
}

// The sum of terms 0 .. n - 1 in the canonical order. `add(partial, i)` returns `partial` with term
// i added to it: fma(a[i], b[i], partial) for a sum of products.
template <class Add>
float canonical_sum(int n, Add add) {
  float partial[kPartials] = {};
  for (int i = 0; i < n; ++i) partial[i % kPartials] = add(partial[i % kPartials], i);
  for (int width = kPartials / 2; width >= 1; width /= 2) {
    for (int j = 0; j < width; ++j) partial[j] += partial[j + width];
  }
  return partial[0] + 0.0f;  // a zero sum is +0
}

float dot(const float* a, const float* b, int n) {
  return canonical_sum(n, [&](float partial, int i) { return std::fma(a[i], b[i], partial); });
}

float rms_factor(const float* x, int n, float eps) {
  return 1.0f / std::sqrt(dot(x, x, n) / static_cast<float>(n) + eps);
}

// Weight (row, column) as -1, 0 or +1.
int ternary_code(const TernaryMatrix& w, int row, int column) {
  const size_t row_bytes = (static_cast<size_t>(w.cols) + 3) / 4;
  const uint8_t byte =
      w.codes[static_cast<size_t>(row) * row_bytes + static_cast<size_t>(column / 4)];
  const int bits = byte >> (2 * (column % 4)) & 3;
  return bits == 3 ? -1 : bits;
}

// W[i] . codes over columns begin .. end - 1.
template <class Code>
int32_t ternary_dot(const TernaryMatrix& w, int i, const std::vector<Code>& codes, int begin,
                    int end) {
  int32_t sum = 0;
  for (int c = begin; c < end; ++c) sum += ternary_code(w, i, c) * codes[static_cast<size_t>(c)];
  return sum;
}

// A row of activations that ternary products read.
class CodedRow {
 public:
  // n values of x, through the folded norm where gain is given.
  CodedRow(Activations activations, const float* x, const float* gain, float eps, int n)
      : activations_(activations) {
    if (activations == Activations::kInt8Row) {
      int8_.resize(static_cast<size_t>(n));
      row_ = quantise_row(x, gain, eps, n, int8_.data());
      return;
    }
    code_groups(x, gain, n);
    if (gain != nullptr) row_.r = rms_factor(x, n, eps);
  }

  bool finite() const { return row_.finite; }

  // The product with every row of w.
  std::vector<float> times(const TernaryMatrix& w) const {
    std::vector<float> y(static_cast<size_t>(w.rows));
    for (int i = 0; i < w.rows; ++i) {
      float& result = y[static_cast<size_t>(i)];
      if (activations_ == Activations::kInt8Row) {
        const int32_t sum = ternary_dot(w, i, int8_, 0, w.cols);
        result = static_cast<float>(sum) * ((scale_of(w, i, 0) / row_.s) * row_.r);
        continue;
      }
      float sum = 0.0f;
      for (int g = 0; g < group_count(w.cols); ++g) {
        const int begin = g * kScaleGroup;
        const int32_t dot = ternary_dot(w, i, int16_, begin, std::min(begin + kScaleGroup, w.cols));
        sum = std::fma(static_cast<float>(dot) * unit_[static_cast<size_t>(g)], scale_of(w, i, g),
                       sum);
      }
      result = sum * row_.r;
    }
    return y;
  }

 private:
  void code_groups(const float* x, const float* gain, int n) {
    std::vector<float> z(x, x + n);
    for (int i = 0; gain != nullptr && i < n; ++i) z[static_cast<size_t>(i)] = x[i] * gain[i];
    row_.finite = std::all_of(z.begin(), z.end(), [](float value) { return std::isfinite(value); });
    int16_.resize(static_cast<size_t>(n));
    unit_.resize(static_cast<size_t>(group_count(n)));
    if (!row_.finite) return;
    for (int begin = 0; begin < n; begin += kScaleGroup) {
      const int end = std::min(begin + kScaleGroup, n);
      float amax = 0.0f;
      for (int i = begin; i < end; ++i) {
        amax = std::max(amax, std::fabs(z[static_cast<size_t>(i)]));
      }
      if (amax == 0.0f) continue;
      amax = std::max(amax, 1e-30f);
      unit_[static_cast<size_t>(begin / kScaleGroup)] = amax / kMaxGroupCode;
      for (int i = begin; i < end; ++i) {
        int16_[static_cast<size_t>(i)] =
            static_cast<int16_t>(std::rint(z[static_cast<size_t>(i)] * (kMaxGroupCode / amax)));
      }
    }
  }

  Activations activations_;
  QuantisedRow row_;  // s: of int8 alone
  std::vector<int8_t> int8_;
  std::vector<int16_t> int16_;
  std::vector<float> unit_;  // of each group of int16_
};

// RMSNorm of every head, as QkvArgs has it.
void norm_heads(std::vector<float>& heads, const float* gain, float eps, int head_dim) {
  for (size_t begin = 0; begin < heads.size(); begin += static_cast<size_t>(head_dim)) {
    float* head = heads.data() + begin;
    const float r = rms_factor(head, head_dim, eps);
    for (int i = 0; i < head_dim; ++i) head[i] = gain[i] * (head[i] * r);
  }
}

void rotate(float* heads, int n_heads, int head_dim, const float* cosine, const float* sine) {
  const int half = head_dim / 2;
  for (int h = 0; h < n_heads; ++h) {
    float* head = heads + at(h, head_dim);
    for (int i = 0; i < half; ++i) {
      const float low = head[i];
      const float high = head[i + half];
      head[i] = low * cosine[i] - high * sine[i];
      head[i + half] = high * cosine[i] + low * sine[i];
    }
  }
}

// The rows' keys and values, one kv head at a time.
void append(const AttentionArgs& args) {
  const KvCache& kv = args.kv;
  for (int row = 0; row < args.rows; ++row) {
    const int sequence = args.places.sequence[row];
    const int position = args.places.position[row];
    for (int h = 0; h < kv.kv_heads; ++h) {
      const float* k = args.k + at(row, kv.kv_heads * kv.head_dim, h * kv.head_dim);
      const float* v = args.v + at(row, kv.kv_heads * kv.head_dim, h * kv.head_dim);
      if (is_coded(kv.type)) {
        if (!store_codes(kv, sequence, position, h, k, v)) set_fault(args.fault, args.layer + 1);
        continue;
      }
      const size_t tile = kv.tile_offset(sequence, position, h);
      for (int d = 0; d < kv.head_dim; ++d) {
        static_cast<float*>(kv.k)[tile + key_index(position, d, kv.head_dim)] = k[d];
        static_cast<float*>(kv.v)[tile + value_index(position, d, kv.head_dim)] = v[d];
      }
    }
  }
}

void project(const ProjectArgs& args) {
  for (int row = 0; row < args.rows; ++row) {
    const CodedRow coded(args.activations, args.y + at(row, args.w.cols), args.gain, args.eps,
                         args.w.cols);
    if (!coded.finite()) set_fault(args.fault, args.layer + 1);
    const std::vector<float> result = coded.times(args.w);
    for (int i = 0; i < args.w.rows; ++i) {
      float& x = args.x[at(row, args.w.rows, i)];
      x += result[static_cast<size_t>(i)];
      if (!std::isfinite(x)) set_fault(args.fault, args.layer + 1);
    }
  }
}

}  // namespace

QuantisedRow quantise_row(const float* x, const float* gain, float eps, int n, int8_t* codes) {
  QuantisedRow row;
  std::vector<float> z(x, x + n);
  if (gain != nullptr) {
    for (int i = 0; i < n; ++i) z[static_cast<size_t>(i)] = x[i] * gain[i];
    row.r = rms_factor(x, n, eps);
  }
  float amax = 0.0f;
  for (float value : z) {
    if (!std::isfinite(value)) row.finite = false;
    amax = std::max(amax, std::fabs(value));
  }
  if (!row.finite || (gain != nullptr && amax == 0.0f)) {
    std::fill(codes, codes + n, int8_t{0});
    return row;
  }
  amax = std::max(amax, gain != nullptr ? 1e-30f : 1e-5f);
  row.s = (1.0f / amax) * 127.0f;
  for (int i = 0; i < n; ++i) {
    const float code = std::rint(z[static_cast<size_t>(i)] * row.s);
    codes[i] = static_cast<int8_t>(std::clamp(code, -128.0f, 127.0f));
  }
  return row;
}

void embed(const EmbedArgs& args) {
  const int dim = args.table.cols;
  for (int row = 0; row < args.rows; ++row) {
    for (int i = 0; i < dim; ++i) {
      float& x = args.x[at(row, dim, i)];
      if (args.table.data != nullptr) {
        x = widen(args.table.data, args.table.type, at(args.ids[row], dim, i));
        continue;
      }
      const int code = ternary_code(args.ternary, args.ids[row], i);
      const float scale = scale_of(args.ternary, args.ids[row], i / kScaleGroup);
      x = code == 0 ? 0.0f : static_cast<float>(code) * scale;
    }
  }
}

void norm(const NormArgs& args) {
  for (int row = 0; row < args.rows; ++row) {
    const float* x = args.x + at(row, args.dim);
    const float r = rms_factor(x, args.dim, args.eps);
    for (int i = 0; i < args.dim; ++i) {
      args.normed[at(row, args.dim, i)] = args.gain[i] * (x[i] * r);
    }
  }
}

void qkv(const QkvArgs& args) {
  const int head_dim = args.head_dim;
  for (int row = 0; row < args.rows; ++row) {
    const auto product = [&](const TernaryMatrix& w, const float* own_gain) {
      const CodedRow coded(args.activations, args.x + at(row, args.dim),
                           own_gain != nullptr ? own_gain : args.gain, args.eps, args.dim);
      if (!coded.finite()) set_fault(args.fault, args.layer + 1);
      return coded.times(w);
    };
    std::vector<float> q = product(args.q, nullptr);
    std::vector<float> k = product(args.k, args.k_input_gain);
    const std::vector<float> v = product(args.v, args.v_input_gain);
    if (args.q_gain != nullptr) norm_heads(q, args.q_gain, args.eps, head_dim);
    if (args.k_gain != nullptr) norm_heads(k, args.k_gain, args.eps, head_dim);

    const float* cosine = args.rope_cos + at(args.positions[row], head_dim / 2);
    const float* sine = args.rope_sin + at(args.positions[row], head_dim / 2);
    rotate(q.data(), args.q.rows / head_dim, head_dim, cosine, sine);
    rotate(k.data(), args.k.rows / head_dim, head_dim, cosine, sine);

    std::copy(q.begin(), q.end(), args.q_out + at(row, args.q.rows));
    std::copy(k.begin(), k.end(), args.k_out + at(row, args.k.rows));
    std::copy(v.begin(), v.end(), args.v_out + at(row, args.v.rows));
  }
}

void attention(const AttentionArgs& args) {
  if (args.k != nullptr) append(args);
  if (is_coded(args.kv.type)) return integer_attention(args);
  const int head_dim = args.kv.head_dim;
  const int group = args.heads / args.kv.kv_heads;
  const float scale = attention_scale(head_dim);
  const float* keys = static_cast<const float*>(args.kv.k);
  const float* values = static_cast<const float*>(args.kv.v);
  std::vector<float> merged(static_cast<size_t>(head_dim));
  std::vector<float> chunk_out(static_cast<size_t>(head_dim));
  for (int row = 0; row < args.rows; ++row) {
    const int length = args.places.position[row] + 1;
    for (int h = 0; h < args.heads; ++h) {
      const float* q = args.q + at(row, args.heads * head_dim, h * head_dim);
      float* out = args.out + at(row, args.heads * head_dim, h * head_dim);
      float max = 0.0f;
      float sum = 0.0f;
      for (int begin = 0; begin < length; begin += kAttentionChunk) {
        const int count = std::min(kAttentionChunk, length - begin);
        const size_t tile = args.kv.tile_offset(args.places.sequence[row], begin, h / group);

        float p[kAttentionChunk];
        float chunk_max = -std::numeric_limits<float>::infinity();
        for (int j = 0; j < count; ++j) {
          const float qk = canonical_sum(head_dim, [&](float partial, int d) {
            const size_t i = tile + key_index(begin + j, d, head_dim);
            return std::fma(q[d], keys[i], partial);
          });
          p[j] = qk * scale;
          chunk_max = std::max(chunk_max, p[j]);
        }
        float chunk_sum = 0.0f;
        std::fill(chunk_out.begin(), chunk_out.end(), 0.0f);
        for (int j = 0; j < count; ++j) {
          p[j] = canonical_exp(p[j] - chunk_max);
          chunk_sum += p[j];
          for (int d = 0; d < head_dim; ++d) {
            const size_t i = tile + value_index(begin + j, d, head_dim);
            float& o = chunk_out[static_cast<size_t>(d)];
            o = std::fma(p[j], values[i], o);
          }
        }

        if (begin == 0) {
          max = chunk_max;
          sum = chunk_sum;
          merged = chunk_out;
          continue;
        }
        const float new_max = std::max(max, chunk_max);
        const float a = canonical_exp(max - new_max);
        const float b = canonical_exp(chunk_max - new_max);
        max = new_max;
        sum = std::fma(sum, a, chunk_sum * b);
        for (int d = 0; d < head_dim; ++d) {
          float& o = merged[static_cast<size_t>(d)];
          o = std::fma(o, a, chunk_out[static_cast<size_t>(d)] * b);
        }
      }
      for (int d = 0; d < head_dim; ++d) out[d] = merged[static_cast<size_t>(d)] / sum;
    }
  }
}

void attn_out(const ProjectArgs& args) { project(args); }

void ffn_up(const FfnUpArgs& args) {
  const int dim = args.gate.cols;
  const int ffn = args.gate.rows;
  for (int row = 0; row < args.rows; ++row) {
    const auto product = [&](const TernaryMatrix& w, const float* own_gain) {
      const CodedRow coded(args.activations, args.x + at(row, dim),
                           own_gain != nullptr ? own_gain : args.gain, args.eps, dim);
      if (!coded.finite()) set_fault(args.fault, args.layer + 1);
      return coded.times(w);
    };
    const std::vector<float> gate = product(args.gate, nullptr);
    const std::vector<float> up = product(args.up, args.up_gain);
    for (int i = 0; i < ffn; ++i) {
      const float g = gate[static_cast<size_t>(i)];
      const float u = up[static_cast<size_t>(i)];
      if (args.act == GateActivation::kRelu2) {
        const float t = g > 0.0f ? g : 0.0f;
        args.u[at(row, ffn, i)] = (t * t) * u;
      } else {
        args.u[at(row, ffn, i)] = (g / (1.0f + canonical_exp(-g))) * u;
      }
    }
  }
}

void ffn_down(const ProjectArgs& args) { project(args); }

void head(const HeadArgs& args) {
  const int dim = args.w.cols;
  const int vocab = args.w.rows;
  for (int row = 0; row < args.rows; ++row) {
    const float* x = args.x + at(args.row_list[row], dim);
    float* normed = args.normed + at(row, dim);
    const float r = rms_factor(x, dim, args.eps);
    for (int i = 0; i < dim; ++i) normed[i] = args.gain[i] * (x[i] * r);

    float* logits = args.logits + at(row, vocab);
    if (args.w.data == nullptr) {
      const CodedRow coded(Activations::kInt16Group, normed, nullptr, 0.0f, dim);
      if (!coded.finite()) set_fault(args.fault, args.layers + 1);
      const std::vector<float> products = coded.times(args.ternary);
      std::copy(products.begin(), products.end(), logits);
    }
    for (int v = 0; v < vocab; ++v) {
      if (args.w.data != nullptr) {
        logits[v] = canonical_sum(dim, [&](float partial, int i) {
          return std::fma(widen(args.w.data, args.w.type, at(v, dim, i)), normed[i], partial);
        });
      }
      if (!std::isfinite(logits[v])) set_fault(args.fault, args.layers + 1);
    }

    if (args.argmax == nullptr) continue;
    int best = -1;
    for (int v = 0; v < vocab; ++v) {
      if (std::find(args.banned, args.banned + args.n_banned, v) != args.banned + args.n_banned) {
        continue;
      }
      if (best < 0 || logits[v] > logits[best]) best = v;
    }
    args.argmax[row] = best;
  }
}

}  // namespace edgellm::ref
