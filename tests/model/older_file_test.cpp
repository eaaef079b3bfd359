// Files of earlier programs, written by tests/support/older_writer.h: everything in them arrives,
// and what is damaged or hostile is refused in one line.
#include <catch2/catch.hpp>
#include <limits>
#include <random>

#include "model/import/coded_rows.h"
#include "tests/model/test_model.h"
#include "tests/support/fixtures.h"
#include "tests/support/older_writer.h"

using namespace edgellm;
using namespace edgellm::test;

namespace {

constexpr ExitCode kModelFile = ExitCode::kModelFile;
constexpr ExitCode kUnsupported = ExitCode::kUnsupported;

// A model, what is known of it, and its older files' conversion.
struct Older {
  TempDir temp;
  HfFolder hf;
  ModelFile reference;
  OlderModel model;

  explicit Older(HfFolder folder = tiny_bitnet())
      : hf(std::move(folder)), reference(convert(hf, temp)), model(older_model(reference)) {
    // What their writer does, and what a float16 or float32 holds exactly.
    for (OlderTable* table : {&model.embedding, &model.head}) {
      *table = int8_table(table->values, model.vocab, model.dim);
    }
  }

  std::string config() const { return temp / "hf/config.json"; }
  ModelFile convert_bytes(const std::string& bytes, const OlderFileOptions& options) const {
    write_file(temp / "old.tmac2.bin", bytes);
    convert_older(temp / "old.tmac2.bin", temp / "new.tmac2", options, {});
    ModelFile file = ModelFile::open(temp / "new.tmac2");
    file.verify_contents();
    return file;
  }
  ModelFile convert_bytes(const std::string& bytes) const {
    return convert_bytes(bytes, {.config = config(), .tokenizer = ""});
  }
  void refused(const std::string& bytes, ExitCode code,
               const std::vector<std::string>& texts) const {
    std::filesystem::remove(temp / "new.tmac2");
    expect_error(code, texts, [&] { convert_bytes(bytes); });
    CHECK(!std::filesystem::exists(temp / "new.tmac2"));
  }
  std::string as_tm2(bool negative_vocab = false) const {
    OlderModel copy = model;
    for (OlderTable* table : {&copy.embedding, &copy.head}) {
      *table = ternary_table(decoded(*table), model.vocab, model.dim);
    }
    return tm2_bytes(copy, negative_vocab);
  }
};

void check_matrix(const OlderMatrix& found, const OlderMatrix& expected) {
  CHECK(found.rows == expected.rows);
  CHECK(found.cols == expected.cols);
  CHECK(found.codes == expected.codes);
  CHECK(found.scales == expected.scales);
}

void check_weights(const ModelFile& file, const OlderModel& expected) {
  const OlderModel found = older_model(file);
  CHECK(found.final_norm == expected.final_norm);
  REQUIRE(found.layers.size() == expected.layers.size());
  for (size_t i = 0; i < found.layers.size(); ++i) {
    const OlderLayer& a = found.layers[i];
    const OlderLayer& b = expected.layers[i];
    CHECK(a.attn_norm == b.attn_norm);
    CHECK(a.attn_sub_norm == b.attn_sub_norm);
    CHECK(a.ffn_norm == b.ffn_norm);
    CHECK(a.ffn_sub_norm == b.ffn_sub_norm);
    for (const auto matrix : {&OlderLayer::q, &OlderLayer::k, &OlderLayer::v, &OlderLayer::o,
                              &OlderLayer::gate, &OlderLayer::up, &OlderLayer::down}) {
      check_matrix(a.*matrix, b.*matrix);
    }
  }
  CHECK(found.embedding.values == (expected.embedding.values.empty() ? decoded(expected.embedding)
                                                                     : expected.embedding.values));
}

// Norms that float16 holds.
HfFolder with_half_norms(HfFolder hf) {
  for (auto& [name, tensor] : hf.tensors) {
    if (name.find("norm") == std::string::npos) continue;
    std::vector<float> values = values_of(tensor);
    for (float& value : values) value = from_half(to_half(value));
    tensor = f32_tensor(tensor.shape, values);
  }
  return hf;
}

std::string replaced(std::string bytes, size_t at, const std::string& with) {
  return bytes.replace(at, with.size(), with);
}

template <typename T>
std::string bytes_of(T value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

}  // namespace

TEST_CASE("TM2: ternary tables, codes, scales and norms arrive") {
  const Older older;
  for (const bool negative_vocab : {false, true}) {
    const ModelFile file = older.convert_bytes(older.as_tm2(negative_vocab));
    OlderModel expected = older.model;
    expected.embedding = ternary_table(decoded(expected.embedding), 11, 12);
    check_weights(file, expected);
    CHECK(file.weights().embedding.dtype == DType::kF16);
    CHECK(file.config().tied_head);
    CHECK(file.config().head_dim == 8);
    CHECK(file.config().rope_theta == 10000);
    CHECK(file.tokenizer().stop_ids == std::vector<int32_t>{2});
    CHECK(!file.tokenizer().present);
    // Equal rows are one scale again.
    CHECK(file.weights().layers[0].q.scale.size() == 1);
    CHECK(file.provenance().source == "old.tmac2.bin");
    CHECK(file.provenance().source_files_json.find("old.tmac2.bin") != std::string::npos);
    CHECK(file.provenance().source_files_json.find("config.json") != std::string::npos);
  }
}

TEST_CASE("TM2: float tables arrive as float32") {
  const Older older;
  OlderModel model = older.model;
  model.embedding = {decoded(model.embedding), {}, false};
  model.head = model.embedding;
  const ModelFile file = older.convert_bytes(tm2_bytes(model));
  check_weights(file, model);
  CHECK(file.weights().embedding.dtype == DType::kF32);
}

TEST_CASE("older files: scales that differ stay one for each row") {
  Older older(with_half_norms(tiny_bitnet()));
  OlderLayer& layer = older.model.layers[1];
  for (size_t row = 0; row < layer.up.scales.size(); ++row) {
    layer.up.scales[row] = from_half(to_half(0.01f * static_cast<float>(row)));  // the first is 0
  }
  layer.down.scales.back() = 5.960464477539063e-08f;  // the smallest float16
  OlderModel tables = older.model;
  tables.embedding = tables.head = {decoded(tables.embedding), {}, false};
  for (const std::string& bytes : {tm2_bytes(tables), tmac_bytes(older.model, false)}) {
    const ModelFile file = older.convert_bytes(bytes);
    check_weights(file, older.model);
    CHECK(file.weights().layers[1].up.scale.size() == 20);
    CHECK(file.weights().layers[1].down.scale.size() == 12);
    CHECK(file.weights().layers[0].up.scale.size() == 1);
  }
}

TEST_CASE("TM2: without a config.json it is what the program that wrote it ran") {
  HfFolder hf = tiny_bitnet();
  const Older older(hf);
  OlderModel model = older.model;
  // There head_dim is dim / heads.
  model.heads = 2;
  model.kv_heads = 1;
  const auto resized = [](OlderMatrix& matrix, int rows, int cols) {
    matrix = {rows, cols, std::vector<int>(static_cast<size_t>(rows * cols), 1),
              std::vector<float>(static_cast<size_t>(rows), 0.5f)};
  };
  for (OlderLayer& layer : model.layers) {
    resized(layer.q, 12, 12);
    resized(layer.k, 6, 12);
    resized(layer.v, 6, 12);
    resized(layer.o, 12, 12);
    layer.attn_sub_norm.resize(12);
  }
  model.embedding = ternary_table(decoded(model.embedding), 11, 12);
  model.head = model.embedding;
  ModelFile file = older.convert_bytes(tm2_bytes(model), {});
  check_weights(file, model);
  const ModelConfig& config = file.config();
  CHECK(config.architecture == "BitNetForCausalLM");
  CHECK(config.act == Activation::kRelu2);
  CHECK(config.norm_eps == 1e-5f);
  CHECK(config.rope_theta == 500000);
  CHECK(config.max_context == 64);
  CHECK(config.head_dim == 6);
  CHECK(config.tied_head);
  CHECK(file.tokenizer().stop_ids.empty());

  model.head.matrix.codes[5] = model.head.matrix.codes[5] == 1 ? 0 : 1;
  file = older.convert_bytes(tm2_bytes(model), {});
  CHECK(!file.config().tied_head);
  CHECK(dense_values(file.weights().head) == decoded(model.head));
}

TEST_CASE("TMAC: int8 tables, flat codes and float32 scales arrive") {
  for (const bool llama : {false, true}) {
    Older older(with_half_norms(llama ? tiny_llama() : tiny_bitnet()));
    older.model.layers[0].gate.scales[3] = 0.1f;  // not a float16
    for (const bool packed_shape : {true, false}) {
      const ModelFile file = older.convert_bytes(tmac_bytes(older.model, llama, packed_shape));
      check_weights(file, older.model);
      CHECK(file.config().tied_head == !llama);
      CHECK(file.config().attn_sub_norm == !llama);
      CHECK(file.weights().embedding.dtype == DType::kF32);
      if (llama) CHECK(dense_values(file.weights().head) == decoded(older.model.head));
    }
  }
}

TEST_CASE("TMAC: a config.json of ordinary weights will do, none will not") {
  Older older(with_half_norms(tiny_llama()));
  const std::string bytes = tmac_bytes(older.model, true);
  Json config = older.hf.config;
  config.erase("quantization_config");
  write_file(older.config(), config.dump());
  check_weights(older.convert_bytes(bytes), older.model);
  expect_error(ExitCode::kUsage, {"does not say how its model computes", "--config"},
               [&] { older.convert_bytes(bytes, {}); });
}

TEST_CASE("older files: rows that begin within a byte, columns that fill none") {
  const TempDir temp;
  OlderMatrix matrix{3, 5, {}, {1.0f, 0.5f, 2.0f}};
  for (int i = 0; i < 15; ++i) matrix.codes.push_back((i * i + i / 3) % 3 - 1);
  std::string flat(4, '\0');
  for (int i = 0; i < 15; ++i) {
    flat[static_cast<size_t>(i / 4)] =
        static_cast<char>(flat[static_cast<size_t>(i / 4)] |
                          ((matrix.codes[static_cast<size_t>(i)] + 1) << (2 * (i % 4))));
  }
  std::string scales;
  for (const float scale : matrix.scales) scales += bytes_of(scale);
  write_file(temp / "flat", flat + scales);
  model_io::CheckpointTensor tensor;
  tensor.name = "t";
  tensor.shape = {3, 5};
  tensor.bytes = 4;
  tensor.scales_offset = 4;
  tensor.coding = model_io::RowCoding::kTmacTernary;
  const model_io::Checkpoint checkpoint(InputFile(temp / "flat"), {{"t", tensor}});
  for (const auto& [first, n] : {std::pair{0, 3}, {1, 1}, {1, 2}, {2, 1}}) {
    const model_io::CodedRows rows = model_io::read_coded_rows(checkpoint, tensor, first, n);
    REQUIRE(rows.codes.size() == static_cast<size_t>(n) * 2);
    for (int row = 0; row < n; ++row) {
      CHECK(rows.scales[static_cast<size_t>(row)] ==
            matrix.scales[static_cast<size_t>(first + row)]);
      for (int col = 0; col < 8; ++col) {
        const int code =
            (rows.codes[static_cast<size_t>(row * 2 + col / 4)] >> (2 * (col % 4))) & 3;
        const int expected =
            col < 5 ? matrix.codes[static_cast<size_t>((first + row) * 5 + col)] : 0;
        CHECK((code == 3 ? -1 : code) == expected);
      }
    }
  }
}

TEST_CASE("TM2: bits behind the last column are ignored") {
  const TempDir temp;
  std::string rows;
  for (const float scale : {1.0f, 0.5f}) {
    rows += bytes_of(to_half(scale)) + "\x0D\xFD";  // +1 -1 0 0 +1, then three codes too many
  }
  write_file(temp / "rows", rows);
  model_io::CheckpointTensor tensor;
  tensor.name = "t";
  tensor.shape = {2, 5};
  tensor.bytes = rows.size();
  tensor.coding = model_io::RowCoding::kTm2;
  const model_io::Checkpoint checkpoint(InputFile(temp / "rows"), {{"t", tensor}});
  const model_io::CodedRows read = model_io::read_coded_rows(checkpoint, tensor, 0, 2);
  CHECK(read.codes == std::vector<uint8_t>{0x0D, 0x01, 0x0D, 0x01});
  CHECK(read.scales == std::vector<float>{1.0f, 0.5f});
}

TEST_CASE("older files: a tokenizer and what stands beside it") {
  const Older older;
  const std::string tokenizer = R"({"model": {"type": "BPE", "vocab": {"a": 3}, "merges": []},
    "added_tokens": [{"id": 7, "content": "<end>", "special": true}]})";
  std::filesystem::create_directory(older.temp / "tok");
  write_file(older.temp / "tok/tokenizer.json", tokenizer);
  write_file(older.temp / "tok/tokenizer_config.json",
             R"({"eos_token": "<end>", "chat_template": "hello"})");
  write_file(older.temp / "tok/generation_config.json", R"({"temperature": 0.5})");
  for (const std::string path : {"tok", "tok/tokenizer.json"}) {
    const ModelFile file = older.convert_bytes(
        older.as_tm2(), {.config = older.config(), .tokenizer = older.temp / path});
    CHECK(file.tokenizer().present);
    CHECK(file.tokenizer_json() == tokenizer);
    CHECK(file.tokenizer().stop_ids == std::vector<int32_t>{2, 7});
    CHECK(file.tokenizer().chat_template == "hello");
    CHECK(file.tokenizer().sampling_json == R"({"temperature":0.5})");
    CHECK(file.provenance().source_files_json.find("generation_config") != std::string::npos);
  }
  expect_error(kModelFile, {"nowhere.json", "no such file"}, [&] {
    older.convert_bytes(older.as_tm2(),
                        {.config = older.config(), .tokenizer = older.temp / "nowhere.json"});
  });
  expect_error(kModelFile, {"has no tokenizer.json"}, [&] {
    older.convert_bytes(older.as_tm2(), {.config = older.config(), .tokenizer = older.temp / "hf"});
  });
}

