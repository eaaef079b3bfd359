#include "model/import/gguf/i2s_probe.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <set>
#include <vector>

#include "model/import/gguf/rows.h"
#include "model/import/tensor_values.h"

namespace edgellm::model_io::gguf {
namespace {

struct LayoutName {
  Type layout;
  const char* name;
};
constexpr std::array<LayoutName, 3> kLayouts = {
    {{Type::kI2sWindow128, "x86"}, {Type::kI2sWindow64, "arm"}, {Type::kI2sFourRows, "rows"}}};

// Where each value stands among all of them in ascending order; equal ones share their middle.
std::vector<double> ranks(const std::vector<double>& values) {
  std::vector<size_t> order(values.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return values[a] < values[b]; });
  std::vector<double> result(values.size());
  for (size_t begin = 0; begin < order.size();) {
    size_t end = begin;
    while (end < order.size() && values[order[end]] == values[order[begin]]) ++end;
    for (size_t i = begin; i < end; ++i) {
      result[order[i]] = static_cast<double>(begin + end - 1) / 2;
    }
    begin = end;
  }
  return result;
}

// Evidence that pairs of numbers belong together: the sum of (n - 1) r^2 over lists of pairs, r
// being the correlation of their ranks. By chance each list adds about 1.
class Evidence {
 public:
  void add(const std::vector<double>& a, const std::vector<double>& b) {
    if (a.empty() || a.size() != b.size()) return;
    const std::vector<double> x = ranks(a);
    const std::vector<double> y = ranks(b);
    const double mean = static_cast<double>(x.size() - 1) / 2;
    double xy = 0;
    double xx = 0;
    double yy = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      xy += (x[i] - mean) * (y[i] - mean);
      xx += (x[i] - mean) * (x[i] - mean);
      yy += (y[i] - mean) * (y[i] - mean);
    }
    if (xx == 0 || yy == 0) return;  // all equal: says nothing
    sum_ += xy * xy / (xx * yy) * static_cast<double>(x.size() - 1);
    ++n_;
  }

  // What chance does not explain, and how much it varies.
  double excess() const { return sum_ - n_; }
  double deviation() const { return std::sqrt(2.0 * n_); }

 private:
  double sum_ = 0;
  int n_ = 0;
};

// How many codes of each column and of each row are not 0.
struct Counts {
  std::vector<double> of_columns, of_rows;
};

class Prober {
 public:
  Prober(const Checkpoint& checkpoint, const ModelConfig& config)
      : checkpoint_(checkpoint), config_(config) {}

  // Empty where a matrix cannot have that layout.
  std::optional<Evidence> evidence(Type layout) const;

 private:
  std::optional<Counts> count(const std::string& name, Type layout, bool& fits) const;
  std::vector<double> gain(const std::string& name) const;
  void add_layer(int layer, Type layout, Evidence& evidence, bool& fits) const;

  const Checkpoint& checkpoint_;
  const ModelConfig& config_;
};

// Empty for a matrix that is not I2_S.
std::optional<Counts> Prober::count(const std::string& name, Type layout, bool& fits) const {
  const CheckpointTensor* found = checkpoint_.find(name);
  if (found == nullptr || found->coding != RowCoding::kGguf ||
      traits(found->gguf.type).number != traits(layout).number) {
    return std::nullopt;
  }
  CheckpointTensor tensor = *found;
  tensor.gguf.type = layout;
  const auto rows = static_cast<size_t>(tensor.shape[0]);
  const auto cols = static_cast<size_t>(tensor.shape[1]);
  if (!tensor_bytes(layout, tensor.shape[0], tensor.shape[1])) {
    fits = false;
    return std::nullopt;
  }
  Counts counts{std::vector<double>(cols), std::vector<double>(rows)};
  for_each_rows(tensor, [&](int64_t first, int64_t n) {
    const UnpackedRows unpacked = read_ternary_rows(checkpoint_, tensor, first, n);
    for (size_t i = 0; i < unpacked.codes.size(); ++i) {
      if (unpacked.codes[i] == 0) continue;
      counts.of_columns[i % cols] += 1;
      counts.of_rows[static_cast<size_t>(first) + i / cols] += 1;
    }
  });
  return counts;
}

