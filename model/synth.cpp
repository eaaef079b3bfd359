// write_synth: models of random weights, for speed and for tests of shapes that no checkpoint at
// hand has. Every value is a function of (seed, section name, index) in integer arithmetic. Real
// numbers come from operations alone that IEEE 754 rounds correctly. The one exception are RoPE's
// frequencies, which need pow, in double and rounded to float32. So the same options give the same
// bytes on every machine, and the sections may be made in any order.

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <map>

#include "base/error.h"
#include "base/files.h"
#include "base/hash.h"
#include "base/text.h"
#include "model/convert.h"
#include "model/float_bits.h"
#include "model/import/hf_config.h"
#include "model/layout.h"
#include "model/model_writer.h"

namespace edgellm {
namespace {

using namespace model_io;

constexpr size_t kBlockBytes = size_t{1} << 20;

struct Shape {
  const char* name;
  const char* architecture;
  int layers, dim, ffn, heads, kv_heads, head_dim, vocab, max_context;
  Activation act;
  bool sub_norms, tied_head;
  float norm_eps;
  double rope_theta;
  // Norms of heads, float activations, a scale for each group, embedding and head ternary.
  bool is_bonsai = false;
};

constexpr Activation kRelu2 = Activation::kRelu2;
constexpr Activation kSilu = Activation::kSilu;
constexpr std::array<Shape, 7> kShapes = {{
    {"smollm-135m", "LlamaForCausalLM", 30, 576, 1536, 9, 3, 64, 49152, 2048, kSilu, false, true,
     1e-5f, 10000},
    {"bitnet-2b-4t", "BitNetForCausalLM", 30, 2560, 6912, 20, 5, 128, 128256, 4096, kRelu2, true,
     true, 1e-5f, 500000},
    {"falcon3-3b", "LlamaForCausalLM", 22, 3072, 9216, 12, 4, 256, 131072, 32768, kSilu, false,
     false, 1e-6f, 1000042},
    {"llama3-8b", "LlamaForCausalLM", 32, 4096, 14336, 32, 8, 128, 128256, 8192, kSilu, false,
     false, 1e-5f, 500000},
    {"bitnet-3b", "BitnetForCausalLM", 26, 3200, 8640, 32, 32, 100, 32002, 2048, kSilu, true, true,
     1e-5f, 10000},
    {"ternary-bonsai-1.7b", "Qwen3ForCausalLM", 28, 2048, 6144, 16, 8, 128, 151936, 32768, kSilu,
     false, true, 1e-6f, 1000000, true},
    {"ternary-bonsai-8b", "Qwen3ForCausalLM", 36, 4096, 12288, 32, 8, 128, 151936, 65536, kSilu,
     false, false, 1e-6f, 1000000, true},
}};

ModelConfig to_config(const Shape& shape) {
  ModelConfig config;
  config.architecture = shape.architecture;
  config.layers = shape.layers;
  config.dim = shape.dim;
  config.ffn = shape.ffn;
  config.heads = shape.heads;
  config.kv_heads = shape.kv_heads;
  config.head_dim = shape.head_dim;
  config.vocab = shape.vocab;
  config.max_context = shape.max_context;
  config.act = shape.act;
  config.attn_sub_norm = shape.sub_norms;
  config.ffn_sub_norm = shape.sub_norms;
  config.tied_head = shape.tied_head;
  config.norm_eps = shape.norm_eps;
  config.rope_theta = shape.rope_theta;
  config.qk_norm = shape.is_bonsai;
  if (shape.is_bonsai) config.activation_quant = ActivationQuant::kInt16Group;
  return config;
}

// The finaliser of splitmix64 (Steele, Lea, Flood 2014): every input bit changes half the output.
constexpr uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  return x ^ (x >> 31);
}

// A sequence of random words that can be entered anywhere: splitmix64, from a start that belongs to
// the seed and the section.
class Stream {
 public:
  Stream(uint64_t seed, std::string_view name)
      : start_(mix(mix(seed + kStep) + xxh3(name.data(), name.size()))) {}
  uint64_t word(uint64_t index) const { return mix(start_ + (index + 1) * kStep); }

 private:
  static constexpr uint64_t kStep = 0x9E3779B97F4A7C15;
  uint64_t start_;
};

// The sum of four bytes in each half of a word is close to normal, with mean 510 and variance
// 4 * (256^2 - 1) / 12.
constexpr int kSumMean = 510;
constexpr double kSumDeviation = 147.80054127099805;
constexpr size_t kSumCount = 2 * kSumMean + 1;

struct TwoSums {
  size_t low, high;
};
inline TwoSums byte_sums(uint64_t word) {
  constexpr uint64_t kEvenBytes = 0x00FF00FF00FF00FF;
  const uint64_t pairs = (word & kEvenBytes) + ((word >> 8) & kEvenBytes);
  const uint64_t sums = pairs + (pairs >> 16);
  return {sums & 0xFFFF, (sums >> 32) & 0xFFFF};
}

class Synthesiser {
 public:
  Synthesiser(const ModelConfig& config, const SynthOptions& options, ModelWriter& writer)
      : config_(config), options_(options), writer_(writer) {}

