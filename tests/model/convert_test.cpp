// Conversion of small checkpoints made here: what arrives in the file, and what is refused.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <limits>

#include "model/float_bits.h"
#include "tests/model/test_model.h"

using namespace edgellm;
using namespace edgellm::test;

namespace {

constexpr ExitCode kModelFile = ExitCode::kModelFile;
constexpr ExitCode kUnsupported = ExitCode::kUnsupported;

// -1, 0, +1 of packed rows, by the definition in docs/format.md.
std::vector<int> unpack(const Tensor& tensor) {
  const int64_t quarter = tensor.shape[0];
  const int64_t cols = tensor.shape[1];
  std::vector<int> values(static_cast<size_t>(4 * quarter * cols));
  for (int64_t r = 0; r < 4 * quarter; ++r) {
    for (int64_t c = 0; c < cols; ++c) {
      const auto byte =
          static_cast<uint8_t>(tensor.bytes[static_cast<size_t>((r % quarter) * cols + c)]);
      values[static_cast<size_t>(r * cols + c)] = ((byte >> (2 * (r / quarter))) & 3) - 1;
    }
  }
  return values;
}

std::vector<float> to_vector(std::span<const float> span) { return {span.begin(), span.end()}; }

const std::string kQ = "model.layers.0.self_attn.q_proj";
const std::string kDown = "model.layers.1.mlp.down_proj";

// Float masters in the place of a packed matrix.
void set_masters(HfFolder& hf, const std::string& name, const Tensor& tensor) {
  hf.tensors[name + ".weight"] = tensor;
  hf.tensors.erase(name + ".weight_scale");
}

// All matrices as masters that are their codes times their scale.
HfFolder with_all_masters(HfFolder hf) {
  for (const auto& [name, tensor] : Tensors(hf.tensors)) {
    if (tensor.dtype != "U8") continue;
    const std::string base = name.substr(0, name.size() - 7);
    std::vector<float> values;
    for (const int code : unpack(tensor)) values.push_back(static_cast<float>(code) * 0.75f);
    set_masters(hf, base, bf16_tensor({4 * tensor.shape[0], tensor.shape[1]}, values));
  }
  hf.config["quantization_config"]["quantization_mode"] = "online";
  return hf;
}

}  // namespace

TEST_CASE("convert: a packed model arrives whole") {
  const TempDir temp;
  const HfFolder hf = tiny_bitnet();
  const ModelFile file = convert(hf, temp);
  const Weights& weights = file.weights();
  CHECK(file.config().architecture == "BitNetForCausalLM");
  CHECK(file.config().act == Activation::kRelu2);
  CHECK(file.config().q_dim() == 16);
  CHECK(file.config().norm_eps == 1e-5f);
  CHECK(file.provenance().source == "hf");
  CHECK_FALSE(file.provenance().random);
  REQUIRE(weights.layers.size() == 2);
  CHECK(weights.head.data == weights.embedding.data);
  const Tensor& embedding = hf.tensors.at("model.embed_tokens.weight");
  CHECK(std::memcmp(weights.embedding.data, embedding.bytes.data(), embedding.bytes.size()) == 0);
  CHECK(to_vector(weights.final_norm) == values_of(hf.tensors.at("model.norm.weight")));
  uint64_t n_parameters = 11 * 12 + 12;
  for (size_t i = 0; i < 2; ++i) {
    const std::string prefix = "model.layers." + std::to_string(i) + ".";
    const LayerWeights& layer = weights.layers[i];
    const auto same_norm = [&](std::span<const float> norm, const std::string& name) {
      CHECK(to_vector(norm) == values_of(hf.tensors.at(prefix + name + ".weight")));
      n_parameters += norm.size();
    };
    const auto same_matrix = [&](const TernaryTensor& matrix, const std::string& name) {
      CHECK(codes_of(matrix) == unpack(hf.tensors.at(prefix + name + ".weight")));
      CHECK(to_vector(matrix.scale) ==
            values_of(hf.tensors.at(prefix + name + ".weight_scale")));  // autobitlinear multiplies
      n_parameters += static_cast<uint64_t>(matrix.rows) * static_cast<uint64_t>(matrix.cols);
    };
    same_norm(layer.attn_norm, "input_layernorm");
    same_norm(layer.ffn_norm, "post_attention_layernorm");
    same_norm(layer.attn_sub_norm, "self_attn.attn_sub_norm");
    same_norm(layer.ffn_sub_norm, "mlp.ffn_sub_norm");
    same_matrix(layer.q, "self_attn.q_proj");
    same_matrix(layer.k, "self_attn.k_proj");
    same_matrix(layer.v, "self_attn.v_proj");
    same_matrix(layer.o, "self_attn.o_proj");
    same_matrix(layer.gate, "mlp.gate_proj");
    same_matrix(layer.up, "mlp.up_proj");
    same_matrix(layer.down, "mlp.down_proj");
  }
  CHECK(file.parameter_count() == n_parameters);
}

