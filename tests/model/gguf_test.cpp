// GGUF files, written by tests/support/gguf_writer.h and by the `gguf` package: everything in them
// arrives as from the Hugging Face folder of the same model.
#include <zlib.h>

#include <catch2/catch.hpp>
#include <random>

#include "model/import/gguf/types.h"
#include "tests/model/gguf_models.h"
#include "tests/model/test_model.h"
#include "tests/support/gguf_writer.h"

using namespace edgellm;
using namespace edgellm::test;
using model_io::gguf::Type;
using model_io::gguf::types_of;

namespace {

constexpr ExitCode kUnsupported = ExitCode::kUnsupported;

Json data_file(const std::string& name) {
  return Json::parse(read_file(EDGELLM_SOURCE_DIR "/tests/data/gguf/" + name));
}

template <typename T>
std::vector<T> from_hex(const std::string& hex) {
  std::vector<T> values(hex.size() / 2 / sizeof(T));
  auto* bytes = reinterpret_cast<uint8_t*>(values.data());
  for (size_t i = 0; i < hex.size() / 2; ++i) {
    bytes[i] = static_cast<uint8_t>(std::stoul(hex.substr(2 * i, 2), nullptr, 16));
  }
  return values;
}

std::string unzipped(const std::string& name) {
  const gzFile file = gzopen((EDGELLM_SOURCE_DIR "/tests/data/gguf/" + name).c_str(), "rb");
  REQUIRE(file != nullptr);
  std::string bytes(8 << 20, '\0');
  const int n = gzread(file, bytes.data(), static_cast<unsigned>(bytes.size()));
  REQUIRE(n > 0);
  REQUIRE(gzclose(file) == Z_OK);
  bytes.resize(static_cast<size_t>(n));
  return bytes;
}

}  // namespace

TEST_CASE("GGUF: values of each type are those of the gguf package") {
  const Json cases = data_file("types.json");
  REQUIRE(cases.size() == 8);
  for (const Json& item : cases) {
    INFO(item["type"]);
    const std::vector<Type> types = types_of(item["number"].get<uint32_t>());
    REQUIRE(types.size() == 1);
    const auto bytes = from_hex<uint8_t>(item["bytes"]);
    const auto expected = from_hex<float>(item["values"]);
    std::vector<float> found(expected.size());
    if (model_io::gguf::is_ternary(types[0])) {
      const auto cols = static_cast<int64_t>(expected.size());
      const auto rows = model_io::gguf::unpack(types[0], bytes.data(), 1, cols, 0);
      for (size_t i = 0; i < found.size(); ++i) {
        found[i] = rows.scales[i / 256] * static_cast<float>(rows.codes[i]);
      }
    } else {
      model_io::gguf::dequantise(types[0], bytes.data(), found.size(), found.data());
    }
    CHECK(found == expected);
  }
}

TEST_CASE("GGUF: a file of the gguf package arrives") {
  const TempDir temp;
  write_file(temp / "in.gguf", unzipped("package.gguf.gz"));
  convert_gguf(temp / "in.gguf", temp / "out.tmac2", {}, {});
  const ModelFile file = ModelFile::open(temp / "out.tmac2");
  file.verify_contents();
  CHECK(file.config().kv_heads == 1);
  CHECK(file.config().rope_theta == 500000.0);
  CHECK(file.config().norm_eps == 1e-5f);
  CHECK(file.provenance().licence == "mit");
  const OlderModel model = older_model(file);
  CHECK(model.embedding.values[70] == -26.0f / 16);
  const OlderLayer& layer = model.layers.at(0);
  CHECK(layer.ffn_sub_norm == std::vector<float>(256, 1.5f));
  int index = 0;
  for (const OlderMatrix* matrix :
       {&layer.q, &layer.k, &layer.v, &layer.o, &layer.gate, &layer.up, &layer.down}) {
    INFO("matrix " << index);
    CHECK(matrix->scales ==
          std::vector<float>(matrix->scales.size(), static_cast<float>(index + 1) / 64));
    std::vector<int> expected;
    for (int row = 0; row < matrix->rows; ++row) {
      for (int col = 0; col < matrix->cols; ++col) {
        const auto mixed = static_cast<uint32_t>(row * 31 + col * 17 + index * 7) * 2654435761u;
        const uint32_t kind = (mixed >> 20) % 16;
        expected.push_back(kind == 0 ? 1 : kind == 1 ? -1 : 0);
      }
    }
    CHECK(matrix->codes == expected);
    ++index;
  }
}

