// config.json and the tokenizer's files: what is understood, what is refused by name.
#include <catch2/catch.hpp>
#include <cmath>

#include "model/import/hf_config.h"
#include "tests/model/test_model.h"

using namespace edgellm;
using namespace edgellm::model_io;
using namespace edgellm::test;

namespace {

constexpr ExitCode kModelFile = ExitCode::kModelFile;
constexpr ExitCode kUnsupported = ExitCode::kUnsupported;

HfConfig read(const Json& config, const std::vector<std::string>& ignore = {}) {
  const TempDir temp;
  write_file(temp / "config.json", config.dump());
  return read_hf_config(temp / "config.json", ignore);
}

using Change = std::function<void(Json&)>;

void refused(ExitCode code, const std::vector<std::string>& texts, const Change& change,
             Json config = tiny_llama().config) {
  change(config);
  INFO(config.dump());
  expect_error(code, texts, [&] { read(config); });
}

ModelConfig accepted(const Change& change, Json config = tiny_llama().config) {
  change(config);
  return read(config).model;
}

const Json kLlama3 = {{"factor", 8.0},
                      {"low_freq_factor", 1.0},
                      {"high_freq_factor", 4.0},
                      {"original_max_position_embeddings", 16},
                      {"rope_type", "llama3"}};

// stop ids, bos and so on of a folder of these files
TokenizerInfo tokenizer_of(
    const std::map<std::string, Json>& files, const Change& config = [](Json&) {}) {
  HfFolder hf = tiny_bitnet();
  config(hf.config);
  for (const auto& [name, json] : files) hf.files[name] = json.dump();
  const TempDir temp;
  return convert(hf, temp).tokenizer();
}

Json added_token(int id, const std::string& content, bool special = true) {
  return {{"id", id}, {"content", content}, {"special", special}};
}

}  // namespace

TEST_CASE("config: sizes, and what is assumed where the file is silent") {
  Json config = tiny_llama().config;
  for (const char* key : {"num_key_value_heads", "head_dim", "rms_norm_eps", "rope_theta",
                          "tie_word_embeddings", "hidden_act", "max_position_embeddings"}) {
    config.erase(key);
  }
  const ModelConfig llama = read(config).model;
  CHECK(llama.kv_heads == 2);
  CHECK(llama.head_dim == 6);
  CHECK(llama.norm_eps == 1e-6f);
  CHECK(llama.rope_theta == 10000.0);
  CHECK(llama.act == Activation::kSilu);
  CHECK_FALSE(llama.tied_head);
  CHECK_FALSE(llama.attn_sub_norm);
  config["architectures"] = {"BitNetForCausalLM"};
  config["num_key_value_heads"] = nullptr;
  const ModelConfig bitnet = read(config).model;
  CHECK(bitnet.kv_heads == 2);
  CHECK(bitnet.norm_eps == 1e-5f);
  CHECK(bitnet.rope_theta == 500000.0);
  CHECK(bitnet.act == Activation::kRelu2);
  CHECK(bitnet.attn_sub_norm);
  // BitNetConfig alone has a number where the key is absent.
  config.erase("num_key_value_heads");
  config["num_attention_heads"] = 10;
  config["head_dim"] = 8;
  CHECK(read(config).model.kv_heads == 5);
  config["architectures"] = {"BitnetForCausalLM"};
  CHECK(read(config).model.kv_heads == 10);
  for (const char* key : {"num_hidden_layers", "hidden_size", "intermediate_size",
                          "num_attention_heads", "vocab_size", "architectures"}) {
    refused(kModelFile, {key}, [&](Json& c) { c.erase(key); });
    refused(kModelFile, {key}, [&](Json& c) { c[key] = -1; });
    refused(kModelFile, {key}, [&](Json& c) { c[key] = "x"; });
  }
  refused(kModelFile, {"hidden_size 12", "num_attention_heads 5"}, [](Json& c) {
    c["num_attention_heads"] = 5;
    c["num_key_value_heads"] = 5;
    c.erase("head_dim");
  });
  refused(kUnsupported, {"kv_heads"}, [](Json& c) { c["num_key_value_heads"] = 4; });
}