  void write(const SectionPlan& section) {
    const std::string_view name = section.name;
    if (name == kInvFreq) {
      write_floats(section, rope_inv_freq(config_));
    } else if (section.dtype == DType::kT2) {
      write_ternary(section);
    } else if (name.ends_with(".scale")) {
      if (section.dtype == DType::kF16) {
        write_group_scales(section);
      } else {
        write_floats(section, {scale(section)});
      }
    } else if (section.dtype == DType::kF32) {
      write_floats(section, gains(section));
    } else {
      // The head's logits should spread over some units; the embedding's size does not matter,
      // the first norm removes it.
      const bool is_head = config_.tied_head || name == kHead;
      write_bf16(section, is_head ? 0.15 : 1.0);
    }
  }

 private:
  void append(const SectionPlan& section, const void* data, size_t bytes) {
    writer_.append(section.name, data, bytes);
    done_ += bytes;
    if (options_.progress) options_.progress("making " + section.name, done_, writer_.file_bytes());
  }

  void write_floats(const SectionPlan& section, const std::vector<float>& values) {
    append(section, values.data(), values.size() * sizeof(float));
  }

  // Uniform in (0.7, 1.3) / sqrt(0.66 * in), so that a layer's output keeps the size of its input
  // (two thirds of the codes are not zero); rounded to bf16 as a checkpoint's would be.
  float scale(const SectionPlan& section) const {
    const auto in = static_cast<double>(inputs(section));
    const auto uniform = static_cast<double>(Stream(options_.seed, section.name).word(0) >> 40);
    const double value = (0.7 + 0.6 * (uniform * 0x1p-24)) / std::sqrt(0.66 * in);
    return bf16_to_float(float_to_bf16(static_cast<float>(value)));
  }

  // Of the matrix that the scales belong to.
  int64_t inputs(const SectionPlan& section) const {
    const std::string matrix = section.name.substr(0, section.name.size() - 6);
    const std::string part = matrix.substr(matrix.rfind('.') + 1);
    return matrix == kEmbedding || matrix == kHead ? config_.dim : matrix_shape(config_, part)[1];
  }

  // The same for each group, as f16.
  void write_group_scales(const SectionPlan& section) {
    const double middle = 1 / std::sqrt(0.66 * static_cast<double>(inputs(section)));
    std::array<uint16_t, 1024> table{};
    for (size_t i = 0; i < table.size(); ++i) {
      const double value = middle * (0.7 + 0.6 * static_cast<double>(i) / 1024);
      // Cut to the 11 bits of an f16 that is not below 2^-14.
      const auto bits = std::bit_cast<uint32_t>(static_cast<float>(value)) & 0xFFFFE000u;
      table[i] = exact_f16(std::bit_cast<float>(bits));
    }
    const Stream stream(options_.seed, section.name);
    std::vector<uint16_t> scales(static_cast<size_t>(section.shape[0]) *
                                 static_cast<size_t>(section.shape[1]));
    for (size_t i = 0; i < scales.size(); ++i) scales[i] = table[stream.word(i) >> 54];
    append(section, scales.data(), scales.size() * sizeof(uint16_t));
  }

  std::vector<float> gains(const SectionPlan& section) const {
    const Stream stream(options_.seed, section.name);
    std::vector<float> values(static_cast<size_t>(section.shape[0]));
    for (size_t i = 0; i < values.size(); ++i) {
      const int sum = static_cast<int>(byte_sums(stream.word(i)).low);
      values[i] = static_cast<float>(1 + 0.2 * ((sum - kSumMean) / kSumDeviation));
    }
    return values;
  }

  void write_bf16(const SectionPlan& section, double deviation) {
    std::array<uint16_t, kSumCount> table{};
    for (size_t i = 0; i < kSumCount; ++i) {
      const double normal = (static_cast<int>(i) - kSumMean) / kSumDeviation;
      table[i] = float_to_bf16(static_cast<float>(deviation * normal));
    }
    const Stream stream(options_.seed, section.name);
    const auto n =
        static_cast<uint64_t>(section.shape[0]) * static_cast<uint64_t>(section.shape[1]);
    std::vector<uint16_t> block(kBlockBytes / 2);
    for (uint64_t at = 0; at < n; at += block.size()) {
      for (size_t i = 0; i < block.size(); i += 2) {
        const TwoSums sums = byte_sums(stream.word((at + i) / 2));
        block[i] = table[sums.low];
        block[i + 1] = table[sums.high];
      }
      append(section, block.data(),
             2 * static_cast<size_t>(std::min<uint64_t>(block.size(), n - at)));
    }
  }