TEST_CASE("convert: bitlinear's weight_scale divides, for every spelling of it") {
  for (const Json& linear_class : {Json(nullptr), Json("bitlinear")}) {
    const TempDir temp;
    HfFolder hf = tiny_llama();
    hf.config["quantization_config"]["linear_class"] = linear_class;
    const ModelFile file = convert(hf, temp);
    const float scale = values_of(hf.tensors.at(kQ + ".weight_scale"))[0];
    CHECK(file.weights().layers[0].q.scale[0] == 1.0f / scale);
    CHECK(file.weights().layers[0].attn_sub_norm.empty());
    const Tensor& head = hf.tensors.at("lm_head.weight");
    CHECK(std::memcmp(file.weights().head.data, head.bytes.data(), head.bytes.size()) == 0);
  }
}

TEST_CASE("convert: 1bitLLM's names, masters and config keys") {
  HfFolder hf = with_all_masters(tiny_bitnet());
  hf.config["architectures"] = {"BitnetForCausalLM"};
  hf.config["hidden_act"] = "silu";
  hf.config["weight_bits"] = 1;
  hf.config["input_bits"] = 8;
  hf.config["rope_scaling"] = nullptr;
  hf.config.erase("quantization_config");
  for (const auto& [name, tensor] : Tensors(hf.tensors)) {
    for (const auto& [from, to] :
         {std::pair<std::string, std::string>{"attn_sub_norm", "inner_attn_ln"},
          {"ffn_sub_norm", "ffn_layernorm"}}) {
      const size_t at = name.find(from);
      if (at == std::string::npos) continue;
      hf.tensors[std::string(name).replace(at, from.size(), to)] = tensor;
      hf.tensors.erase(name);
    }
  }
  const TempDir temp;
  const ModelFile file = convert(hf, temp);
  CHECK(file.config().act == Activation::kSilu);
  CHECK(file.weights().layers[1].attn_sub_norm.size() == 16);
  CHECK(file.weights().layers[1].ffn_sub_norm.size() == 20);
  // One magnitude in the whole matrix: it is the multiplier.
  CHECK(file.weights().layers[0].q.scale[0] == 0.75f);
  CHECK(codes_of(file.weights().layers[0].q) == unpack(tiny_bitnet().tensors.at(kQ + ".weight")));
}

TEST_CASE("convert: masters of every float type are quantised") {
  const std::vector<float> values = random_floats(16 * 12, 21);
  std::vector<float> rounded;
  for (const float value : values) {
    rounded.push_back(model_io::bf16_to_float(model_io::float_to_bf16(value)));
  }
  double sum = 0;
  for (const float value : rounded) sum += std::fabs(static_cast<double>(value));
  const float s = 1.0f / static_cast<float>(sum / static_cast<double>(rounded.size()));
  std::vector<int> expected;
  for (const float value : rounded) {
    expected.push_back(static_cast<int>(std::clamp(std::nearbyint(value * s), -1.0f, 1.0f)));
  }
  for (const Tensor& tensor : {bf16_tensor({16, 12}, values), f32_tensor({16, 12}, rounded)}) {
    const TempDir temp;
    HfFolder hf = with_all_masters(tiny_bitnet());
    set_masters(hf, kQ, tensor);
    const ModelFile file = convert(hf, temp);
    CHECK(codes_of(file.weights().layers[0].q) == expected);
    CHECK(file.weights().layers[0].q.scale[0] == 1.0f / s);
  }
}