TEST_CASE("config: architectures") {
  refused(kUnsupported, {"'MistralForCausalLM'", "BitNetForCausalLM"},
          [](Json& c) { c["architectures"] = {"MistralForCausalLM"}; });
  refused(kModelFile, {"architectures"}, [](Json& c) { c["architectures"] = {"a", "b"}; });
  CHECK(accepted([](Json&) {}).activation_quant == ActivationQuant::kInt8Row);
  CHECK(accepted([](Json& c) { c.erase("quantization_config"); }).activation_quant ==
        ActivationQuant::kInt16Group);
  const ModelConfig qwen3 = accepted([](Json& c) {
    c["architectures"] = {"Qwen3ForCausalLM"};
    c.erase("quantization_config");
    c.erase("head_dim");
  });
  CHECK(qwen3.qk_norm);
  CHECK(qwen3.head_dim == 128);
  refused(
      kUnsupported, {"quantization_config", "ternary models only"},
      [](Json& c) { c.erase("quantization_config"); }, tiny_bitnet().config);
  refused(kUnsupported, {"'gptq'"},
          [](Json& c) { c["quantization_config"]["quant_method"] = "gptq"; });
  refused(kUnsupported, {"linear_class", "'other'"},
          [](Json& c) { c["quantization_config"]["linear_class"] = "other"; });
  refused(kUnsupported, {"quantization_mode", "'sometimes'"},
          [](Json& c) { c["quantization_config"]["quantization_mode"] = "sometimes"; });
  refused(kUnsupported, {"modules_to_not_convert", "o_proj"}, [](Json& c) {
    c["quantization_config"]["modules_to_not_convert"] = {"lm_head", "o_proj"};
  });
  refused(kUnsupported, {"quantization_config.surprise"},
          [](Json& c) { c["quantization_config"]["surprise"] = 1; });
  const ModelConfig config = accepted([](Json& c) {
    c["quantization_config"]["modules_to_not_convert"] = {"lm_head"};
    c["quantization_config"]["use_rms_norm"] = false;
    c["quantization_config"]["rms_norm_eps"] = 1e-6;
  });
  CHECK_FALSE(config.input_norms);
}

TEST_CASE("config: input norms") {
  const auto with_norms = [](const Json& eps) {
    return [eps](Json& c) {
      c["rms_norm_eps"] = 1e-5;
      c["quantization_config"]["use_rms_norm"] = true;
      c["quantization_config"]["rms_norm_eps"] = eps;
    };
  };
  const ModelConfig config = accepted(with_norms(0.25));
  CHECK(config.input_norms);
  CHECK(config.input_norm_eps == 0.25f);
  CHECK(config.norm_eps == 1e-5f);
  CHECK(accepted(with_norms(nullptr)).input_norm_eps == 1e-6f);
  refused(kUnsupported, {"input_norm_eps"}, with_norms(0));
  refused(kModelFile, {"rms_norm_eps"}, with_norms("small"));
}

TEST_CASE("config: yarn") {
  const auto with = [](const Json& scaling) {
    return accepted([&](Json& c) {
      c["rope_scaling"] = scaling;
      c["rope_scaling"]["rope_type"] = "yarn";
      c["max_position_embeddings"] = 512;
    });
  };
  const ModelConfig config = with({{"factor", 4.0}, {"original_max_position_embeddings", 128}});
  REQUIRE(config.yarn_scaling);
  CHECK(config.yarn_scaling->original_max_position == 128);
  CHECK(config.yarn_scaling->beta_fast == 32);
  CHECK(config.rope_attention_factor() == 1.1386294f);  // 0.1 ln 4 + 1
  CHECK(with({{"factor", 2.0}}).yarn_scaling->original_max_position == 512);
  CHECK(with({{"factor", 2.0}, {"attention_factor", 1.5}}).rope_attention_factor() == 1.5f);
  refused(kModelFile, {"factor"}, [](Json& c) { c["rope_scaling"] = {{"rope_type", "yarn"}}; });
  for (const char* key : {"mscale", "mscale_all_dim"}) {
    refused(kUnsupported, {key}, [&](Json& c) {
      c["rope_scaling"] = {{"rope_type", "yarn"}, {"factor", 2.0}, {key, 1.0}};
    });
  }
  refused(kUnsupported, {"truncate"}, [](Json& c) {
    c["rope_scaling"] = {{"rope_type", "yarn"}, {"factor", 2.0}, {"truncate", false}};
  });
}