TEST_CASE("GGUF: codes and scales of every ternary type arrive") {
  for (const bool llama : {false, true}) {
    const GgufSource source(llama ? blocks_llama() : blocks_bitnet());
    for (const char* type :
         {"F32", "F16", "BF16", "TQ1_0", "TQ2_0", "I2_S/x86", "I2_S/arm", "I2_S/rows", "Q2_0/64",
          "Q2_0/128", "PQ2_0", "PTQ1_0", "IQ1_BN", "IQ2_BN", "IQ2_BN_R4"}) {
      INFO(type << (llama ? " llama" : " bitnet"));
      const std::string name = type;
      const std::string layout = name.starts_with("I2_S/") ? name.substr(5) : "";
      const GgufWriter file = source.write({llama ? "llama" : "bitnet-b1.58", name, "F32"});
      check_weights(source.convert(file, {"", layout}), source.model);
    }
  }
}

TEST_CASE("GGUF: a scale for each row arrives, with blocks of zeros in them") {
  GgufSource source(blocks_bitnet());
  OlderMatrix& down = source.model.layers[0].down;
  down.scales.clear();
  for (int row = 0; row < down.rows; ++row) {
    down.scales.push_back(static_cast<float>(row % 13 + 1) / 64.0f);
  }
  // A row of zeros has the scale 0; blocks of zeros have that of their row.
  std::fill_n(down.codes.begin() + 3 * down.cols, down.cols, 0);
  down.scales[3] = 0;
  std::fill_n(down.codes.begin() + 5 * down.cols, 256, 0);
  for (const char* type : {"F32", "TQ2_0", "Q2_0/64", "IQ2_BN", "IQ2_BN_R4", "F16"}) {
    INFO(type);
    const GgufWriter file = source.write({"bitnet", type, "F32"});
    check_weights(source.convert(file), source.model);
  }
}

TEST_CASE("GGUF: scales with a sign, and a factor beside them") {
  GgufSource source(blocks_bitnet());
  GgufWriter file = source.write({"bitnet", "TQ2_0", "F32"});
  OlderMatrix& v = source.model.layers[1].v;
  OlderMatrix negative = v;
  for (float& scale : negative.scales) scale = -scale;
  for (int& code : negative.codes) code = -code;
  file.tensor("blk.1.attn_v.weight") = gguf_matrix("blk.1.attn_v.weight", negative, "TQ2_0");
  file.add({"blk.0.attn_k.scale", 0, {1}, raw_bytes(0.25f)});
  for (float& scale : source.model.layers[0].k.scales) scale *= 0.25f;
  check_weights(source.convert(file), source.model);

  file.tensor("blk.0.attn_k.scale").bytes = raw_bytes(-1.0f);
  source.refused(file, ExitCode::kModelFile, {"blk.0.attn_k.scale", "above 0"});
}

TEST_CASE("GGUF: scales of blocks are refused beside int8 activations") {
  GgufSource source(blocks_bitnet());
  OlderMatrix& down = source.model.layers[1].down;
  GgufWriter file = source.write({"bitnet", "TQ2_0", "F32"});
  OlderMatrix doubled = down;
  for (float& scale : doubled.scales) scale *= 2;
  const std::string one = matrix_bytes(down, "TQ2_0");
  std::string mixed = matrix_bytes(doubled, "TQ2_0");
  mixed.replace(0, 66, one.substr(0, 66));  // the first block of the first row
  file.tensor("blk.1.ffn_down.weight").bytes = mixed;
  source.refused(file, kUnsupported, {"blk.1.ffn_down.weight", "a scale for every 256 inputs"});
}

// A qwen3 of the shape that a LLaMA has: with norms of the heads of q and k.
GgufWriter qwen3_file(const GgufSource& source, const char* type) {
  GgufWriter file = gguf_model(source.model, source.config, {"qwen3", type, "F32"});
  for (int layer = 0; layer < 2; ++layer) {
    for (const char* name : {"attn_q_norm", "attn_k_norm"}) {
      file.add({.name = "blk." + std::to_string(layer) + "." + name + ".weight",
                .type = 0,
                .shape = {64},
                .bytes = float_bytes(std::vector<float>(64, 1.5f), "F32")});
    }
  }
  return file;
}