TEST_CASE("convert: norms of every float type become float32, tables keep theirs") {
  const TempDir temp;
  HfFolder hf = tiny_bitnet();
  hf.tensors["model.norm.weight"] = f32_tensor({12}, random_floats(12, 1));
  Tensor half = {"F16", {12}, std::string(24, '\0')};
  for (size_t i = 0; i < 12; ++i) half.bytes[2 * i + 1] = static_cast<char>(0x3C + i);
  hf.tensors["model.layers.0.input_layernorm.weight"] = half;
  hf.tensors["model.embed_tokens.weight"] = f32_tensor({11, 12}, random_floats(132, 2));
  const ModelFile file = convert(hf, temp);
  CHECK(to_vector(file.weights().final_norm) == random_floats(12, 1));
  CHECK(file.weights().layers[0].attn_norm[0] == 1.0f);
  CHECK(file.weights().layers[0].attn_norm[4] == 2.0f);
  CHECK(file.weights().embedding.dtype == DType::kF32);
}

TEST_CASE("convert: a tensor that is missing, unknown, or of another kind is named") {
  const auto expect_changed = [](const std::string& name, const auto& change) {
    HfFolder hf = tiny_bitnet();
    change(hf, name);
    expect_refused(hf, kModelFile, {name});
  };
  for (const auto& [name, tensor] : tiny_bitnet().tensors) {
    const auto n_bytes = static_cast<int64_t>(tensor.bytes.size());
    expect_changed(name, [](HfFolder& hf, const std::string& key) { hf.tensors.erase(key); });
    expect_changed(name, [&](HfFolder& hf, const std::string& key) {
      hf.tensors[key].dtype = "I8";
      hf.tensors[key].shape = {n_bytes};
    });
    if (name.ends_with("weight_scale")) continue;  // any shape of one value will do
    expect_changed(
        name, [](HfFolder& hf, const std::string& key) { hf.tensors[key].shape.push_back(1); });
  }
}

TEST_CASE("convert: tensors nobody asked for are refused") {
  HfFolder hf = tiny_bitnet();
  hf.tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = f32_tensor({4}, {1, 2, 3, 4});
  {
    const TempDir temp;
    convert(hf, temp);  // but this one may be there
  }
  for (const char* name :
       {"model.layers.0.self_attn.q_proj.bias", "model.layers.2.input_layernorm.weight",
        "model.layers.0.self_attn.q_norm.weight", "extra"}) {
    HfFolder bad = hf;
    bad.tensors[name] = f32_tensor({4}, {1, 2, 3, 4});
    expect_refused(bad, kUnsupported, {name, "not part of"});
  }
  // A name cannot break the line or reach the terminal.
  HfFolder evil = hf;
  evil.tensors["evil\n\x1b[31m"] = f32_tensor({4}, {1, 2, 3, 4});
  expect_refused(evil, kUnsupported, {"evil\\x0a\\x1b[31m"});
  HfFolder llama = tiny_llama();
  llama.tensors["model.layers.0.self_attn.attn_sub_norm.weight"] =
      f32_tensor({16}, random_floats(16, 1));
  expect_refused(llama, kUnsupported, {"attn_sub_norm"});
  HfFolder both = tiny_bitnet();
  both.tensors["model.layers.1.self_attn.inner_attn_ln.weight"] =
      f32_tensor({16}, random_floats(16, 1));
  expect_refused(both, kModelFile, {"inner_attn_ln", "second name"});
}

