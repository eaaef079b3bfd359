// Conversion of checkpoints without a quantization_config: float weights that are ternary by the
// whole, by rows or by groups of columns.
#include <bit>
#include <cmath>
#include <cstring>

#include "model/float_bits.h"
#include "model/import/ternary_survey.h"
#include "model/layout.h"
#include "tests/model/test_model.h"

using namespace edgellm;
using namespace edgellm::test;
using model_io::ScaleShape;
using model_io::TernarySurvey;

namespace {

constexpr int64_t kDim = 132;  // a whole group and four columns
constexpr int64_t kFfn = 140;

// Which magnitudes a matrix has.
enum class Kind { kWhole, kRows, kGroups };

float magnitude(Kind kind, int64_t row, int64_t group, uint32_t seed) {
  if (kind == Kind::kWhole) return 0.5f + static_cast<float>(seed % 7) / 16;
  if (kind == Kind::kRows) return 0.25f * static_cast<float>(1 + (row + seed) % 5);
  return static_cast<float>(1 + (3 * row + 5 * group + seed) % 11) / 64;
}

std::vector<float> ternary_values(Kind kind, int64_t rows, int64_t cols, uint32_t seed) {
  const std::vector<float> noise = random_floats(static_cast<size_t>(rows * cols), seed);
  std::vector<float> values;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < cols; ++c) {
      const float n = noise[static_cast<size_t>(r * cols + c)];
      const float of = magnitude(kind, r, c / model_io::kScaleGroup, seed);
      values.push_back(n > 0.4f ? of : n < -0.4f ? -of : 0.0f);
    }
  }
  return values;
}

HfFolder tiny_qwen3(Kind kind, bool tied) {
  HfFolder hf;
  uint32_t seed = 1;
  const auto matrix = [&](const std::string& name, int64_t rows, int64_t cols) {
    hf.tensors[name + ".weight"] =
        bf16_tensor({rows, cols}, ternary_values(kind, rows, cols, seed));
    ++seed;
  };
  const auto norm = [&](const std::string& name, int64_t n) {
    hf.tensors[name + ".weight"] = bf16_tensor({n}, random_floats(static_cast<size_t>(n), ++seed));
  };
  matrix("model.embed_tokens", 11, kDim);
  if (!tied) matrix("lm_head", 11, kDim);
  norm("model.norm", kDim);
  const std::string layer = "model.layers.0.";
  norm(layer + "input_layernorm", kDim);
  norm(layer + "post_attention_layernorm", kDim);
  norm(layer + "self_attn.q_norm", 8);
  norm(layer + "self_attn.k_norm", 8);
  matrix(layer + "self_attn.q_proj", 16, kDim);
  matrix(layer + "self_attn.k_proj", 8, kDim);
  matrix(layer + "self_attn.v_proj", 8, kDim);
  matrix(layer + "self_attn.o_proj", kDim, 16);
  matrix(layer + "mlp.gate_proj", kFfn, kDim);
  matrix(layer + "mlp.up_proj", kFfn, kDim);
  matrix(layer + "mlp.down_proj", kDim, kFfn);
  hf.config = {{"architectures", {"Qwen3ForCausalLM"}},
               {"model_type", "qwen3"},
               {"hidden_act", "silu"},
               {"hidden_size", kDim},
               {"intermediate_size", kFfn},
               {"num_hidden_layers", 1},
               {"num_attention_heads", 2},
               {"num_key_value_heads", 1},
               {"head_dim", 8},
               {"vocab_size", 11},
               {"max_position_embeddings", 64},
               {"rms_norm_eps", 1e-6},
               {"rope_theta", 10000.0},
               {"tie_word_embeddings", tied},
               {"eos_token_id", 2}};
  return hf;
}

// What the file makes of a matrix.
std::vector<float> values_of(const TernaryTensor& tensor) {
  const std::vector<int> codes = codes_of(tensor);
  std::vector<float> values;
  for (int r = 0; r < tensor.rows; ++r) {
    for (int c = 0; c < tensor.cols; ++c) {
      const size_t at =
          static_cast<size_t>(r) * static_cast<size_t>(tensor.cols) + static_cast<size_t>(c);
      float scale = 0;
      if (tensor.group_scale == nullptr) {
        scale = tensor.scale[tensor.scale.size() == 1 ? 0 : static_cast<size_t>(r)];
      } else {
        REQUIRE(tensor.group_scale_dtype == DType::kF16);
        const auto group =
            static_cast<size_t>(r) * static_cast<size_t>(model_io::group_count(tensor.cols)) +
            static_cast<size_t>(c / model_io::kScaleGroup);
        uint16_t half = 0;
        std::memcpy(&half, tensor.group_scale + 2 * group, 2);
        scale = model_io::f16_to_float(half);
      }
      values.push_back(static_cast<float>(codes[at]) * scale + 0.0f);
    }
  }
  return values;
}