TEST_CASE("GGUF: qwen3 has float activations, norms of heads and scales of groups") {
  GgufSource source(blocks_llama());
  const OlderMatrix& down = source.model.layers[1].down;
  OlderMatrix doubled = down;
  for (float& scale : doubled.scales) scale *= 2;
  for (const char* type : {"TQ2_0", "Q2_0/128", "Q2_0/64"}) {
    INFO(type);
    GgufWriter file = qwen3_file(source, type);
    // The first 256 columns of the first row with another scale.
    const size_t bytes = std::string(type) == "TQ2_0"      ? 66
                         : std::string(type) == "Q2_0/128" ? 2 * 34
                                                           : 4 * 18;
    std::string mixed = matrix_bytes(doubled, type);
    mixed.replace(0, bytes, matrix_bytes(down, type).substr(0, bytes));
    file.tensor("blk.1.ffn_down.weight").bytes = mixed;
    const ModelFile model = source.convert(file);
    CHECK(model.config().activation_quant == ActivationQuant::kInt16Group);
    CHECK(model.config().qk_norm);
    CHECK(model.weights().layers[1].k_norm[63] == 1.5f);
    const TernaryTensor& found = model.weights().layers[1].down;
    REQUIRE(found.group_scale != nullptr);
    REQUIRE(found.group_scale_dtype == DType::kF16);
    std::vector<float> scales;
    for (size_t i = 0; i < 4 * static_cast<size_t>(found.rows); ++i) {
      uint16_t half = 0;
      std::memcpy(&half, found.group_scale + 2 * i, 2);
      scales.push_back(model_io::f16_to_float(half));
    }
    const float scale = down.scales[0];
    std::vector<float> expected(scales.size(), 2 * scale);
    expected[0] = expected[1] = scale;
    CHECK(scales == expected);
    CHECK(model.weights().layers[0].q.scale.size() == 1);
  }
  // Blocks of 64 in one group of 128 must agree.
  GgufWriter file = qwen3_file(source, "Q2_0/64");
  std::string mixed = matrix_bytes(doubled, "Q2_0/64");
  mixed.replace(0, 18, matrix_bytes(down, "Q2_0/64").substr(0, 18));
  file.tensor("blk.1.ffn_down.weight").bytes = mixed;
  source.refused(file, kUnsupported, {"blk.1.ffn_down.weight", "row 0", "columns 0 to 127"});
  GgufWriter without = qwen3_file(source, "TQ2_0");
  without.erase_tensor("blk.1.attn_k_norm.weight");
  source.refused(without, ExitCode::kModelFile, {"blk.1.attn_k_norm.weight", "missing"});
}

TEST_CASE("GGUF: yarn") {
  const GgufSource source(blocks_llama());
  GgufWriter file = qwen3_file(source, "TQ2_0");
  file.set("qwen3.rope.scaling.type", "yarn");
  file.set("qwen3.rope.scaling.factor", 4.0f);
  file.set("qwen3.rope.scaling.original_context_length", 16u);
  const ModelFile model = source.convert(file);
  REQUIRE(model.config().yarn_scaling);
  CHECK(model.config().yarn_scaling->original_max_position == 16);
  CHECK(model.config().rope_attention_factor() == 1.1386294f);
}