TEST_CASE("TM2: headers that contradict") {
  const Older older;
  const std::string good = older.as_tm2();
  const auto with_size = [&](size_t index, int32_t value) {
    return replaced(good, 4 + 4 * index, bytes_of(value));
  };
  older.refused(with_size(0, 16), kModelFile, {"hidden size = 16", "config.json says 12"});
  older.refused(with_size(1, 24), kModelFile, {"hidden_dim = 24"});
  older.refused(with_size(2, 3), kModelFile, {"layers = 3"});
  older.refused(with_size(3, 4), kModelFile, {"heads = 4"});
  older.refused(with_size(4, 2), kModelFile, {"n_kv_heads = 2"});
  older.refused(with_size(5, 12), kModelFile, {"vocabulary = 12"});
  // Without a config.json the sizes are all there is.
  const auto refused_alone = [&](size_t index, int32_t value) {
    expect_error(value < 1 ? kModelFile : kUnsupported, {"old.tmac2.bin"},
                 [&] { older.convert_bytes(with_size(index, value), {}); });
  };
  for (const size_t index : {0, 1, 2, 3, 4, 6}) {
    for (const int32_t value : {0, -1, std::numeric_limits<int32_t>::min()}) {
      refused_alone(index, value);
    }
  }
  expect_error(kModelFile, {"vocab_size"}, [&] { older.convert_bytes(with_size(5, 0), {}); });
  expect_error(kModelFile, {"vocab_size = 2147483648"},
               [&] { older.convert_bytes(with_size(5, std::numeric_limits<int32_t>::min()), {}); });
  for (const size_t index : {0, 1, 2, 3, 4, 5, 6}) {
    INFO(index);
    write_file(older.temp / "old.tmac2.bin", with_size(index, std::numeric_limits<int32_t>::max()));
    CHECK_THROWS_AS(convert_older(older.temp / "old.tmac2.bin", older.temp / "new.tmac2", {}, {}),
                    Error);
  }
}