TEST_CASE("float weights that are ternary keep every value, whatever shares a scale") {
  for (const Kind kind : {Kind::kWhole, Kind::kRows, Kind::kGroups}) {
    for (const bool tied : {false, true}) {
      const HfFolder hf = tiny_qwen3(kind, tied);
      const TempDir temp;
      const ModelFile model = convert(hf, temp);
      CHECK(model.config().activation_quant == ActivationQuant::kInt16Group);
      CHECK(model.config().qk_norm);
      CHECK(model.config().tied_head == tied);
      const Weights& weights = model.weights();
      const LayerWeights& layer = weights.layers.at(0);
      const auto check = [&](const TernaryTensor& tensor, const std::string& name) {
        INFO(name);
        REQUIRE(tensor.codes != nullptr);
        CHECK((tensor.group_scale != nullptr) == (kind == Kind::kGroups && tensor.cols > 128));
        CHECK(values_of(tensor) == values_of(hf.tensors.at(name + ".weight")));
      };
      check(weights.ternary_embedding, "model.embed_tokens");
      check(weights.ternary_head, tied ? "model.embed_tokens" : "lm_head");
      check(layer.q, "model.layers.0.self_attn.q_proj");
      check(layer.o, "model.layers.0.self_attn.o_proj");
      check(layer.down, "model.layers.0.mlp.down_proj");
      CHECK(weights.embedding.data == nullptr);
      CHECK(weights.embedding.rows == 11);
      CHECK(layer.q_norm.size() == 8);
      CHECK(layer.q_norm[3] ==
            values_of(hf.tensors.at("model.layers.0.self_attn.q_norm.weight"))[3]);
    }
  }
}

TEST_CASE("an embedding that is not ternary stays as it is, a matrix is refused") {
  HfFolder hf = tiny_qwen3(Kind::kGroups, false);
  hf.tensors["model.embed_tokens.weight"] = bf16_tensor({11, kDim}, random_floats(11 * kDim, 5));
  {
    const TempDir temp;
    const ModelFile model = convert(hf, temp);
    CHECK(model.weights().embedding.dtype == DType::kBF16);
    CHECK(model.weights().ternary_embedding.codes == nullptr);
    CHECK(model.weights().head.data == nullptr);
  }
  std::vector<float> values = ternary_values(Kind::kGroups, kFfn, kDim, 3);
  values[static_cast<size_t>(2 * kDim + 130)] = 40;
  values[static_cast<size_t>(2 * kDim + 131)] = 41;
  hf.tensors["model.layers.0.mlp.up_proj.weight"] = bf16_tensor({kFfn, kDim}, values);
  expect_refused(hf, ExitCode::kUnsupported,
                 {"mlp.up_proj", "row 2", "columns 128 to 131", "ternary models only"});
}

TEST_CASE("a survey finds the fewest scales, in the dtype that holds them") {
  const auto survey = [](const std::vector<std::vector<float>>& rows) {
    TernarySurvey found(static_cast<int64_t>(rows.at(0).size()));
    for (const auto& row : rows) CHECK(found.add_row(row.data()) == "");
    return found;
  };
  std::vector<float> first(200, 0.0f);
  std::vector<float> second(200, 0.0f);
  CHECK(survey({first, second}).scales() == std::vector<float>{0});
  first[3] = -2;
  second[190] = 2;
  CHECK(survey({first, second}).plan().shape == ScaleShape::kOne);
  CHECK(survey({first, second}).scales() == std::vector<float>{2});
  second[190] = 3;
  CHECK(survey({first, second}).plan().shape == ScaleShape::kRows);
  CHECK(survey({first, second}).scales() == std::vector<float>{2, 3});
  second[0] = 0.125f;
  CHECK(survey({first, second}).plan().shape == ScaleShape::kGroups);
  CHECK(survey({first, second}).plan().dtype == DType::kF16);
  CHECK(survey({first, second}).scales() == std::vector<float>{2, 0, 0.125f, 3});
  second[0] = 0.1f;  // no f16
  CHECK(survey({first, second}).plan().dtype == DType::kF32);
  second[0] = 1e6f;  // above the largest
  CHECK(survey({first, second}).plan().dtype == DType::kF32);
  second[0] = 0x1p-24f;  // the smallest
  CHECK(survey({first, second}).plan().dtype == DType::kF16);
  second[1] = 5;
  TernarySurvey refuses(200);
  CHECK(refuses.add_row(first.data()) == "");
  CHECK(refuses.add_row(second.data()).find("row 1 holds") == 0);
}

TEST_CASE("a ternary embedding beside int8 activations is refused") {
  const TempDir temp;
  tiny_qwen3(Kind::kWhole, true).write(temp.path() / "hf");
  convert_hf(temp / "hf", temp / "out.tmac2", {});
  write_file(temp / "bad.tmac2", with_metadata(read_file(temp / "out.tmac2"), [](Json& m) {
               m["architecture"]["activation_quant"] = "int8_row";
             }));
  expect_error(ExitCode::kUnsupported, {"'embedding' is ternary", "int16_group"},
               [&] { ModelFile::open(temp / "bad.tmac2"); });
}

TEST_CASE("a file with group scales that lacks some is refused") {
  const TempDir temp;
  const HfFolder hf = tiny_qwen3(Kind::kGroups, true);
  hf.write(temp.path() / "hf");
  convert_hf(temp / "hf", temp / "out.tmac2", {});
  const std::string good = read_file(temp / "out.tmac2");
  const auto refused = [&](const std::string& bytes, const std::string& text) {
    write_file(temp / "bad.tmac2", bytes);
    expect_error(ExitCode::kModelFile, {text}, [&] { ModelFile::open(temp / "bad.tmac2"); });
  };
  refused(with_metadata(good, [](Json& m) { section_of(m, "layers.0.q").erase("group"); }),
          "layers.0.q.scale");
  refused(with_metadata(good, [](Json& m) { section_of(m, "embedding.scale")["name"] = "other"; }),
          "embedding.scale' is missing");
  refused(with_metadata(good,
                        [](Json& m) {
                          Json& scale = section_of(m, "layers.0.down.scale");
                          scale["shape"] = {scale["shape"][1], scale["shape"][0]};
                        }),
          "layers.0.down.scale");
}

}  // namespace