  void write_ternary(const SectionPlan& section) {
    const Stream stream(options_.seed, section.name);
    // 19 to 23 of 32 codes are not zero: about a third zeros, another share in each matrix.
    const auto density = static_cast<unsigned>(19 + stream.word(UINT64_MAX - 1) % 5);
    std::array<uint64_t, 5> digits{};  // of density / 32, least first: all ones or all zeros
    for (size_t d = 0; d < digits.size(); ++d) digits[d] = (density >> d & 1) != 0 ? ~0ULL : 0;

    const size_t row_bytes = (static_cast<size_t>(section.shape[1]) + 3) / 4;
    const auto rest = static_cast<unsigned>(section.shape[1] % 4);
    const auto last_mask = static_cast<uint8_t>(rest == 0 ? 0xFF : 0xFF >> (8 - 2 * rest));
    const uint64_t bytes = row_bytes * static_cast<uint64_t>(section.shape[0]);
    std::vector<uint64_t> block(kBlockBytes / 8);
    uint64_t row_end = row_bytes;
    for (uint64_t at = 0; at < bytes; at += kBlockBytes) {
      for (size_t i = 0; i < block.size(); ++i) block[i] = codes(stream, at / 8 + i, digits);
      const uint64_t n = std::min<uint64_t>(kBlockBytes, bytes - at);
      auto* out = reinterpret_cast<uint8_t*>(block.data());
      if (rest != 0) {  // zero codes after the last column of each row
        for (; row_end <= at + n; row_end += row_bytes) out[row_end - 1 - at] &= last_mask;
      }
      append(section, out, static_cast<size_t>(n));
    }
  }

  // 32 codes: three random words are six bits for each. Five of them, read as a binary fraction,
  // are below density / 32 or not; the sixth is the sign.
  static uint64_t codes(const Stream& stream, uint64_t index,
                        const std::array<uint64_t, 5>& digits) {
    constexpr uint64_t kLowBits = 0x5555555555555555;
    const uint64_t a = stream.word(3 * index);
    const uint64_t b = stream.word(3 * index + 1);
    const uint64_t c = stream.word(3 * index + 2);
    const std::array<uint64_t, 5> bits = {a, a >> 1, b, b >> 1, c};
    uint64_t nonzero = 0;
    for (size_t d = 0; d < bits.size(); ++d) {
      nonzero = (bits[d] & nonzero) | (digits[d] & (bits[d] | nonzero));
    }
    nonzero &= kLowBits;
    return nonzero | ((nonzero & (c >> 1)) << 1);
  }

  const ModelConfig& config_;
  const SynthOptions& options_;
  ModelWriter& writer_;
  uint64_t done_ = 0;
};

}  // namespace

std::vector<std::string> synth_shape_names() {
  std::vector<std::string> names;
  for (const Shape& shape : kShapes) names.emplace_back(shape.name);
  return names;
}

ModelConfig synth_config(const std::string& shape) {
  for (const Shape& known : kShapes) {
    if (shape == known.name) return to_config(known);
  }
  if (!path_exists(shape)) {
    throw Error(ExitCode::kUsage, "'" + printable_path(shape) +
                                      "' is neither a known shape nor a config.json; known are " +
                                      join(synth_shape_names(), ", "));
  }
  return read_hf_config(shape, {}, WeightsKnown::kMade).model;
}

void write_synth(const SynthOptions& options, const std::string& output) {
  Metadata metadata;
  ModelConfig& config = metadata.config;
  config = synth_config(options.shape);
  if (options.layers) config.layers = *options.layers;
  if (options.vocab) config.vocab = *options.vocab;
  if (options.context) config.max_context = *options.context;
  validate(config);
  const std::vector<std::string> names = synth_shape_names();
  const bool is_named = std::find(names.begin(), names.end(), options.shape) != names.end();
  metadata.provenance.source = "synth " + (is_named ? options.shape : config.architecture) +
                               ", seed " + std::to_string(options.seed);
  // No converter_version: the next version must give the same bytes.
  metadata.provenance.random = true;

  std::map<std::string, ScalePlan> scales;
  const bool has_groups = config.activation_quant == ActivationQuant::kInt16Group;
  if (has_groups) {
    constexpr ScalePlan kGroups = {ScaleShape::kGroups, DType::kF16};
    scales = {{std::string(kEmbedding), kGroups}, {std::string(kHead), kGroups}};
    for (int layer = 0; layer < config.layers; ++layer) {
      for (const std::string_view matrix : kMatrices) {
        scales[layer_section(layer, matrix)] = kGroups;
      }
    }
  }
  const DType table = has_groups ? DType::kT2 : DType::kBF16;
  const std::vector<SectionPlan> plan = plan_sections(config, table, table, 0, scales);
  std::vector<FileIdentity> inputs;
  if (!is_named) inputs.push_back(InputFile(options.shape).identity());
  ModelWriter writer(output, metadata, plan, inputs);
  Synthesiser synthesiser(config, options, writer);
  for (const SectionPlan& section : plan) synthesiser.write(section);
  writer.seal();
  writer.commit();
}

}  // namespace edgellm