TEST_CASE("convert: the gains of input norms, which are 1 where a checkpoint has none") {
  HfFolder hf = tiny_llama();
  hf.config["quantization_config"]["use_rms_norm"] = true;
  {
    const TempDir temp;
    hf.write(temp / "hf");
    const ConvertedModel converted = convert_hf(temp / "hf", temp / "model.tmac2", {});
    REQUIRE(converted.notes.size() == 1);
    CHECK_THAT(converted.notes[0], Catch::Contains("no rms_norm has a weight"));
    const ModelFile file = ModelFile::open(temp / "model.tmac2");
    file.verify_contents();
    const LayerWeights& layer = file.weights().layers[1];
    CHECK(to_vector(layer.input_norms.q) == std::vector<float>(12, 1.0f));
    CHECK(layer.input_norms.down.size() == static_cast<size_t>(file.config().ffn));
  }
  uint32_t seed = 0;
  for (int layer = 0; layer < 2; ++layer) {
    for (const auto& [name, size] :
         std::map<std::string, int64_t>{{"self_attn.q_proj", 12},
                                        {"self_attn.k_proj", 12},
                                        {"self_attn.v_proj", 12},
                                        {"self_attn.o_proj", 16},
                                        {"mlp.gate_proj", 12},
                                        {"mlp.up_proj", 12},
                                        {"mlp.down_proj", hf.config["intermediate_size"]}}) {
      hf.tensors["model.layers." + std::to_string(layer) + "." + name + ".rms_norm.weight"] =
          f32_tensor({size}, random_floats(static_cast<size_t>(size), ++seed));
    }
  }
  const TempDir temp;
  const ModelFile file = convert(hf, temp);
  const auto gain_of = [&](const std::string& name) {
    return values_of(hf.tensors.at("model.layers.1." + name + ".rms_norm.weight"));
  };
  const InputNorms& norms = file.weights().layers[1].input_norms;
  CHECK(to_vector(norms.q) == gain_of("self_attn.q_proj"));
  CHECK(to_vector(norms.k) == gain_of("self_attn.k_proj"));
  CHECK(to_vector(norms.v) == gain_of("self_attn.v_proj"));
  CHECK(to_vector(norms.o) == gain_of("self_attn.o_proj"));
  CHECK(to_vector(norms.gate) == gain_of("mlp.gate_proj"));
  CHECK(to_vector(norms.up) == gain_of("mlp.up_proj"));
  CHECK(to_vector(norms.down) == gain_of("mlp.down_proj"));

  // Some but not all, another size, and a config.json that does not ask for them.
  const std::string name = "model.layers.1.mlp.up_proj.rms_norm.weight";
  HfFolder bad = hf;
  bad.tensors.erase(name);
  expect_refused(bad, kModelFile, {name, "missing"});
  bad.tensors[name] = f32_tensor({13}, random_floats(13, 1));
  expect_refused(bad, kModelFile, {name, "[13]", "[12]"});
  hf.config["quantization_config"]["use_rms_norm"] = false;
  expect_refused(hf, kUnsupported, {"rms_norm.weight", "not part of"});
}

TEST_CASE("convert: a packed matrix must be whole") {
  HfFolder hf = tiny_bitnet();
  // Row 2 + 1 * 4 of 16, column 5: the second pair of bits of byte [2, 5].
  hf.tensors[kQ + ".weight"].bytes[2 * 12 + 5] |= 0xC;
  expect_refused(hf, kModelFile, {kQ, "code 3", "row 6", "column 5"});

  hf = tiny_bitnet();
  hf.tensors[kQ + ".weight_scale"] = f32_tensor({2}, {1, 1});
  expect_refused(hf, kUnsupported, {kQ + ".weight_scale", "[2]", "[1]"});
  for (const float scale : {0.0f, -1.0f, std::numeric_limits<float>::infinity(),
                            std::numeric_limits<float>::quiet_NaN()}) {
    hf.tensors[kQ + ".weight_scale"] = f32_tensor({1}, {scale});
    expect_refused(hf, kModelFile, {kQ + ".weight_scale", "finite number above 0"});
  }
  // One over a subnormal overflows.
  HfFolder llama = tiny_llama();
  llama.tensors[kQ + ".weight_scale"] = f32_tensor({1}, {1e-42f});
  expect_refused(llama, kModelFile, {kQ + ".weight_scale"});
  // A scalar and other float types are as good as [1].
  hf = tiny_bitnet();
  hf.tensors[kQ + ".weight_scale"] = f32_tensor({}, {0.3f});
  hf.tensors[kDown + ".weight_scale"] = {"F16", {1}, std::string("\0\x3C", 2)};
  const TempDir temp;
  const ModelFile file = convert(hf, temp);
  CHECK(file.weights().layers[0].q.scale[0] == 0.3f);
  CHECK(file.weights().layers[1].down.scale[0] == 1.0f);
}

