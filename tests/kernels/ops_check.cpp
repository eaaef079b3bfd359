#include "tests/kernels/ops_check.h"

#include <cmath>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>

#include "kernels/canonical.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/primitives.h"
#include "kernels/ref/ref.h"
#include "model/ternary.h"
#include "tests/support/safetensors_file.h"

namespace edgellm::test {
namespace {

using Tensors = std::map<std::string, TestTensor>;

// The reference, or one path of the CPU: what the checks need of a backend.
struct BackendUnderTest {
  std::string name;
  const cpu::Primitives* isa = nullptr;  // null: ref
  std::shared_ptr<cpu::Pool> pool;

  void project(const ProjectArgs& args) const {
    isa ? cpu::attn_out(args, *pool) : ref::attn_out(args);
  }
  void attention(const AttentionArgs& args) const {
    isa ? cpu::attention(args, *pool) : ref::attention(args);
  }
  void head(const HeadArgs& args) const { isa ? cpu::head(args, *pool) : ref::head(args); }
  void qkv(const QkvArgs& args) const { isa ? cpu::qkv(args, *pool) : ref::qkv(args); }

  // int8 codes of n values in their own order, and the scale.
  float quantise(const float* x, int n, int8_t* codes) const {
    if (!isa) return ref::quantise_row(x, nullptr, 0, n, codes).s;
    const size_t group = 4 * static_cast<size_t>(isa->plane_bytes);
    std::vector<int8_t> planes((static_cast<size_t>(n) + group - 1) / group * group);
    int32_t sum = 0;
    float s = 0;
    float r = 0;
    isa->quantise(x, nullptr, 0, n, {planes.data(), planes.size(), &sum, &s, &r}, 0);
    for (int i = 0; i < n; ++i) {
      const size_t column = static_cast<size_t>(i) % group;
      codes[i] = planes[static_cast<size_t>(i) / group * group +
                        column % 4 * static_cast<size_t>(isa->plane_bytes) + column / 4];
    }
    return s;
  }
};

std::vector<BackendUnderTest> backends() {
  std::vector<BackendUnderTest> list = {{"ref", nullptr, nullptr}};
  for (const cpu::Primitives* isa : cpu::usable_isas()) {
    list.push_back({std::string("cpu ") + isa->name, isa, std::make_shared<cpu::Pool>(2, *isa)});
  }
  return list;
}

// Largest |actual - expected| of a row over `limit` times the row's largest |expected|.
double worst_error(const float* actual, const std::vector<float>& expected, int width,
                   double limit) {
  double worst = 0;
  for (size_t begin = 0; begin < expected.size(); begin += static_cast<size_t>(width)) {
    double error = 0;
    double largest = 1e-30;
    for (size_t i = begin; i < begin + static_cast<size_t>(width); ++i) {
      const double e = std::fabs(static_cast<double>(actual[i]) - static_cast<double>(expected[i]));
      error = std::isfinite(actual[i]) ? std::max(error, e) : INFINITY;
      largest = std::max(largest, std::fabs(static_cast<double>(expected[i])));
    }
    worst = std::max(worst, error / (limit * largest));
  }
  return worst;
}

void judge(OpCheck& check, double worst) {
  check.worst = std::max(check.worst, worst);
  if (worst > 1 && check.failure.empty()) {
    check.failure = "off by " + std::to_string(worst) + " times the limit";
  }
}

const TestTensor& get(const Tensors& tensors, const std::string& name) {
  const auto found = tensors.find(name);
  if (found == tensors.end()) throw std::runtime_error("no tensor " + name);
  return found->second;
}

// The canonical codes and multiplier of a recorded linear layer.
struct Linear {
  std::vector<uint8_t> codes;
  float multiplier = 0;
  std::string failure;

