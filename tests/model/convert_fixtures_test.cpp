// Conversion of every model folder of the fixtures, checked against their safetensors read by the
// plainest means.
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>

#include "model/float_bits.h"
#include "model/import/hf_config.h"
#include "model/import/safetensors.h"
#include "tests/model/test_model.h"
#include "tests/support/fixtures.h"
#include "tests/support/safetensors_file.h"
#include "tests/support/skip.h"

using namespace edgellm;
using namespace edgellm::test;

namespace fs = std::filesystem;

namespace {

std::vector<fs::path> model_folders() { return fixtures_where(is_model_folder); }

ModelFile convert_folder(const fs::path& folder, const TempDir& temp) {
  const std::string out = temp / (folder.filename().string() + ".tmac2");
  convert_hf(folder.string(), out, {});
  ModelFile file = ModelFile::open(out);
  file.verify_contents();
  return file;
}

template <typename T>
std::vector<T> read_all(const model_io::Checkpoint& checkpoint, const std::string& name) {
  const model_io::CheckpointTensor* tensor = checkpoint.find(name);
  REQUIRE(tensor != nullptr);
  std::vector<T> values(static_cast<size_t>(tensor->bytes) / sizeof(T));
  checkpoint.read(*tensor, 0, values.data(), static_cast<size_t>(tensor->bytes));
  return values;
}

// The one value of a weight_scale, which may be of any float type.
float scale_in(const model_io::Checkpoint& checkpoint, const std::string& name) {
  const model_io::CheckpointTensor* tensor = checkpoint.find(name);
  REQUIRE(tensor != nullptr);
  if (tensor->dtype == "F32") return read_all<float>(checkpoint, name).at(0);
  const uint16_t bits = read_all<uint16_t>(checkpoint, name).at(0);
  if (tensor->dtype == "F16") return model_io::f16_to_float(bits);
  REQUIRE(tensor->dtype == "BF16");
  return model_io::bf16_to_float(bits);
}

// Whether config.json says that weight_scale multiplies; masters need no such word.
bool scale_multiplies(const fs::path& folder) {
  const Json config = Json::parse(read_file((folder / "config.json").string()));
  const Json::json_pointer linear_class("/quantization_config/linear_class");
  return config.contains(linear_class) && config.at(linear_class) == "autobitlinear";
}

size_t dense_bytes(const DenseTensor& tensor) {
  return static_cast<size_t>(tensor.rows) * static_cast<size_t>(tensor.cols) *
         (tensor.dtype == DType::kF32 ? 4 : 2);
}

const std::vector<std::pair<std::string, TernaryTensor LayerWeights::*>> kMatrices = {
    {"self_attn.q_proj", &LayerWeights::q}, {"self_attn.k_proj", &LayerWeights::k},
    {"self_attn.v_proj", &LayerWeights::v}, {"self_attn.o_proj", &LayerWeights::o},
    {"mlp.gate_proj", &LayerWeights::gate}, {"mlp.up_proj", &LayerWeights::up},
    {"mlp.down_proj", &LayerWeights::down}};

}  // namespace