TEST_CASE(
    "convert: autobitlinear's packed weights, loaded and saved again as floats, are the same") {
  HfFolder hf = tiny_bitnet();
  const TempDir temp;
  const ModelFile packed = convert(hf, temp);
  HfFolder saved = hf;
  // transformers takes a file that names no mode as offline.
  if (GENERATE(false, true)) saved.config["quantization_config"].erase("quantization_mode");
  for (auto& [name, tensor] : saved.tensors) {
    if (tensor.dtype != "U8") continue;
    std::vector<float> values;
    for (const int code : unpack(tensor)) values.push_back(static_cast<float>(code));
    tensor = bf16_tensor({tensor.shape[0] * 4, tensor.shape[1]}, values);
  }
  const TempDir other;
  const ModelFile again = convert(saved, other);
  REQUIRE(again.sections().size() == packed.sections().size());
  for (size_t i = 0; i < packed.sections().size(); ++i) {
    INFO(packed.sections()[i].name);
    CHECK(again.sections()[i].name == packed.sections()[i].name);
    CHECK(again.sections()[i].xxh3 == packed.sections()[i].xxh3);
  }
}

TEST_CASE("convert: weights and quantization_config must agree") {
  HfFolder hf = tiny_bitnet();
  set_masters(hf, kQ, bf16_tensor({16, 12}, random_floats(192, 4)));
  expect_refused(hf, kUnsupported, {kQ + ".weight", "offline"});
  hf.tensors[kQ + ".weight_scale"] = f32_tensor({1}, {1});
  expect_refused(hf, kUnsupported, {kQ + ".weight", "offline"});
  hf.config["quantization_config"]["quantization_mode"] = "online";
  expect_refused(hf, kUnsupported, {kQ + ".weight_scale", "autobitlinear"});
  hf = tiny_llama();
  set_masters(hf, kQ, bf16_tensor({16, 12}, random_floats(192, 4)));
  hf.tensors[kQ + ".weight_scale"] = f32_tensor({1}, {1});
  expect_refused(hf, kUnsupported, {kQ + ".weight_scale", "autobitlinear"});
  hf = tiny_bitnet();
  hf.config["quantization_config"]["quantization_mode"] = "online";
  expect_refused(hf, kUnsupported, {"packed", "online"});
  hf = tiny_bitnet();
  hf.config.erase("quantization_config");
  expect_refused(hf, kUnsupported, {"BitNetForCausalLM", "ordinary weights", "\"online\""});
  hf.config["architectures"] = {"BitnetForCausalLM"};
  expect_refused(hf, kUnsupported, {"weight_scale", "multiply or divide"});
}

TEST_CASE("convert: online masters that are ternary already get mean|w|, as in transformers") {
  const TempDir temp;
  const HfFolder hf = with_all_masters(tiny_bitnet());
  const ModelFile file = convert(hf, temp);
  const std::vector<int> codes = unpack(tiny_bitnet().tensors.at(kQ + ".weight"));
  const auto n_not_zero =
      static_cast<double>(codes.size() - std::count(codes.begin(), codes.end(), 0));
  const auto mean = static_cast<float>(0.75 * n_not_zero / static_cast<double>(codes.size()));
  CHECK(codes_of(file.weights().layers[0].q) == codes);
  CHECK(file.weights().layers[0].q.scale[0] == 1.0f / (1.0f / mean));
}