TEST_CASE("GGUF: embeddings and heads are kept in the better 16-bit type") {
  GgufSource source(blocks_bitnet());
  const auto note_of = [&](const GgufWriter& file) {
    write_file(source.temp / "in.gguf", file.bytes());
    const ConvertedModel made =
        convert_gguf(source.temp / "in.gguf", source.temp / "out.tmac2", {}, {});
    for (const std::string& note : made.notes) {
      if (note.starts_with("token_embd")) return note;
    }
    return std::string();
  };
  const auto values = [&] {
    return older_model(ModelFile::open(source.temp / "out.tmac2")).embedding.values;
  };
  const std::vector<float>& original = source.model.embedding.values;

  GgufWriter file = source.write({"bitnet", "F16", "F32"});
  CHECK(note_of(file) == "token_embd.weight (F32) is kept as bf16, exactly");
  CHECK(values() == original);
  // Values that f16 holds and bf16 does not; then such that neither does.
  std::vector<float> halves = original;
  for (float& value : halves) value = from_half(to_half(value * 1.001f));
  file.tensor("token_embd.weight").bytes = float_bytes(halves, "F32");
  CHECK(note_of(file) == "token_embd.weight (F32) is kept as f16, exactly");
  CHECK(values() == halves);
  halves[0] = 1.0f / 3;
  file.tensor("token_embd.weight").bytes = float_bytes(halves, "F32");
  CHECK(note_of(file) == "token_embd.weight (F32) is kept as f32, exactly");
  CHECK(values() == halves);

  // Q8_0 of ordinary size is nearer to f16; small multiples of a power of two both hold.
  for (const float scale : {0.01f, 0.25f}) {
    std::string bytes;
    std::vector<float> expected;
    std::mt19937 random(5);
    for (size_t i = 0; i < original.size(); i += 32) {
      const uint16_t d = to_half(scale);
      bytes += raw_bytes(d);
      for (int k = 0; k < 32; ++k) {
        const auto code = static_cast<int8_t>(random() % 255 - 127);
        bytes += raw_bytes(code);
        const float value = from_half(d) * static_cast<float>(code);
        expected.push_back(from_half(to_half(value)));
      }
    }
    file.tensor("token_embd.weight").bytes = bytes;
    file.tensor("token_embd.weight").type = 8;
    CHECK(note_of(file) ==
          std::string("token_embd.weight (Q8_0) is kept as ") +
              (scale == 0.01f ? "f16, the nearer of f16 and bf16" : "bf16, exactly"));
    CHECK(values() == expected);
  }
}

TEST_CASE("GGUF: a ternary embedding is kept as numbers, a quantised norm as float32") {
  GgufSource source(blocks_bitnet());
  GgufWriter file = source.write({"bitnet", "TQ2_0", "F32"});
  OlderTable table =
      ternary_table(source.model.embedding.values, source.config.vocab, source.config.dim);
  file.tensor("token_embd.weight") = gguf_matrix("token_embd.weight", table.matrix, "TQ2_0");
  source.model.embedding.values = decoded(table);
  // A norm of Q8_0: 32 codes with a scale of 1/64.
  std::string bytes;
  std::vector<float>& norm = source.model.layers[0].ffn_norm;
  for (size_t i = 0; i < norm.size(); ++i) {
    if (i % 32 == 0) bytes += raw_bytes(to_half(1.0f / 64));
    bytes += raw_bytes(static_cast<int8_t>(i % 100 + 1));
    norm[i] = static_cast<float>(i % 100 + 1) / 64;
  }
  file.tensor("blk.0.ffn_norm.weight").type = 8;
  file.tensor("blk.0.ffn_norm.weight").bytes = bytes;
  check_weights(source.convert(file), source.model);
}

TEST_CASE("GGUF: the layout of I2_S shows in trained weights, and not in random ones") {
  const TempDir temp;
  const ModelFile trained = ModelFile::open(EDGELLM_SOURCE_DIR "/model/demo/storyteller.tmac2");
  const OlderModel model = older_model(trained);
  for (const char* layout : {"x86", "arm", "rows"}) {
    INFO(layout);
    const GgufWriter file =
        gguf_model(model, trained.config(), {"bitnet-b1.58", std::string("I2_S/") + layout, "F32"});
    write_file(temp / "in.gguf", file.bytes());
    const ConvertedModel made = convert_gguf(temp / "in.gguf", temp / "out.tmac2", {}, {});
    CHECK(std::find(made.notes.begin(), made.notes.end(),
                    std::string("I2_S has the layout ") + layout + ", as the weights show") !=
          made.notes.end());
    check_weights(ModelFile::open(temp / "out.tmac2"), model);
  }
  const GgufSource random(blocks_bitnet());
  const GgufWriter file = random.write({"bitnet", "I2_S/x86", "F32"});
  random.refused(file, kUnsupported, {"blk.0.", "I2_S", "--i2s-layout x86"});
  expect_error(ExitCode::kUsage, {"--i2s-layout amd", "x86, arm or rows"}, [&] {
    random.convert(file, {"", "amd"});
  });
}