TEST_CASE("fixtures: every model converts, codes and scales as stored") {
  const std::vector<fs::path> folders = model_folders();
  if (folders.empty()) {
    skip("no fixtures");
    return;
  }
  for (const fs::path& folder : folders) {
    INFO(folder.string());
    const TempDir temp;
    const ModelFile file = convert_folder(folder, temp);
    const model_io::Checkpoint checkpoint(folder.string());
    const bool multiplies = scale_multiplies(folder);
    for (size_t i = 0; i < file.weights().layers.size(); ++i) {
      for (const auto& [name, member] : kMatrices) {
        const std::string full = "model.layers." + std::to_string(i) + "." + name;
        const TernaryTensor& tensor = file.weights().layers[i].*member;
        if (checkpoint.find(full + ".weight")->dtype != "U8") continue;
        const auto packed = read_all<uint8_t>(checkpoint, full + ".weight");
        const std::vector<int> codes = codes_of(tensor);
        bool equal = true;
        const int quarter = tensor.rows / 4;
        for (int r = 0; r < tensor.rows; ++r) {
          for (int c = 0; c < tensor.cols; ++c) {
            const auto at = static_cast<size_t>((r % quarter) * tensor.cols + c);
            const int value = ((packed[at] >> (2 * (r / quarter))) & 3) - 1;
            equal = equal && codes[static_cast<size_t>(r * tensor.cols + c)] == value;
          }
        }
        CHECK(equal);
        const float scale = scale_in(checkpoint, full + ".weight_scale");
        CHECK(tensor.scale[0] == (multiplies ? scale : 1.0f / scale));
      }
    }
    const auto embedding = read_all<char>(checkpoint, "model.embed_tokens.weight");
    REQUIRE(dense_bytes(file.weights().embedding) == embedding.size());
    CHECK(std::memcmp(file.weights().embedding.data, embedding.data(), embedding.size()) == 0);
    if (!file.config().tied_head) {
      const auto head = read_all<char>(checkpoint, "lm_head.weight");
      CHECK(std::memcmp(file.weights().head.data, head.data(), head.size()) == 0);
    }
    CHECK(file.tokenizer().present == fs::exists(folder / "tokenizer.json"));
  }
}

TEST_CASE("fixtures: masters give the codes of the packed checkpoint of the same model") {
  int n_pairs = 0;
  const std::vector<fs::path> folders = model_folders();
  for (const fs::path& masters : folders) {
    for (const fs::path& packed : folders) {
      const std::string name = packed.filename().string();
      if (!masters.filename().string().starts_with(name + "-bf16")) continue;
      ++n_pairs;
      INFO(masters.string() << " and " << packed.string());
      const TempDir temp;
      const ModelFile a = convert_folder(masters, temp);
      const ModelFile b = convert_folder(packed, temp);
      REQUIRE(a.weights().layers.size() <= b.weights().layers.size());
      CHECK(std::memcmp(a.weights().embedding.data, b.weights().embedding.data,
                        dense_bytes(a.weights().embedding)) == 0);
      for (size_t i = 0; i < a.weights().layers.size(); ++i) {
        const LayerWeights& x = a.weights().layers[i];
        const LayerWeights& y = b.weights().layers[i];
        const auto same = [](std::span<const float> p, std::span<const float> q) {
          return p.size() == q.size() && std::memcmp(p.data(), q.data(), p.size_bytes()) == 0;
        };
        CHECK(same(x.attn_norm, y.attn_norm));
        CHECK(same(x.attn_sub_norm, y.attn_sub_norm));
        CHECK(same(x.ffn_norm, y.ffn_norm));
        CHECK(same(x.ffn_sub_norm, y.ffn_sub_norm));
        for (const auto& [matrix, member] : kMatrices) {
          INFO("layer " << i << " " << matrix);
          CHECK(codes_of(x.*member) == codes_of(y.*member));
          // The packed checkpoint rounded its scale to bf16.
          CHECK(model_io::float_to_bf16((x.*member).scale[0]) ==
                model_io::float_to_bf16((y.*member).scale[0]));
        }
      }
    }
  }
  if (n_pairs == 0) skip("no packed fixture with a -bf16 twin");
}

TEST_CASE("fixtures: inv_freq is that of transformers") {
  const std::string prefix = "rope.theta", suffix = ".inv_freq";
  int n_found = 0;
  for (const fs::path& path : fixtures_where(is_recorded_operations)) {
    for (const auto& [name, tensor] : read_safetensors(path)) {
      if (!name.starts_with(prefix) || !name.ends_with(suffix)) continue;
      ++n_found;
      INFO(path.string() << ": " << name);
      const std::vector<float> expected = tensor.floats();
      ModelConfig config;
      config.head_dim = static_cast<int>(2 * expected.size());
      config.rope_theta = std::stod(name.substr(prefix.size()));
      const std::vector<float> found = model_io::rope_inv_freq(config);
      for (size_t i = 0; i < expected.size(); ++i) {
        // PyTorch's float32 pow is one unit in the last place off now and then.
        CHECK(std::fabs(found[i] - expected[i]) <= 1.2e-7f * expected[i]);
      }
    }
  }
  if (n_found == 0) skip("no recorded rope frequencies below " + fixtures().string());
}