  Linear(const Tensors& tensors, const std::string& op, int rows, int cols) {
    const size_t row_bytes = (static_cast<size_t>(cols) + 3) / 4;
    codes.resize(row_bytes * static_cast<size_t>(rows));
    if (op.starts_with("online.")) {
      const std::vector<float> master = get(tensors, op + ".weight_master_bf16").floats();
      model_io::MasterStatistics statistics;
      statistics.add(master.data(), master.size());
      multiplier = statistics.multiplier();
      for (int r = 0; r < rows; ++r) {
        model_io::quantise_row(master.data() + static_cast<size_t>(r) * static_cast<size_t>(cols),
                               cols, statistics.inverse_scale(),
                               codes.data() + static_cast<size_t>(r) * row_bytes);
      }
      compare_codes(get(tensors, op + ".expected_ternary").as<int8_t>(), rows, cols);
      return;
    }
    const std::vector<uint8_t> packed = get(tensors, op + ".weight").as<uint8_t>();
    for (int r = 0; r < rows / 4; ++r) {
      if (!model_io::repack_row(packed.data() + static_cast<size_t>(r) * static_cast<size_t>(cols),
                                r, rows, cols, codes.data())) {
        failure = "an invalid packed code";
      }
    }
    const float scale = get(tensors, op + ".weight_scale").floats().at(0);
    multiplier = op.starts_with("autobitlinear.") ? scale : 1.0f / scale;
  }