TEST_CASE("config: keys that change the maths are refused by name") {
  for (const auto& [key, value] :
       std::map<std::string, Json>{{"attention_bias", true},
                                   {"mlp_bias", true},
                                   {"sliding_window", 512},
                                   {"partial_rotary_factor", 0.5},
                                   {"hidden_act", "gelu"},
                                   {"activation", "geglu"},
                                   {"weight_bits", 2},
                                   {"input_bits", 4},
                                   {"layer_types", {"sliding_attention"}},
                                   {"scale_emb", 12},
                                   {"num_experts", 8}}) {
    refused(kUnsupported, {key}, [&, k = key, v = value](Json& c) { c[k] = v; });
  }
  accepted([](Json& c) {
    c["attention_bias"] = false;
    c["mlp_bias"] = nullptr;
    c["sliding_window"] = 512;
    c["use_sliding_window"] = false;
    c["max_window_layers"] = 3;
    c["partial_rotary_factor"] = 1.0;
    c["weight_bits"] = 1;
    c["input_bits"] = 8;
    c["layer_types"] = {"full_attention", "full_attention"};
    c["activation"] = "swiglu";
    c["initializer_range"] = 0.02;
    c["pretraining_tp"] = 1;
    c["unknown_but_off"] = false;
    c["unknown_but_null"] = nullptr;
  });
}

TEST_CASE("config: an unknown key names the option that ignores it") {
  Json config = tiny_llama().config;
  config["mystery"] = 3;
  expect_error(kUnsupported, {"'mystery'", "--ignore-key mystery"}, [&] { read(config); });
  CHECK(read(config, {"mystery"}).model.dim == 12);
  // What is known to matter cannot be ignored.
  config["attention_bias"] = true;
  expect_error(kUnsupported, {"attention_bias"}, [&] {
    read(config, {"mystery", "attention_bias"});
  });
}

TEST_CASE("config: rope in the old and the new spelling") {
  const auto scaling = accepted([](Json& c) { c["rope_scaling"] = kLlama3; }).rope_scaling;
  REQUIRE(scaling);
  CHECK(scaling->factor == 8.0);
  CHECK(scaling->original_max_position == 16);
  const ModelConfig renamed = accepted([](Json& c) {
    c.erase("rope_theta");
    c["rope_parameters"] = kLlama3;
    c["rope_parameters"]["rope_theta"] = 500000.0;
  });
  CHECK(renamed.rope_theta == 500000.0);
  REQUIRE(renamed.rope_scaling);
  CHECK(renamed.rope_scaling->high_freq_factor == 4.0);
  CHECK(accepted([](Json& c) {
          c["rope_scaling"] = kLlama3;
          c["rope_scaling"]["type"] = "llama3";
          c["rope_scaling"].erase("rope_type");
        }).rope_scaling);
  CHECK_FALSE(accepted([](Json& c) { c["rope_scaling"] = nullptr; }).rope_scaling);
  CHECK_FALSE(accepted([](Json& c) {
                c["rope_scaling"] = {{"rope_type", "default"}};
              }).rope_scaling);
  for (const char* type : {"linear", "dynamic", "longrope", "su"}) {
    for (const char* key : {"rope_type", "type"}) {
      refused(kUnsupported, {type, "llama3"}, [&](Json& c) {
        c["rope_scaling"] = {{key, type}, {"factor", 2.0}};
      });
    }
  }
  for (const char* key :
       {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}) {
    refused(kModelFile, {key, "missing"}, [&](Json& c) {
      c["rope_scaling"] = kLlama3;
      c["rope_scaling"].erase(key);
    });
    refused(key == std::string("original_max_position_embeddings") ? kModelFile : kUnsupported,
            {key}, [&](Json& c) {
              c["rope_scaling"] = kLlama3;
              c["rope_scaling"][key] = 0;
            });
  }
  refused(kModelFile, {"differ"}, [](Json& c) {
    c["rope_parameters"] = {{"rope_theta", 1.0}, {"rope_type", "default"}};
  });
  refused(kUnsupported, {"partial_rotary_factor"}, [](Json& c) {
    c["rope_parameters"] = {{"partial_rotary_factor", 0.5}, {"rope_type", "default"}};
  });
  refused(kUnsupported, {"attention_factor"}, [](Json& c) {
    c["rope_scaling"] = kLlama3;
    c["rope_scaling"]["attention_factor"] = 1.5;
  });
}

