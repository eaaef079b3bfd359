#include "tests/model/test_model.h"

#include <xxhash.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <random>
#include <sstream>

#include "model/float_bits.h"

namespace edgellm::test {

namespace fs = std::filesystem;

std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  REQUIRE(in);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

void write_file(const std::string& path, const std::string& bytes) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out << bytes;
  out.close();
  REQUIRE(out);
}

void expect_error(ExitCode code, const std::vector<std::string>& texts,
                  const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    const std::string message = error.what();
    INFO(message);
    CHECK(error.code() == code);
    CHECK(message.find('\n') == std::string::npos);
    for (const std::string& text : texts) {
      INFO("expected text: " << text);
      CHECK(message.find(text) != std::string::npos);
    }
    return;
  }
  FAIL("no Error, expected one with: " << (texts.empty() ? "" : texts[0]));
}

std::string safetensors_bytes(const Tensors& tensors) {
  Json header = {{"__metadata__", {{"format", "pt"}}}};
  std::string data;
  for (const auto& [name, tensor] : tensors) {
    header[name] = {{"dtype", tensor.dtype},
                    {"shape", tensor.shape},
                    {"data_offsets", {data.size(), data.size() + tensor.bytes.size()}}};
    data += tensor.bytes;
  }
  const std::string text = header.dump();
  const uint64_t length = text.size();
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &length, 8);
  return bytes + text + data;
}

Tensor bf16_tensor(const std::vector<int64_t>& shape, const std::vector<float>& values) {
  Tensor tensor = {"BF16", shape, std::string(2 * values.size(), '\0')};
  for (size_t i = 0; i < values.size(); ++i) {
    const uint16_t bits = model_io::float_to_bf16(values[i]);
    std::memcpy(tensor.bytes.data() + 2 * i, &bits, 2);
  }
  return tensor;
}

Tensor f32_tensor(const std::vector<int64_t>& shape, const std::vector<float>& values) {
  Tensor tensor = {"F32", shape, std::string(4 * values.size(), '\0')};
  std::memcpy(tensor.bytes.data(), values.data(), tensor.bytes.size());
  return tensor;
}

std::vector<float> random_floats(size_t n, uint32_t seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(n);
  for (float& value : values) value = normal(generator);
  return values;
}

std::vector<float> values_of(const Tensor& tensor) {
  const size_t element = tensor.dtype == "F32" ? 4 : 2;
  std::vector<float> values(tensor.bytes.size() / element);
  for (size_t i = 0; i < values.size(); ++i) {
    if (element == 4) {
      std::memcpy(&values[i], tensor.bytes.data() + 4 * i, 4);
    } else {
      uint16_t bits = 0;
      std::memcpy(&bits, tensor.bytes.data() + 2 * i, 2);
      values[i] = model_io::bf16_to_float(bits);
    }
  }
  return values;
}

namespace {

Tensor random_packed(int64_t rows, int64_t cols, uint32_t seed) {
  std::mt19937 generator(seed);
  Tensor tensor = {"U8", {rows / 4, cols}, std::string(static_cast<size_t>(rows / 4 * cols), '\0')};
  for (char& byte : tensor.bytes) {
    unsigned value = 0;
    for (int k = 0; k < 4; ++k) value |= static_cast<unsigned>(generator() % 3) << (2 * k);
    byte = static_cast<char>(value);
  }
  return tensor;
}

Tensor random_bf16(const std::vector<int64_t>& shape, uint32_t seed) {
  size_t n = 1;
  for (const int64_t extent : shape) n *= static_cast<size_t>(extent);
  return bf16_tensor(shape, random_floats(n, seed));
}

// dim 12, 2 heads of 8, 1 kv head, ffn 20, vocab 11: q_dim is not dim, nothing is a multiple of 16.
HfFolder tiny_folder(bool sub_norms, bool tied) {
  HfFolder hf;
  uint32_t seed = 1;
  hf.tensors["model.embed_tokens.weight"] = random_bf16({11, 12}, seed++);
  hf.tensors["model.norm.weight"] = random_bf16({12}, seed++);
  if (!tied) hf.tensors["lm_head.weight"] = random_bf16({11, 12}, seed++);
  for (const std::string layer : {"model.layers.0.", "model.layers.1."}) {
    hf.tensors[layer + "input_layernorm.weight"] = random_bf16({12}, seed++);
    hf.tensors[layer + "post_attention_layernorm.weight"] = random_bf16({12}, seed++);
    if (sub_norms) {
      hf.tensors[layer + "self_attn.attn_sub_norm.weight"] = random_bf16({16}, seed++);
      hf.tensors[layer + "mlp.ffn_sub_norm.weight"] = random_bf16({20}, seed++);
    }
    const auto matrix = [&](const std::string& name, int64_t rows, int64_t cols) {
      hf.tensors[layer + name + ".weight"] = random_packed(rows, cols, seed++);
      hf.tensors[layer + name + ".weight_scale"] =
          bf16_tensor({1}, {0.5f + static_cast<float>(seed) / 64});
    };
    matrix("self_attn.q_proj", 16, 12);
    matrix("self_attn.k_proj", 8, 12);
    matrix("self_attn.v_proj", 8, 12);
    matrix("self_attn.o_proj", 12, 16);
    matrix("mlp.gate_proj", 20, 12);
    matrix("mlp.up_proj", 20, 12);
    matrix("mlp.down_proj", 12, 20);
  }
  hf.config = {
      {"hidden_size", 12},        {"intermediate_size", 20},       {"num_hidden_layers", 2},
      {"num_attention_heads", 2}, {"num_key_value_heads", 1},      {"head_dim", 8},
      {"vocab_size", 11},         {"max_position_embeddings", 64}, {"rms_norm_eps", 1e-5},
      {"rope_theta", 10000.0},    {"tie_word_embeddings", tied},   {"bos_token_id", 1},
      {"eos_token_id", 2}};
  return hf;
}

}  // namespace