  void compare_codes(const std::vector<int8_t>& expected, int rows, int cols) {
    const size_t row_bytes = (static_cast<size_t>(cols) + 3) / 4;
    for (int r = 0; r < rows; ++r) {
      for (int c = 0; c < cols; ++c) {
        const int bits = codes[static_cast<size_t>(r) * row_bytes + static_cast<size_t>(c / 4)] >>
                             (2 * (c % 4)) &
                         3;
        const int code = bits == 3 ? -1 : bits;
        if (code !=
            expected[static_cast<size_t>(r) * static_cast<size_t>(cols) + static_cast<size_t>(c)]) {
          failure = "ternary code at row " + std::to_string(r) + ", column " + std::to_string(c);
          return;
        }
      }
    }
  }
};

void check_linear(const Tensors& tensors, const std::string& op, const BackendUnderTest& backend,
                  OpCheck& check) {
  const TestTensor& x_tensor = get(tensors, op + ".x");
  const int rows = x_tensor.dim(0);
  const int cols = x_tensor.dim(1);
  const std::vector<float> expected = get(tensors, op + ".y").floats();
  const int width = get(tensors, op + ".y").dim(1);
  const Linear linear(tensors, op, width, cols);
  check.failure = linear.failure;
  const std::vector<float> x = x_tensor.floats();

  const std::vector<int8_t> codes = get(tensors, op + ".x_int8").as<int8_t>();
  const std::vector<float> scales = get(tensors, op + ".x_scale").floats();
  std::vector<int8_t> actual_codes(static_cast<size_t>(cols));
  for (int r = 0; r < rows; ++r) {
    const size_t at = static_cast<size_t>(r) * static_cast<size_t>(cols);
    const float s = backend.quantise(x.data() + at, cols, actual_codes.data());
    if (s != scales[static_cast<size_t>(r)])
      check.failure = "activation scale of row " + std::to_string(r);
    if (!std::equal(actual_codes.begin(), actual_codes.end(),
                    codes.begin() + static_cast<ptrdiff_t>(at))) {
      check.failure = "int8 codes of row " + std::to_string(r);
    }
  }

  std::vector<float> y(expected.size(), 0.0f);  // the op adds to it
  int32_t fault = 0;
  backend.project({x.data(),
                   nullptr,
                   0,
                   {linear.codes.data(), &linear.multiplier, 1, width, cols},
                   y.data(),
                   rows,
                   0,
                   &fault});
  if (fault != 0) check.failure = "a value is not finite";
  judge(check, worst_error(y.data(), expected, width, 2e-6));
}

void check_rms_norm(const Tensors& tensors, const std::string& op, const BackendUnderTest& backend,
                    OpCheck& check) {
  const TestTensor& x_tensor = get(tensors, op + ".x");
  const int rows = x_tensor.dim(0);
  const int n = x_tensor.dim(1);
  const float eps = std::strtof(op.c_str() + op.find(".eps") + 4, nullptr);
  const std::vector<float> x = x_tensor.floats();
  const std::vector<float> gain = get(tensors, op + ".weight").floats();
  const std::vector<float> expected = get(tensors, op + ".y").floats();
  std::vector<int32_t> row_list;
  for (int r = 0; r < rows; ++r) row_list.push_back(r);
  std::vector<float> normed(expected.size());
  // The norm before the head, with a head of no rows.
  HeadArgs head;
  head.x = x.data();
  head.row_list = row_list.data();
  head.gain = gain.data();
  head.eps = eps;
  head.w = {nullptr, DenseType::kF32, 0, n};
  head.normed = normed.data();
  head.rows = rows;
  backend.head(head);
  judge(check, worst_error(normed.data(), expected, n, 2e-6));
}

void check_rope(const Tensors& tensors, const std::string& op, const BackendUnderTest& backend,
                OpCheck& check) {
  const double theta = std::strtod(op.c_str() + op.find(".theta") + 6, nullptr);
  const TestTensor& q_tensor = get(tensors, op + ".q");
  const TestTensor& k_tensor = get(tensors, op + ".k");
  const int n = q_tensor.dim(2);
  const int head_dim = q_tensor.dim(3);
  const int half = head_dim / 2;
  const std::vector<int32_t> positions = get(tensors, op + ".positions").as<int32_t>();
  const std::vector<float> recorded_freq = get(tensors, op + ".inv_freq").floats();
  std::vector<float> inv_freq;
  for (int i = 0; i < half; ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(head_dim);
    inv_freq.push_back(1.0f / static_cast<float>(std::pow(theta, static_cast<double>(exponent))));
  }
  judge(check, worst_error(inv_freq.data(), recorded_freq, half, 2e-6));

  int last = 0;
  for (int32_t position : positions) last = std::max(last, position);
  std::vector<float> cosine(static_cast<size_t>((last + 1) * half));
  std::vector<float> sine(cosine.size());
  for (int32_t position : positions) {
    for (int i = 0; i < half; ++i) {
      const double angle =
          static_cast<double>(static_cast<float>(position) * recorded_freq[static_cast<size_t>(i)]);
      cosine[static_cast<size_t>(position * half + i)] = static_cast<float>(std::cos(angle));
      sine[static_cast<size_t>(position * half + i)] = static_cast<float>(std::sin(angle));
    }
  }

  // qkv with identity-like weights: every head's vector is one row whose largest value makes the
  // int8 codes exact only for small integers, so the rotation is fed one basis vector at a time: q
  // of dimension d is then exactly c * e_d, and linearity gives the rotation of any vector.
  const auto rotate_all = [&](const TestTensor& tensor, const std::string& out_name) {
    const std::vector<float> input = tensor.floats();
    const std::vector<float> expected = get(tensors, out_name).floats();
    const int heads = tensor.dim(1);
    std::vector<float> actual(expected.size(), 0.0f);
    std::vector<uint8_t> unit_codes(static_cast<size_t>(head_dim));
    std::vector<uint8_t> zero_codes(static_cast<size_t>(head_dim), 0);
    const std::vector<float> x = {1.0f, 0.0f, 0.0f, 0.0f};
    const std::vector<float> gain(4, 1.0f);
    const float one = 1.0f;
    for (int t = 0; t < n; ++t) {
      for (int d = 0; d < head_dim; ++d) {
        std::fill(unit_codes.begin(), unit_codes.end(), uint8_t{0});
        unit_codes[static_cast<size_t>(d)] = 1;  // row d: +1 in column 0
        QkvArgs args;
        args.x = x.data();
        args.gain = gain.data();
        args.q = {unit_codes.data(), &one, 1, head_dim, 4};
        args.k = {zero_codes.data(), &one, 1, head_dim, 4};
        args.v = args.k;
        args.rope_cos = cosine.data();
        args.rope_sin = sine.data();
        args.positions = &positions[static_cast<size_t>(t)];
        std::vector<float> rotated(static_cast<size_t>(head_dim));
        std::vector<float> zeros(2 * rotated.size());
        args.q_out = rotated.data();
        args.k_out = zeros.data();
        args.v_out = zeros.data() + head_dim;
        args.rows = 1;
        args.dim = 4;
        args.head_dim = head_dim;
        int32_t fault = 0;
        args.fault = &fault;
        backend.qkv(args);
        // Without rotation the vector is 2 e_d: mean(x^2) = 1/4.
        for (int h = 0; h < heads; ++h) {
          const size_t vector = static_cast<size_t>((h * n + t) * head_dim);
          for (int i = 0; i < head_dim; ++i) {
            actual[vector + static_cast<size_t>(i)] +=
                rotated[static_cast<size_t>(i)] * 0.5f * input[vector + static_cast<size_t>(d)];
          }
        }
      }
    }
    judge(check, worst_error(actual.data(), expected, head_dim, 2e-6));
  };
  rotate_all(q_tensor, op + ".q_out");
  rotate_all(k_tensor, op + ".k_out");
}

void check_attention(const Tensors& tensors, const std::string& op, const BackendUnderTest& backend,
                     OpCheck& check) {
  const TestTensor& q_tensor = get(tensors, op + ".q");
  const TestTensor& k_tensor = get(tensors, op + ".k");
  const int heads = q_tensor.dim(1);
  const int kv_heads = k_tensor.dim(1);
  const int n = q_tensor.dim(2);
  const int head_dim = q_tensor.dim(3);
  const std::vector<float> q_in = q_tensor.floats();
  const std::vector<float> k_in = k_tensor.floats();
  const std::vector<float> v_in = get(tensors, op + ".v").floats();
  const std::vector<float> expected = get(tensors, op + ".out").floats();
  const int block_size = (n + kAttentionChunk - 1) / kAttentionChunk * kAttentionChunk;
  std::vector<float> keys(static_cast<size_t>(kv_heads * block_size * head_dim), NAN);
  std::vector<float> values(keys);
  const int32_t block = 0;
  const KvCache kv{keys.data(), values.data(), &block,   1,
                   block_size,  kv_heads,      head_dim, KvType::kF32};
  for (int h = 0; h < kv_heads; ++h) {
    for (int p = 0; p < n; ++p) {
      for (int d = 0; d < head_dim; ++d) {
        const size_t from = static_cast<size_t>((h * n + p) * head_dim + d);
        const size_t tile = kv.tile_offset(0, p, h);
        keys[tile + ref::key_index(p, d, head_dim)] = k_in[from];
        values[tile + ref::value_index(p, d, head_dim)] = v_in[from];
      }
    }
  }
  std::vector<float> q(q_in.size());
  std::vector<int32_t> positions;
  for (int p = 0; p < n; ++p) {
    positions.push_back(p);
    for (int h = 0; h < heads; ++h) {
      std::copy_n(q_in.begin() + (h * n + p) * head_dim, head_dim,
                  q.begin() + (p * heads + h) * head_dim);
    }
  }
  const std::vector<int32_t> sequences(static_cast<size_t>(n), 0);
  std::vector<float> out(expected.size());
  AttentionArgs args;
  args.q = q.data();
  args.kv = kv;
  args.places = {sequences.data(), positions.data()};
  args.out = out.data();
  args.rows = n;
  args.heads = heads;
  backend.attention(args);
  judge(check, worst_error(out.data(), expected, heads * head_dim, 2e-6));
}

}  // namespace

std::vector<OpCheck> check_ops(const std::filesystem::path& folder) {
  using Checker = void (*)(const Tensors&, const std::string&, const BackendUnderTest&, OpCheck&);
  const std::pair<const char*, Checker> kCheckers[] = {{"autobitlinear.", check_linear},
                                                       {"bitlinear.", check_linear},
                                                       {"online.", check_linear},
                                                       {"rmsnorm.", check_rms_norm},
                                                       {"rope.", check_rope},
                                                       {"attention.", check_attention}};
  std::vector<OpCheck> checks;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() != ".safetensors") continue;
    const Tensors tensors = read_safetensors(entry.path());
    std::map<std::string, Checker> ops;
    for (const auto& [name, tensor] : tensors) {
      const std::string op = name.substr(0, name.rfind('.'));
      for (const auto& [prefix, checker] : kCheckers) {
        if (name.starts_with(prefix)) ops[op] = checker;
      }
      if (!ops.contains(op)) {
        checks.push_back({name, "", 0, "an operation this tool does not know"});
      }
    }
    for (const auto& [op, checker] : ops) {
      for (const BackendUnderTest& backend : backends()) {
        OpCheck check{op, backend.name, 0, ""};
        checker(tensors, op, backend, check);
        checks.push_back(check);
      }
    }
  }
  return checks;
}

}  // namespace edgellm::test