TEST_CASE("TM2: a file cut anywhere, or with something added, is refused") {
  const Older older;
  const std::string good = older.as_tm2();
  for (size_t bytes = 4; bytes < good.size(); bytes += bytes < 200 ? 1 : 37) {
    INFO(bytes);
    older.refused(good.substr(0, bytes), kModelFile, {"is cut off or damaged"});
  }
  older.refused(good + "x", kModelFile, {"1 bytes behind its last tensor"});
  older.refused(good.substr(0, 3), kModelFile, {"begins neither with TM2 nor with TMAC"});
}

TEST_CASE("TM2: tensors that are not what their place says") {
  const Older older;
  const std::string good = older.as_tm2();
  const size_t embedding = 32;
  const size_t norm = embedding + 9 + 11 * (2 + 3);  // of the first layer
  const size_t q = norm + 1 + 12 * 4;
  older.refused(replaced(good, embedding, "\x02"), kModelFile,
                {"byte 32, the flag of tensor 'model.embed_tokens.weight', is 2"});
  older.refused(replaced(good, norm, "\x01"), kModelFile,
                {"model.layers.0.input_layernorm.weight', is 1, expected 0", "BitNet's order"});
  older.refused(replaced(good, q + 1, bytes_of(int32_t{8})), kModelFile,
                {"'model.layers.0.self_attn.q_proj.weight' has the shape [8, 12]"});
  older.refused(replaced(good, q + 5, bytes_of(int32_t{-12})), kModelFile, {"[16, -12]"});
  older.refused(replaced(good, q + 9, bytes_of(uint16_t{0x7C00})), kModelFile,
                {"q_proj.weight' has the scale inf", "in row 0"});
  older.refused(replaced(good, q + 9 + 5, bytes_of(uint16_t{0x7E01})), kModelFile,
                {"nan", "row 1"});
  older.refused(replaced(good, q + 9, bytes_of(uint16_t{0xBC00})), kModelFile, {"the scale -1"});
  older.refused(replaced(good, q + 9 + 2, "\x02"), kModelFile, {"holds the code 10", "in row 0"});
  older.refused(replaced(good, norm + 1, bytes_of(std::numeric_limits<float>::infinity())),
                kModelFile, {"input_layernorm.weight' holds a value that is not finite"});
  // config.json says tied, the head is another one.
  older.refused(replaced(good, good.size() - 1, "\x01"), kModelFile,
                {"differs from 'model.embed_tokens.weight'"});
  Json config = older.hf.config;
  config["architectures"] = {"LlamaForCausalLM"};
  config["hidden_act"] = "silu";
  write_file(older.config(), config.dump());
  older.refused(good, kUnsupported, {"every layer of a TM2 file has sub-norms"});
}

