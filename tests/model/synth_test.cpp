#include <catch2/catch.hpp>
#include <cmath>
#include <map>

#include "tests/model/test_model.h"

using namespace edgellm;
using namespace edgellm::test;

namespace {

// The seed is part of the options; everything else is the smallest model of the shape.
ModelFile synth(const TempDir& temp, const std::string& shape, uint64_t seed = 0) {
  SynthOptions options;
  options.shape = shape;
  options.layers = 2;
  options.vocab = 300;
  options.seed = seed;
  write_synth(options, temp / "synth.tmac2");
  ModelFile file = ModelFile::open(temp / "synth.tmac2");
  file.verify_contents();
  return file;
}

std::map<std::string, uint64_t> hashes(const ModelFile& file) {
  std::map<std::string, uint64_t> result;
  for (const Section& section : file.sections()) result[section.name] = section.xxh3;
  return result;
}

}  // namespace

TEST_CASE("synth gives the same bytes everywhere") {
  const TempDir temp;
  const ModelFile file = synth(temp, "smollm-135m");
  const auto found = hashes(file);
  // Literal: a change here changes the models of everyone who made one.
  CHECK(found.at("embedding") == 0xc26fdadbfaee0c14);
  CHECK(found.at("layers.1.down") == 0x04280ad6e395ead6);
  CHECK(found.at("layers.1.down.scale") == 0x27eee2d4263043ca);
  CHECK(found.at("layers.0.attn_norm") == 0xb3eeb903dd518226);
  CHECK(found.at("rope.inv_freq") == 0xaf739d5acfcd3331);

  const TempDir again;
  CHECK(hashes(synth(again, "smollm-135m")) == found);
  CHECK(read_file(temp / "synth.tmac2") == read_file(again / "synth.tmac2"));
  CHECK(file.provenance().converter_version.empty());  // the next one makes the same file
  const TempDir other;
  CHECK(hashes(synth(other, "smollm-135m", 1)).at("layers.1.down") != found.at("layers.1.down"));
}

TEST_CASE("synth knows the shapes it names") {
  for (const std::string& name : synth_shape_names()) {
    const TempDir temp;
    const ModelFile file = synth(temp, name);
    INFO(name);
    CHECK(file.config().layers == 2);
    CHECK(file.config().vocab == 300);
    CHECK(file.provenance().random);
    CHECK_FALSE(file.tokenizer().present);
    CHECK_FALSE(file.golden());
  }
}

TEST_CASE("synth weights are ternary with about a third zeros, and scaled") {
  const TempDir temp;
  const ModelFile file = synth(temp, "bitnet-2b-4t");
  for (const LayerWeights& layer : file.weights().layers) {
    for (const TernaryTensor* tensor : {&layer.q, &layer.o, &layer.gate, &layer.down}) {
      const std::vector<int> codes = codes_of(*tensor);
      double zeros = 0;
      double sum = 0;
      for (const int code : codes) {
        zeros += code == 0;
        sum += code;
      }
      const auto n = static_cast<double>(codes.size());
      CHECK(zeros / n > 0.25);
      CHECK(zeros / n < 0.45);
      CHECK(std::fabs(sum) < 5 * std::sqrt(n));  // as many of either sign
      const double expected = 1 / std::sqrt(0.66 * tensor->cols);
      CHECK(tensor->scale[0] > 0.69 * expected);
      CHECK(tensor->scale[0] < 1.31 * expected);
    }
    for (const float gain : layer.attn_sub_norm) CHECK(std::fabs(gain - 1) < 0.8f);
  }
}

TEST_CASE("synth follows a config.json, columns that are no multiple of four included") {
  const TempDir temp;
  HfFolder hf = tiny_llama();
  hf.tensors.clear();
  hf.config["hidden_size"] = 13;
  hf.config["intermediate_size"] = 27;
  hf.write(temp.path() / "hf");
  SynthOptions options;
  options.shape = temp / "hf/config.json";
  write_synth(options, temp / "synth.tmac2");
  const ModelFile file = ModelFile::open(temp / "synth.tmac2");
  file.verify_contents();  // row padding is zero
  CHECK(file.config().dim == 13);
  CHECK(file.config().layers == 2);

  options.shape = "no-such-shape";
  expect_error(ExitCode::kUsage, {"no-such-shape", "smollm-135m"},
               [&] { write_synth(options, temp / "other.tmac2"); });
  options.shape = "smollm-135m";
  options.layers = 0;
  expect_error(ExitCode::kUnsupported, {"layers is 0"},
               [&] { write_synth(options, temp / "other.tmac2"); });
}
