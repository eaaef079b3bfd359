// GGUF files that are damaged, hostile, or of models that edgellm does not run: one line each.
#include <catch2/catch.hpp>

#include "tests/model/gguf_models.h"
#include "tests/model/test_model.h"
#include "tests/support/gguf_writer.h"

using namespace edgellm;
using namespace edgellm::test;

namespace {

constexpr ExitCode kModelFile = ExitCode::kModelFile;
constexpr ExitCode kUnsupported = ExitCode::kUnsupported;

std::string replaced(std::string bytes, size_t at, const std::string& with) {
  return bytes.replace(at, with.size(), with);
}

}  // namespace

TEST_CASE(
    "GGUF: a file cut anywhere in its header is refused, and damaged anywhere never crashes") {
  const GgufSource source(blocks_bitnet());
  GgufWriter file = source.write({"bitnet", "TQ2_0", "F32"});
  file.set("tokenizer.ggml.model", "gpt2");
  file.set("tokenizer.ggml.tokens", std::vector<std::string>{"a", "b", "ab", "<|x|>"});
  file.set("tokenizer.ggml.merges", std::vector<std::string>{"a b"});
  const std::string good = file.bytes();
  const size_t n_header = file.header().size();
  source.convert(good);
  for (size_t length = 0; length < n_header; length += 7) {
    INFO("length " << length);
    expect_error(kModelFile, {}, [&] { source.convert(good.substr(0, length)); });
  }
  source.refused(good.substr(0, good.size() - 40), kModelFile, {"in.gguf"});
  source.refused(good + std::string(64, '\0'), kModelFile, {"in.gguf"});
  size_t n_refused = 0;
  size_t n_tried = 0;
  for (size_t at = 0; at < n_header; at += 5) {
    INFO("byte " << at);
    ++n_tried;
    try {
      source.convert(replaced(good, at, std::string(1, static_cast<char>(good[at] ^ 0x41))));
    } catch (const Error& error) {
      CHECK(std::string(error.what()).find('\n') == std::string::npos);
      ++n_refused;
    }
  }
  CHECK(n_refused > n_tried * 7 / 10);
}

TEST_CASE("GGUF: a vector of a ternary type is refused") {
  const GgufSource source(blocks_bitnet());
  GgufWriter file = source.write({"bitnet", "I2_S/rows", "F32"});
  GgufWriter::Tensor& norm = file.tensor("output_norm.weight");
  norm.type = 36;
  norm.bytes.resize(256 / 4 + 32);
  for (const char* layout : {"x86", "arm", "rows"}) {
    write_file(source.temp / "in.gguf", file.bytes());
    expect_error(ExitCode::kModelFile, {"output_norm.weight", "expected a matrix"}, [&] {
      convert_gguf(source.temp / "in.gguf", source.temp / "out.tmac2", {"", layout}, {});
    });
  }
}