TEST_CASE("TMAC: a file cut anywhere is refused") {
  Older older(with_half_norms(tiny_bitnet()));
  const std::string good = tmac_bytes(older.model, false);
  for (size_t bytes = 8; bytes < good.size(); bytes += bytes < 400 ? 1 : 41) {
    INFO(bytes);
    older.refused(good.substr(0, bytes), kModelFile, {"old.tmac2.bin"});
  }
}

TEST_CASE("TMAC: headers and tensors that are hostile or not supported") {
  Older older(with_half_norms(tiny_bitnet()));
  const std::string good = tmac_bytes(older.model, false);
  const std::string header = tmac_header(older.model);
  older.refused(tmac_header(older.model, 1), kUnsupported,
                {"TMAC file of version 1", "supported is 2"});
  older.refused(tmac_header(older.model, 2, 4), kUnsupported, {"weights of 4 bits"});
  older.refused(replaced(good, 8, bytes_of(uint32_t{0xFFFFFFFF})), kModelFile,
                {"hidden size = 4294967295"});
  older.refused(header, kModelFile, {"'model.embed_tokens.weight' is missing"});
  const auto tensor = [&](const std::string& bytes, ExitCode code, const std::string& part) {
    older.refused(header + bytes, code, {part});
  };
  const std::string q = "model.layers.0.self_attn.q_proj.weight";
  const std::vector<float> ones(16, 1.0f);
  tensor(bytes_of(uint32_t{0}), kModelFile, "is 0 bytes long, expected 1 to 1000");
  tensor(bytes_of(uint32_t{0xFFFFFFFF}), kModelFile, "is 4294967295 bytes long");
  tensor(bytes_of(uint32_t{900}) + "abc", kModelFile, "takes 900 bytes");
  tensor(tmac_tensor(q, "q4_0", {16, 12}, "", {}), kUnsupported, "has the dtype 'q4_0'");
  tensor(tmac_tensor(q, "bitnet", {12, 16}, std::string(48, 'U'), ones), kModelFile,
         "has the shape [12, 16], config.json calls for [16, 12] or, packed, [48]");
  tensor(tmac_tensor(q, "bitnet", {16, 12}, std::string(47, 'U'), ones), kModelFile,
         "has 47 bytes of data, expected 48");
  tensor(tmac_tensor(q, "bitnet", {16, 12}, std::string(48, 'U'), {1.0f}), kModelFile,
         "has 1 scales, expected one for each of 16 rows");
  tensor(tmac_tensor("lm_head.bias", "bitnet", {4}, "U", {1.0f}), kUnsupported,
         "edgellm knows no matrix of that name");
  tensor(tmac_tensor("n", "fp16", {3}, "12", {}), kModelFile, "not the size of F16 [3]");
  tensor(tmac_tensor("n", "fp16", {0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF}, "", {}),
         kModelFile, "not the size of F16");
  tensor(tmac_tensor("n", "fp16", std::vector<uint32_t>(9, 1), "12", {}), kModelFile,
         "a shape of 9 sizes");
  tensor(tmac_tensor("n", "fp16", {1}, "12", {2.0f}), kModelFile, "is fp16 and has scales");
  const std::string twice = tmac_halves("n", {1.0f});
  tensor(twice + twice, kModelFile, "tensor 'n' is in the file twice");
  std::string many;
  for (int i = 0; i < 60; ++i) many += tmac_halves("n" + std::to_string(i), {1.0f});
  tensor(many, kModelFile, "holds more tensors than a model of 2 layers");
  older.refused(good + tmac_halves("model.layers.0.self_attn.q_proj.bias", {1.0f}), kUnsupported,
                {"q_proj.bias", "is not part of a BitNetForCausalLM"});
  // Sizes near 2^64.
  const std::string sized = tmac_tensor("n", "fp16", {1}, "", {});
  for (const uint64_t size : {UINT64_MAX, UINT64_MAX - 3, uint64_t{1} << 63}) {
    tensor(replaced(sized, sized.size() - 16, bytes_of(size)), kModelFile,
           "takes " + std::to_string(size));
    tensor(replaced(sized, sized.size() - 8, bytes_of(size)), kModelFile,
           "takes " + std::to_string(size));
  }
  // Contents of a good file.
  OlderModel bad = older.model;
  bad.layers[1].down.codes[7] = 2;  // the code 3
  older.refused(tmac_bytes(bad, false), kModelFile,
                {"mlp.down_proj.weight' holds the code 3", "row 0"});
  bad = older.model;
  bad.layers[1].down.scales[2] = -1;
  older.refused(tmac_bytes(bad, false), kModelFile, {"the scale -1", "row 2"});
  bad.layers[1].down.scales[2] = std::numeric_limits<float>::quiet_NaN();
  older.refused(tmac_bytes(bad, false), kModelFile, {"the scale nan"});
  std::string int8_weight = tmac_tensor(q, "int8", {16, 12}, std::string(192, '\1'), ones);
  std::string swapped = good;
  const size_t at = swapped.find(q) - 4;
  const size_t length = tmac_matrix(q, older.model.layers[0].q, true).size();
  older.refused(swapped.replace(at, length, int8_weight), kUnsupported,
                {"q_proj.weight' is int8, expected ternary weights"});
}