TEST_CASE("rope_inv_freq: the values of transformers") {
  // LlamaRotaryEmbedding of transformers 5 with PyTorch on a CPU, head_dim 16, theta 500000,
  // factor 8, low 1, high 4, original 128.
  ModelConfig config;
  config.head_dim = 16;
  config.rope_theta = 500000;
  CHECK(rope_inv_freq(config)[0] == 1.0f);
  config.rope_scaling = Llama3RopeScaling{8, 1, 4, 128};
  const std::vector<float> expected = {0x1.0000000000000p+0f,  0x1.876d540000000p-3f,
                                       0x1.3411900000000p-8f,  0x1.ddee9e0000000p-11f,
                                       0x1.72ba420000000p-13f, 0x1.1f91f00000000p-15f,
                                       0x1.be21880000000p-18f, 0x1.5a0f4e0000000p-20f};
  CHECK(rope_inv_freq(config) == expected);
}

TEST_CASE("tokenizer: stop ids are the union of what the files say") {
  const Json tokenizer = {
      {"model", {{"vocab", {{"a", 0}, {"</s>", 9}}}}},
      {"added_tokens",
       {added_token(3, "<|eot_id|>"), added_token(4, "<|end|>"),
        added_token(5, "<|im_end|>", false), added_token(6, "<bos>"), added_token(99, "<far>")}}};
  CHECK(tokenizer_of({}).stop_ids == std::vector<int32_t>{2});  // config.json alone
  CHECK(tokenizer_of({{"generation_config.json", {{"eos_token_id", {7, 5, 7}}}}}).stop_ids ==
        std::vector<int32_t>{2, 5, 7});
  CHECK(tokenizer_of({{"generation_config.json", {{"eos_token_id", 1}}}}, [](Json& c) {
          c["eos_token_id"] = {8, 2};
        }).stop_ids == std::vector<int32_t>{1, 2, 8});
  CHECK(tokenizer_of({{"tokenizer.json", tokenizer},
                      {"tokenizer_config.json", {{"eos_token", {{"content", "<|eot_id|>"}}}}},
                      {"special_tokens_map.json", {{"eos_token", "</s>"}}}})
            .stop_ids == std::vector<int32_t>{2, 3, 9});
  // Terminators count where they are special and the template writes them.
  const Json chat = {{"chat_template", "{{ '<|eot_id|>' }}{{ '<|im_end|>' }}"}};
  CHECK(tokenizer_of({{"tokenizer.json", tokenizer}, {"tokenizer_config.json", chat}}).stop_ids ==
        std::vector<int32_t>{2, 3});
  // Beyond the vocabulary: by name it is never generated, by number it is an error.
  CHECK(tokenizer_of(
            {{"tokenizer.json", tokenizer}, {"tokenizer_config.json", {{"eos_token", "<far>"}}}})
            .stop_ids == std::vector<int32_t>{2});
  HfFolder hf = tiny_bitnet();
  hf.files["generation_config.json"] = R"({"eos_token_id": [2, 11]})";
  expect_refused(hf, kModelFile, {"generation_config.json", "eos_token_id is 11"});
  hf.files["generation_config.json"] = R"({"eos_token_id": "2"})";
  expect_refused(hf, kModelFile, {"eos_token_id"});
}

