// Random ternary models whose rows are made of whole blocks of 256, and their GGUF files.
#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "tests/model/test_model.h"
#include "tests/support/gguf_writer.h"

namespace edgellm::test {

inline Json blocks_config(const char* architecture, int kv_heads) {
  return {{"architectures", {architecture}},
          {"hidden_size", 256},
          {"intermediate_size", 512},
          {"num_hidden_layers", 2},
          {"num_attention_heads", 4},
          {"num_key_value_heads", kv_heads},
          {"vocab_size", 40},
          {"max_position_embeddings", 64},
          {"rms_norm_eps", 1e-5},
          {"rope_theta", 500000.0},
          {"tie_word_embeddings", false},
          {"hidden_act", std::string(architecture) == "LlamaForCausalLM" ? "silu" : "relu2"},
          {"quantization_config", {{"quant_method", "bitnet"}}}};
}
inline Json blocks_bitnet() { return blocks_config("BitNetForCausalLM", 2); }
inline Json blocks_ungrouped() { return blocks_config("BitNetForCausalLM", 4); }
inline Json blocks_llama() { return blocks_config("LlamaForCausalLM", 2); }

// A model of random weights, as plain numbers. Scales are such that f16 and bf16 hold.
struct GgufSource {
  TempDir temp;
  ModelConfig config;
  OlderModel model;

  explicit GgufSource(const Json& config_json) {
    write_file(temp / "config.json", config_json.dump());
    SynthOptions options;
    options.shape = temp / "config.json";
    write_synth(options, temp / "synth.tmac2");
    const ModelFile file = ModelFile::open(temp / "synth.tmac2");
    config = file.config();
    model = older_model(file);
    int n = 0;
    for (OlderLayer& layer : model.layers) {
      for (const auto matrix : {&OlderLayer::q, &OlderLayer::k, &OlderLayer::v, &OlderLayer::o,
                                &OlderLayer::gate, &OlderLayer::up, &OlderLayer::down}) {
        (layer.*matrix)
            .scales.assign((layer.*matrix).scales.size(), static_cast<float>(100 + ++n) / 1024);
      }
    }
  }

  GgufWriter write(const GgufForm& form) const { return gguf_model(model, config, form); }

  ModelFile convert(const GgufWriter& file, const GgufOptions& options = {}) const {
    return convert(file.bytes(), options);
  }
  ModelFile convert(const std::string& bytes, const GgufOptions& options = {}) const {
    write_file(temp / "in.gguf", bytes);
    convert_gguf(temp / "in.gguf", temp / "out.tmac2", options, {});
    ModelFile result = ModelFile::open(temp / "out.tmac2");
    result.verify_contents();
    return result;
  }
  template <typename File>
  void refused(const File& file, ExitCode code, const std::vector<std::string>& texts) const {
    std::filesystem::remove(temp / "out.tmac2");
    expect_error(code, texts, [&] { convert(file); });
    CHECK(!std::filesystem::exists(temp / "out.tmac2"));
  }
};

inline void check_weights(const ModelFile& file, const OlderModel& expected) {
  const OlderModel found = older_model(file);
  CHECK(found.final_norm == expected.final_norm);
  CHECK(found.embedding.values == expected.embedding.values);
  CHECK(found.head.values == expected.head.values);
  REQUIRE(found.layers.size() == expected.layers.size());
  for (size_t i = 0; i < found.layers.size(); ++i) {
    INFO("layer " << i);
    const OlderLayer& a = found.layers[i];
    const OlderLayer& b = expected.layers[i];
    CHECK(a.attn_norm == b.attn_norm);
    CHECK(a.attn_sub_norm == b.attn_sub_norm);
    CHECK(a.ffn_norm == b.ffn_norm);
    CHECK(a.ffn_sub_norm == b.ffn_sub_norm);
    for (const auto matrix : {&OlderLayer::q, &OlderLayer::k, &OlderLayer::v, &OlderLayer::o,
                              &OlderLayer::gate, &OlderLayer::up, &OlderLayer::down}) {
      CHECK((a.*matrix).codes == (b.*matrix).codes);
      CHECK((a.*matrix).scales == (b.*matrix).scales);
    }
  }
}

}  // namespace edgellm::test