HfFolder tiny_bitnet() {
  HfFolder hf = tiny_folder(true, true);
  hf.config["architectures"] = {"BitNetForCausalLM"};
  hf.config["model_type"] = "bitnet";
  hf.config["hidden_act"] = "relu2";
  hf.config["quantization_config"] = {{"quant_method", "bitnet"},
                                      {"linear_class", "autobitlinear"},
                                      {"quantization_mode", "offline"}};
  return hf;
}

HfFolder tiny_llama() {
  HfFolder hf = tiny_folder(false, false);
  hf.config["architectures"] = {"LlamaForCausalLM"};
  hf.config["model_type"] = "llama";
  hf.config["hidden_act"] = "silu";
  hf.config["quantization_config"] = {{"quant_method", "bitnet"}};
  return hf;
}

void HfFolder::write(const fs::path& folder) const {
  fs::create_directories(folder);
  write_file((folder / "config.json").string(), config.dump());
  if (!tensors.empty()) {
    write_file((folder / "model.safetensors").string(), safetensors_bytes(tensors));
  }
  for (const auto& [name, bytes] : files) write_file((folder / name).string(), bytes);
}

ModelFile convert(const HfFolder& hf, const TempDir& temp, const ConvertOptions& options) {
  hf.write(temp.path() / "hf");
  convert_hf(temp / "hf", temp / "out.tmac2", options);
  ModelFile file = ModelFile::open(temp / "out.tmac2");
  file.verify_contents();
  return file;
}

void expect_refused(const HfFolder& hf, ExitCode code, const std::vector<std::string>& texts,
                    const ConvertOptions& options) {
  const TempDir temp;
  hf.write(temp.path() / "hf");
  expect_error(code, texts, [&] { convert_hf(temp / "hf", temp / "out.tmac2", options); });
  // Nothing beside the input: neither the output nor a temporary file.
  for (const auto& entry : fs::directory_iterator(temp.path())) {
    CHECK(entry.path().filename() == "hf");
  }
}

std::vector<int> codes_of(const TernaryTensor& tensor) {
  std::vector<int> codes;
  for (int r = 0; r < tensor.rows; ++r) {
    const uint8_t* row = tensor.codes + static_cast<size_t>(r) * tensor.row_bytes();
    for (int c = 0; c < tensor.cols; ++c) {
      const int code = (row[c / 4] >> (2 * (c % 4))) & 3;
      codes.push_back(code == 3 ? -1 : code);
    }
  }
  return codes;
}

std::string tiny_model_bytes() {
  const TempDir temp;
  HfFolder hf = tiny_bitnet();
  hf.files["tokenizer.json"] = R"({"model": {"vocab": {"a": 0}}, "added_tokens": []})";
  hf.write(temp.path() / "hf");
  ConvertOptions options;
  options.make_golden = [](const std::string&) { return Golden{{1, 2, 3}, {4, 5}}; };
  convert_hf(temp / "hf", temp / "out.tmac2", options);
  return read_file(temp / "out.tmac2");
}

namespace {

uint64_t metadata_bytes(const std::string& file) {
  uint64_t bytes = 0;
  std::memcpy(&bytes, file.data() + 16, 8);
  return bytes;
}

}  // namespace

Json metadata_of(const std::string& file) {
  return Json::parse(file.substr(32, static_cast<size_t>(metadata_bytes(file))));
}

std::string with_metadata(const std::string& file, const std::string& metadata) {
  std::string changed = file;
  const uint64_t length = metadata.size();
  const uint64_t hash = XXH3_64bits(metadata.data(), metadata.size());
  std::memcpy(changed.data() + 16, &length, 8);
  std::memcpy(changed.data() + 24, &hash, 8);
  const auto old = static_cast<size_t>(metadata_bytes(file));
  changed.replace(32, old, std::string(old, '\0'));
  if (changed.size() < 32 + metadata.size()) changed.resize(32 + metadata.size());
  changed.replace(32, metadata.size(), metadata);
  return changed;
}

std::string with_metadata(const std::string& file, const std::function<void(Json&)>& change) {
  Json metadata = metadata_of(file);
  change(metadata);
  return with_metadata(file, metadata.dump());
}

Json& section_of(Json& metadata, const std::string& name) {
  for (Json& section : metadata["sections"]) {
    if (section["name"] == name) return section;
  }
  FAIL("no section " << name);
  throw std::logic_error("not reached");
}

std::string with_section_hash(const std::string& file, const std::string& name) {
  return with_metadata(file, [&](Json& metadata) {
    Json& section = section_of(metadata, name);
    const uint64_t hash =
        XXH3_64bits(file.data() + section["offset"].get<size_t>(), section["bytes"].get<size_t>());
    std::array<char, 17> text{};
    std::snprintf(text.data(), text.size(), "%016llx", static_cast<unsigned long long>(hash));
    section["xxh3"] = text.data();
  });
}

}  // namespace edgellm::test