TEST_CASE("tokenizer: bos, template and sampling defaults") {
  const Json tokenizer = {{"model", {{"vocab", {{"a", 0}}}}},
                          {"added_tokens", {added_token(6, "<bos>")}}};
  TokenizerInfo info = tokenizer_of({});
  CHECK_FALSE(info.present);
  CHECK(info.bos == 1);
  CHECK_FALSE(info.add_bos);
  CHECK(info.chat_template.empty());
  CHECK(info.sampling_json == "{}");

  const Json templates = {{{"name", "rag"}, {"template", "R"}},
                          {{"name", "default"}, {"template", "D"}}};
  info = tokenizer_of(
      {{"tokenizer.json", tokenizer},
       {"tokenizer_config.json",
        {{"bos_token", "<bos>"}, {"add_bos_token", true}, {"chat_template", templates}}},
       {"generation_config.json",
        {{"temperature", 0.7}, {"do_sample", true}, {"top_k", 50}, {"max_length", 9}}}});
  CHECK(info.present);
  CHECK(info.bos == 6);
  CHECK(info.add_bos);
  CHECK(info.chat_template == "D");
  CHECK(Json::parse(info.sampling_json) ==
        Json({{"temperature", 0.7}, {"do_sample", true}, {"top_k", 50}}));

  CHECK(info.special_tokens == std::map<std::string, std::string>{{"bos_token", "<bos>"}});

  // As text or as an object; what tokenizer_config.json says goes before special_tokens_map.json.
  info = tokenizer_of(
      {{"tokenizer.json", tokenizer},
       {"tokenizer_config.json", {{"bos_token", nullptr}, {"eos_token", {{"content", "<bos>"}}}}},
       {"special_tokens_map.json",
        {{"eos_token", "other"}, {"unk_token", "<unk>"}, {"pad_token", 3}}}});
  CHECK(info.special_tokens ==
        std::map<std::string, std::string>{{"eos_token", "<bos>"}, {"unk_token", "<unk>"}});

  HfFolder hf = tiny_bitnet();
  hf.files["chat_template.jinja"] = "J\n";
  hf.files["tokenizer_config.json"] = R"({"chat_template": "T"})";
  {
    const TempDir temp;
    CHECK(convert(hf, temp).tokenizer().chat_template == "J\n");
  }
  hf.files["chat_template.jinja"] = "\xFF";
  expect_refused(hf, kModelFile, {"chat_template.jinja", "UTF-8"});
  hf.files.erase("chat_template.jinja");
  hf.files["tokenizer_config.json"] = R"({"chat_template": [{"name": "x", "template": "y"}]})";
  expect_refused(hf, kModelFile, {"'default'"});
  hf.files["tokenizer_config.json"] = R"({"add_bos_token": true})";
  hf.config.erase("bos_token_id");
  expect_refused(hf, kModelFile, {"add_bos_token"});
  hf.files["tokenizer_config.json"] = "{";
  expect_refused(hf, kModelFile, {"tokenizer_config.json", "not valid JSON"});
  hf.files.erase("tokenizer_config.json");
  hf.files["tokenizer.json"] = "[]";
  expect_refused(hf, kModelFile, {"tokenizer.json", "not a JSON object"});
}

TEST_CASE("tokenizer: the file is kept byte for byte") {
  HfFolder hf = tiny_bitnet();
  hf.files["tokenizer.json"] =
      "{ \"model\": {\"vocab\": {\"a\":0}, \"merges\": [[\"a\",\"b\"]]},\n\"added_tokens\": [] }\n";
  const TempDir temp;
  CHECK(convert(hf, temp).tokenizer_json() == hf.files["tokenizer.json"]);
}