TEST_CASE("GGUF: counts, lengths and shapes that the file cannot have") {
  const GgufSource source(blocks_bitnet());
  const GgufWriter file = source.write({"bitnet", "TQ2_0", "F32"});
  const std::string good = file.bytes();
  const uint64_t huge = 1ull << 62;
  source.refused(replaced(good, 4, raw_bytes(0x03000000u)), kUnsupported, {"big-endian"});
  source.refused(replaced(good, 4, raw_bytes(1u)), kUnsupported, {"version 1", "2 and 3"});
  source.refused(replaced(good, 4, raw_bytes(4u)), kUnsupported, {"version 4"});
  source.refused(replaced(good, 8, raw_bytes(huge)), kModelFile, {"list of tensors"});
  source.refused(replaced(good, 16, raw_bytes(huge)), kModelFile, {"metadata claims"});
  source.refused(replaced(good, 24, raw_bytes(huge)), kModelFile, {"key 0", "bytes long"});
  source.refused(replaced(good.substr(0, 400), 24, raw_bytes(uint64_t{60000})), kModelFile,
                 {"key 0 takes 60000 bytes", "the file has 400"});

  const auto refused_with = [&](const auto& change, ExitCode code,
                                const std::vector<std::string>& texts) {
    GgufWriter changed = file;
    change(changed);
    source.refused(changed, code, texts);
  };
  const auto raw_key = [&](const std::string& value) {
    return [value](GgufWriter& f) { f.set_raw("x", value); };
  };
  refused_with(raw_key(raw_bytes(13u)), kModelFile, {"'x' has the type 13"});
  refused_with(raw_key(raw_bytes(9u) + raw_bytes(8u) + raw_bytes(huge)), kModelFile,
               {"'x' claims"});
  refused_with(raw_key(raw_bytes(9u) + raw_bytes(9u) + raw_bytes(uint64_t{1})), kUnsupported,
               {"'x' is a list of lists"});
  refused_with(raw_key(raw_bytes(8u) + raw_bytes(huge)), kModelFile, {"'x'"});
  refused_with([](GgufWriter& f) { f.set("general.alignment", 48u); }, kModelFile,
               {"general.alignment is 48", "power of two"});
  refused_with([](GgufWriter& f) { f.set("general.alignment", 0u); }, kModelFile,
               {"general.alignment is 0"});
  refused_with([](GgufWriter& f) { f.set("general.alignment", "32"); }, kModelFile,
               {"general.alignment is of another type"});

  const auto shape = [&](std::vector<uint64_t> extents) {
    return [extents](GgufWriter& f) { f.tensor("blk.0.attn_q.weight").shape = extents; };
  };
  refused_with(shape({0, 256}), kModelFile, {"blk.0.attn_q.weight", "dimension of 0"});
  refused_with(shape({huge, 256}), kModelFile, {"no file holds"});
  refused_with(shape({1, 1, 1, 1, 256}), kModelFile, {"5 dimensions"});
  refused_with(shape({128, 512}), kModelFile, {"[128, 512]", "its metadata calls for [256, 256]"});
  refused_with(shape({256, 250}), kModelFile, {"a shape that this type cannot have"});
  refused_with(shape({255, 256}), kModelFile, {"it is cut off, damaged, or that number"});
  refused_with([](GgufWriter& f) { f.tensor("token_embd.weight").shape = {40 * 256}; }, kModelFile,
               {"token_embd.weight", "no matrix"});
  refused_with([](GgufWriter& f) { f.add(f.tensors.back()); }, kModelFile, {"in the file twice"});
  refused_with([](GgufWriter& f) { f.erase_tensor("blk.1.ffn_sub_norm.weight"); }, kModelFile,
               {"'blk.1.ffn_sub_norm.weight' is missing"});
  refused_with([](GgufWriter& f) { f.erase_tensor("output_norm.weight"); }, kModelFile,
               {"'output_norm.weight' is missing"});
  refused_with(
      [](GgufWriter& f) {
        f.add({"blk.0.attn_q.bias", 0, {256}, std::string(1024, '\0')});
      },
      kUnsupported, {"'blk.0.attn_q.bias' is not part of"});
}

TEST_CASE("GGUF: contents that are no weights") {
  const GgufSource source(blocks_bitnet());
  const auto refused_with = [&](const char* type, const std::string& name, size_t at,
                                const std::string& bytes, const std::vector<std::string>& texts) {
    INFO(type);
    GgufWriter file = source.write({"bitnet", type, "F32"});
    std::string& data = file.tensor(name).bytes;
    data = replaced(data, at, bytes);
    source.refused(file, kModelFile, texts);
  };
  const std::string infinity = raw_bytes(uint16_t{0x7C00});
  refused_with("TQ2_0", "blk.0.ffn_up.weight", 66 * 3, "\xFF",
               {"blk.0.ffn_up.weight", "the code 3", "row 3, column 0"});
  refused_with("TQ2_0", "blk.0.ffn_up.weight", 64, infinity, {"scale that is not finite"});
  refused_with("IQ2_BN", "blk.0.ffn_up.weight", 0, raw_bytes(0x7FC00000u),
               {"scale that is not finite"});
  refused_with("F16", "blk.0.ffn_up.weight", 64, infinity, {"value that is not finite"});
  refused_with("F16", "token_embd.weight", 64, raw_bytes(0x7F800000u),
               {"token_embd.weight", "value that is not finite"});
  refused_with("F16", "blk.0.attn_norm.weight", 0, raw_bytes(0x7F800000u),
               {"blk.0.attn_norm.weight", "value that is not finite"});
}