TEST_CASE("convert: values that are not finite are refused with the tensor's name") {
  for (const float bad :
       {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    for (const char* name : {"model.norm.weight", "model.layers.1.mlp.ffn_sub_norm.weight"}) {
      HfFolder hf = tiny_bitnet();
      std::vector<float> values = values_of(hf.tensors[name]);
      values.back() = bad;
      hf.tensors[name] = f32_tensor(hf.tensors[name].shape, values);
      expect_refused(hf, kModelFile, {name, "not finite"});
    }
    HfFolder hf = tiny_bitnet();
    std::vector<float> values = random_floats(132, 1);
    values[131] = bad;
    hf.tensors["model.embed_tokens.weight"] = f32_tensor({11, 12}, values);
    expect_refused(hf, kModelFile, {"embed_tokens", "not finite"});
    hf = with_all_masters(tiny_bitnet());
    values = random_floats(240, 1);
    values[17] = bad;
    set_masters(hf, kDown, f32_tensor({12, 20}, values));
    expect_refused(hf, kModelFile, {kDown, "not finite"});
  }
}

TEST_CASE("convert: tied and untied heads") {
  HfFolder hf = tiny_bitnet();
  hf.tensors["lm_head.weight"] = hf.tensors["model.embed_tokens.weight"];
  {
    const TempDir temp;
    const ModelFile file = convert(hf, temp);
    CHECK(file.config().tied_head);
    CHECK(file.weights().head.data == file.weights().embedding.data);
  }
  hf.tensors["lm_head.weight"].bytes[100] ^= 1;
  expect_refused(hf, kModelFile, {"lm_head.weight", "differs"});
  hf.config["tie_word_embeddings"] = false;
  {
    const TempDir temp;
    CHECK_FALSE(convert(hf, temp).config().tied_head);
  }
  hf.config.erase("tie_word_embeddings");  // false in all of transformers' configurations
  {
    const TempDir temp;
    CHECK_FALSE(convert(hf, temp).config().tied_head);
  }
  hf.tensors.erase("lm_head.weight");
  expect_refused(hf, kModelFile, {"lm_head.weight", "missing", "tie_word_embeddings"});
}

TEST_CASE("convert: an input that is not a model folder") {
  const TempDir temp;
  const auto run = [&](const std::string& name) {
    return [source = temp / name, out = temp / "out.tmac2"] { convert_hf(source, out, {}); };
  };
  expect_error(kModelFile, {"absent", "no such folder"}, run("absent"));
  write_file(temp / "file", "x");
  expect_error(kModelFile, {"is a file"}, run("file"));
  std::filesystem::create_directory(temp.path() / "empty");
  expect_error(kModelFile, {"config.json", "no such file"}, run("empty"));
  HfFolder hf = tiny_bitnet();
  hf.tensors.clear();
  hf.write(temp.path() / "bare");
  expect_error(kModelFile, {"neither model.safetensors"}, run("bare"));
}

TEST_CASE("convert: licence and hashes of the source are kept") {
  const TempDir temp;
  HfFolder hf = tiny_bitnet();
  hf.files["LICENSE"] = "MIT\n\"quoted\" \xFF";
  const ModelFile file = convert(hf, temp);
  CHECK(file.provenance().licence.starts_with("MIT\n\"quoted\" "));
  const Json hashes = Json::parse(file.provenance().source_files_json);
  CHECK(hashes.size() == 2);
  CHECK(hashes["model.safetensors"].get<std::string>().starts_with("xxh3:"));
  CHECK(hashes.contains("config.json"));

  // A text as long as this is cut; the file stays readable.
  const TempDir other;
  hf.files["LICENSE"] = std::string(100000, 'x');
  CHECK(convert(hf, other).provenance().licence.size() == 65536);
}

TEST_CASE("convert: a tokenizer that cannot be used is refused before anything is written") {
  HfFolder hf = tiny_bitnet();
  hf.files["tokenizer.json"] = R"({"model": {"vocab": {"a": 0}}})";
  ConvertOptions options;
  bool writes = false;
  options.progress = [&](std::string_view, uint64_t, uint64_t) { writes = true; };
  options.check_tokenizer = [&](std::string_view json, const std::string& path) {
    CHECK(json == hf.files["tokenizer.json"]);
    CHECK(path.ends_with("/hf/tokenizer.json"));
    throw Error(kUnsupported, path + ": no such tokenizer");
  };
  expect_refused(hf, kUnsupported, {"/hf/tokenizer.json: no such tokenizer"}, options);
  CHECK_FALSE(writes);
  hf.files.clear();
  const TempDir temp;
  CHECK_FALSE(convert(hf, temp, options).tokenizer().present);  // nothing to check
}

TEST_CASE("convert: a SentencePiece tokenizer alone is refused") {
  HfFolder hf = tiny_bitnet();
  hf.files["tokenizer.model"] = "\n\x0e\n\x05<unk>";
  expect_refused(hf, kUnsupported, {"/hf/tokenizer.model", "SentencePiece", "tokenizer.json"});
  hf.files["tokenizer.json"] = R"({"model": {"vocab": {"a": 0}}})";
  const TempDir temp;
  CHECK(convert(hf, temp).tokenizer().present);  // the other one does
}

TEST_CASE("convert: progress ends at the total") {
  const TempDir temp;
  ConvertOptions options;
  uint64_t last_done = 0;
  uint64_t last_total = 1;
  options.progress = [&](std::string_view, uint64_t done, uint64_t total) {
    CHECK(done >= last_done);
    CHECK(done <= total);
    last_done = done;
    last_total = total;
  };
  convert(tiny_bitnet(), temp, options);
  CHECK(last_done == last_total);
}