TEST_CASE("older files: damaged bytes are an error or other numbers, never anything else") {
  Older older(with_half_norms(tiny_bitnet()));
  ConvertOptions dry;
  dry.dry_run = true;
  const std::string path = older.temp / "old.tmac2.bin";
  std::mt19937 generator(1);
  for (const std::string& good : {older.as_tm2(), tmac_bytes(older.model, false)}) {
    int refused = 0;
    for (int i = 0; i < 2000; ++i) {
      std::string bad = good;
      const size_t at = generator() % (i % 2 == 0 ? 200 : bad.size());
      for (size_t k = at; k < std::min(at + generator() % 8 + 1, bad.size()); ++k) {
        bad[k] = static_cast<char>(generator() % 3 == 0 ? 0xFF : generator());
      }
      if (i % 5 == 0) bad.resize(generator() % bad.size());
      write_file(path, bad);
      // Every other file without what config.json knows of it.
      const OlderFileOptions options = {.config = i % 4 < 2 ? older.config() : "", .tokenizer = ""};
      try {
        convert_older(path, older.temp / "new.tmac2", options, dry);
      } catch (const Error& error) {
        CHECK(std::string_view(error.what()).find('\n') == std::string_view::npos);
        ++refused;
      }
    }
    CHECK(refused > 1000);
    CHECK(refused < 2000);
  }
}