TEST_CASE("GGUF: models and types that edgellm does not run are refused by name") {
  const GgufSource source(blocks_bitnet());
  const auto refused_with = [&](const auto& change, const std::vector<std::string>& texts) {
    GgufWriter file = source.write({"bitnet", "F16", "F32"});
    change(file);
    source.refused(file, kUnsupported, texts);
  };
  const auto key = [](const std::string& name, const auto& value) {
    return [=](GgufWriter& f) { f.set(name, value); };
  };
  refused_with(
      key("general.architecture", "gemma3"),
      {"'gemma3' is not supported", "bitnet, bitnet-b1.58, bitnet-25, llama, falcon, qwen3"});
  refused_with(key("prism.hadamard.version", 1u), {"Hadamard", "without the rotation"});
  refused_with(key("bitnet.expert_count", 8u), {"bitnet.expert_count is 8"});
  refused_with(key("bitnet.attention.sliding_window", 4096u), {"sliding_window is 4096"});
  refused_with(key("bitnet.logit_scale", 2.0f), {"logit_scale is 2"});
  refused_with(key("bitnet.rope.scaling.type", "longrope"), {"rope.scaling.type is 'longrope'"});
  refused_with(key("bitnet.rope.scaling.factor", 4.0f), {"rope.scaling.factor is 4"});
  refused_with(key("bitnet.rope.dimension_count", 32u), {"rope.dimension_count is 32", "64"});
  refused_with(key("bitnet.attention.causal", false), {"attention.causal is false"});
  refused_with(key("bitnet.swin_norm", true),
               {"bitnet.swin_norm", "--ignore-key bitnet.swin_norm"});
  refused_with(
      [](GgufWriter& f) {
        f.erase("bitnet.attention.layer_norm_rms_epsilon");
        f.set("bitnet.attention.layer_norm_epsilon", 1e-5f);
      },
      {"LayerNorms"});

  const auto type = [&](uint32_t number) {
    return [number](GgufWriter& f) { f.tensor("blk.0.ffn_up.weight").type = number; };
  };
  refused_with(type(38), {"blk.0.ffn_up.weight", "TL1", "tiles", "Hugging Face folder"});
  refused_with(type(39), {"TL2", "tiles"});
  refused_with(type(43), {"STQ1_0", "Hugging Face folder"});
  refused_with(type(41), {"Q1_0", "ternary matrices may be"});
  refused_with(type(777), {"type 777"});
  // STQ1_0 with the number of Q2_0: 42 bytes for 256 weights.
  refused_with(
      [&](GgufWriter& f) {
        f.tensor("blk.0.ffn_up.weight").type = 42;
        f.tensor("blk.0.ffn_up.weight").bytes.resize(512 * 256 / 256 * 42);
      },
      {"blk.0.ffn_up.weight", "is STQ1_0"});
  // Numbers that are no ternary ones.
  refused_with(
      [&](GgufWriter& f) {
        std::string& bytes = f.tensor("blk.0.ffn_up.weight").bytes;
        for (size_t i = 0; i < bytes.size(); i += 2) {
          bytes.replace(i, 2, raw_bytes(to_half(static_cast<float>(i % 31) - 15)));
        }
      },
      {"blk.0.ffn_up.weight", "is not ternary"});
}

TEST_CASE("GGUF: keys without an effect, and declared harmless, pass") {
  const GgufSource source(blocks_bitnet());
  GgufWriter file = source.write({"bitnet", "F16", "F32"});
  file.version = 2;
  file.set("bitnet.rope.scaling.type", "linear");
  file.set("bitnet.rope.scaling.factor", 1.0f);
  file.set("bitnet.expert_count", 0u);
  file.set("bitnet.logit_scale", 1.0f);
  file.set("bitnet.vocab_size", 40u);
  file.set("bitnet.swin_norm", true);
  file.set("general.alignment", 64u);
  file.alignment = 64;
  write_file(source.temp / "in.gguf", file.bytes());
  ConvertOptions options;
  options.ignore_keys = {"bitnet.swin_norm"};
  convert_gguf(source.temp / "in.gguf", source.temp / "out.tmac2", {}, options);
  check_weights(ModelFile::open(source.temp / "out.tmac2"), source.model);
}

TEST_CASE("GGUF: Q2_0 tensors that are too small to tell their blocks") {
  const GgufSource source(blocks_bitnet());
  GgufWriter file = source.write({"bitnet", "F16", "F32"});
  // 128 weights: 36 or 34 bytes, both padded to 64.
  file.add({"blk.0.attn_q.scale", 42, {1, 128}, std::string(36, '\0')});
  source.refused(file, kModelFile, {"too small to tell"});
  file.tensor("blk.0.attn_q.scale").bytes.resize(100);
  source.refused(file, kModelFile, {"blk.0.attn_q.scale", "neither"});
}