TEST_CASE("GGUF: LLaMA-3's frequency factors divide the frequencies") {
  const GgufSource source(blocks_llama());
  GgufWriter file = source.write({"llama", "TQ2_0", "F32"});
  std::vector<float> factors;
  for (int i = 0; i < source.config.head_dim / 2; ++i)
    factors.push_back(1.0f + 0.25f * static_cast<float>(i));
  file.add({"rope_freqs.weight", 0, {factors.size()}, float_bytes(factors, "F32")});
  const ModelFile with = source.convert(file);
  file.erase_tensor("rope_freqs.weight");
  GgufSource other(blocks_llama());
  const ModelFile without = other.convert(file);
  const auto scaled = with.weights().inv_freq;
  const auto plain = without.weights().inv_freq;
  REQUIRE(scaled.size() == factors.size());
  for (size_t i = 0; i < factors.size(); ++i) CHECK(scaled[i] == plain[i] / factors[i]);

  file.add({"rope_freqs.weight", 0, {factors.size()}, std::string(4 * factors.size(), '\0')});
  source.refused(file, ExitCode::kModelFile, {"rope_freqs.weight", "above 0"});
}

TEST_CASE("GGUF: the activation follows from the architecture's name and shape") {
  GgufSource source(blocks_bitnet());
  const auto act_of = [&](const std::string& arch, float theta, bool grouped) {
    GgufSource shaped(grouped ? blocks_bitnet() : blocks_ungrouped());
    GgufWriter file = shaped.write({arch, "F16", "F32"});
    file.set(arch + ".rope.freq_base", theta);
    return shaped.convert(file).config().act;
  };
  CHECK(act_of("bitnet", 10000.0f, false) == Activation::kSilu);
  CHECK(act_of("bitnet", 10000.0f, true) == Activation::kRelu2);
  CHECK(act_of("bitnet", 500000.0f, false) == Activation::kRelu2);
  CHECK(act_of("bitnet-b1.58", 10000.0f, false) == Activation::kRelu2);
  CHECK(act_of("bitnet-25", 500000.0f, true) == Activation::kRelu2);
}

TEST_CASE("GGUF: a split file is read from its parts") {
  const GgufSource source(blocks_bitnet());
  const GgufWriter whole = source.write({"bitnet", "TQ2_0", "F32"});
  const std::string base = source.temp / "model-0000";
  const auto write_parts = [&](uint16_t number_of_second) {
    for (uint16_t part = 0; part < 3; ++part) {
      GgufWriter file;
      if (part == 0) file = whole;
      file.tensors.clear();
      for (size_t i = part; i < whole.tensors.size(); i += 3) file.add(whole.tensors[i]);
      file.set("split.no", part == 1 ? number_of_second : part);
      file.set("split.count", uint16_t{3});
      file.set("split.tensors.count", static_cast<int>(whole.tensors.size()));
      write_file(base + std::to_string(part + 1) + "-of-00003.gguf", file.bytes());
    }
  };
  const std::string out = source.temp / "out.tmac2";
  write_parts(1);
  convert_gguf(base + "1-of-00003.gguf", out, {}, {});
  check_weights(ModelFile::open(out), source.model);
  CHECK(ModelFile::open(out).provenance().source_files_json.find("model-00003-of") !=
        std::string::npos);

  const auto refused = [&](const std::string& path, const std::vector<std::string>& texts) {
    expect_error(ExitCode::kModelFile, texts, [&] { convert_gguf(path, out, {}, {}); });
  };
  write_parts(2);
  refused(base + "1-of-00003.gguf", {"00002-of-00003", "part 3", "part 2 of 3"});
  std::filesystem::rename(base + "1-of-00003.gguf", source.temp / "first.gguf");
  refused(source.temp / "first.gguf", {"3 parts", "-00001-of-00003.gguf"});
  std::filesystem::rename(source.temp / "first.gguf", base + "1-of-00003.gguf");
  std::filesystem::remove(base + "2-of-00003.gguf");
  refused(base + "1-of-00003.gguf", {"model-00002-of-00003.gguf"});
}