TEST_CASE("a dry run checks the same and writes nothing") {
  const Older older;
  ConvertOptions dry;
  dry.dry_run = true;
  const OlderFileOptions options = {.config = older.config(), .tokenizer = ""};
  write_file(older.temp / "old.tmac2.bin", older.as_tm2());
  write_file(older.temp / "target.tmac2", "precious");
  const ConvertedModel would =
      convert_older(older.temp / "old.tmac2.bin", older.temp / "target.tmac2", options, dry);
  CHECK(read_file(older.temp / "target.tmac2") == "precious");
  const ConvertedModel did =
      convert_older(older.temp / "old.tmac2.bin", older.temp / "target.tmac2", options, {});
  CHECK(would.file_bytes == did.file_bytes);
  CHECK(did.file_bytes == std::filesystem::file_size(older.temp / "target.tmac2"));
  CHECK(did.parameter_count == ModelFile::open(older.temp / "target.tmac2").parameter_count());
  REQUIRE(would.sections.size() == did.sections.size());
  for (size_t i = 0; i < did.sections.size(); ++i) {
    CHECK(would.sections[i].xxh3 == did.sections[i].xxh3);
  }

  // Faults in the contents are found too, of a Hugging Face folder as well.
  std::string bad = older.as_tm2();
  bad[bad.size() - 1] = '\x02';
  write_file(older.temp / "old.tmac2.bin", bad);
  expect_error(kModelFile, {"code 10"}, [&] {
    convert_older(older.temp / "old.tmac2.bin", older.temp / "none.tmac2", options, dry);
  });
  HfFolder hf = tiny_bitnet();
  hf.tensors["model.layers.1.mlp.down_proj.weight"].bytes[3] = '\xFF';
  expect_refused(hf, kModelFile, {"the code 3"}, dry);
  CHECK(!std::filesystem::exists(older.temp / "none.tmac2"));
  expect_error(ExitCode::kRuntime, {"one of the files to convert"}, [&] {
    convert_older(older.temp / "old.tmac2.bin", older.temp / "old.tmac2.bin", options, dry);
  });
}