std::vector<double> Prober::gain(const std::string& name) const {
  const CheckpointTensor* norm = checkpoint_.find(name);
  if (norm == nullptr || norm->coding != RowCoding::kNone) return {};
  std::vector<std::byte> bytes(norm->bytes);
  checkpoint_.read(*norm, 0, bytes.data(), bytes.size());
  std::vector<float> values(bytes.size() / float_dtype_bytes(norm->dtype));
  widen(norm->dtype, bytes.data(), values.size(), values.data());
  std::vector<double> magnitudes;
  for (const float value : values) {
    // Any order will do for what is no number; writing the norm refuses it.
    magnitudes.push_back(std::isnan(value) ? 0.0 : std::fabs(static_cast<double>(value)));
  }
  return magnitudes;
}

void Prober::add_layer(int layer, Type layout, Evidence& evidence, bool& fits) const {
  const std::string prefix = "model.layers." + std::to_string(layer) + ".";
  const auto counts = [&](const char* name) {
    return count(prefix + name + ".weight", layout, fits).value_or(Counts{});
  };
  const auto gains = [&](const char* name) { return gain(prefix + name + ".weight"); };
  const std::vector<double> attn_norm = gains("input_layernorm");
  const std::vector<double> ffn_norm = gains("post_attention_layernorm");
  for (const char* name : {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"}) {
    evidence.add(counts(name).of_columns, attn_norm);
  }
  evidence.add(counts("self_attn.o_proj").of_columns, gains("self_attn.attn_sub_norm"));
  const std::vector<double> down = counts("mlp.down_proj").of_columns;
  evidence.add(down, gains("mlp.ffn_sub_norm"));
  for (const char* name : {"mlp.gate_proj", "mlp.up_proj"}) {
    const Counts matrix = counts(name);
    evidence.add(matrix.of_columns, ffn_norm);
    evidence.add(down, matrix.of_rows);
  }
}

std::optional<Evidence> Prober::evidence(Type layout) const {
  // A layer alone is evidence enough in a trained model; the odd one may be silent.
  constexpr int kMaxLayers = 6;
  std::set<int> layers;
  for (int i = 0; i < kMaxLayers; ++i) layers.insert(i * config_.layers / kMaxLayers);
  Evidence evidence;
  bool fits = true;
  for (const int layer : layers) add_layer(layer, layout, evidence, fits);
  return fits ? std::optional(evidence) : std::nullopt;
}

}  // namespace

const char* i2s_layout_name(Type layout) {
  for (const LayoutName& known : kLayouts) {
    if (known.layout == layout) return known.name;
  }
  return "";
}

std::optional<Type> find_i2s_layout(const std::string& name) {
  for (const LayoutName& known : kLayouts) {
    if (known.name == name) return known.layout;
  }
  return std::nullopt;
}

std::optional<Type> probe_i2s_layout(const Checkpoint& checkpoint, const ModelConfig& config) {
  const Prober prober(checkpoint, config);
  std::optional<Type> best;
  double best_excess = 0;
  double second_excess = 0;
  double deviation = 0;
  for (const LayoutName& known : kLayouts) {
    const std::optional<Evidence> evidence = prober.evidence(known.layout);
    if (!evidence) continue;
    deviation = evidence->deviation();
    if (evidence->excess() > best_excess) {
      second_excess = best_excess;
      best_excess = evidence->excess();
      best = known.layout;
    } else {
      second_excess = std::max(second_excess, evidence->excess());
    }
  }
  // Two layers of a trained model give an excess of some hundreds, and a wrong layout a tenth of it
  // (docs/gguf.md). Chance gives ten deviations once in the age of the universe.
  if (!best || best_excess < 10 * deviation || best_excess < 3 * second_excess) return std::nullopt;
  return best;
}

}  // namespace edgellm::model_io::gguf
