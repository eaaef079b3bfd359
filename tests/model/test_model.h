// Small models for the tests of model/: Hugging Face folders and `.tmac2` files made in a temporary
// folder, and ways to damage them.
#pragma once

#include <catch2/catch.hpp>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "model/convert.h"
#include "model/model_file.h"
#include "tests/support/temp_dir.h"

namespace edgellm::test {

using Json = nlohmann::json;

std::string read_file(const std::string& path);
void write_file(const std::string& path, const std::string& bytes);

// The action must throw Error with this code, in one line that holds each of the texts.
void expect_error(ExitCode code, const std::vector<std::string>& texts,
                  const std::function<void()>& action);

// --- Hugging Face folders ---------------------------------------------------------------------

struct Tensor {
  std::string dtype;
  std::vector<int64_t> shape;
  std::string bytes;
};
using Tensors = std::map<std::string, Tensor>;

std::string safetensors_bytes(const Tensors& tensors);

Tensor bf16_tensor(const std::vector<int64_t>& shape, const std::vector<float>& values);
Tensor f32_tensor(const std::vector<int64_t>& shape, const std::vector<float>& values);
std::vector<float> random_floats(size_t n, uint32_t seed);
std::vector<float> values_of(const Tensor& tensor);  // BF16 or F32

// A BitNetForCausalLM of two layers, small and of awkward sizes, packed and tied.
struct HfFolder {
  Json config;
  Tensors tensors;
  std::map<std::string, std::string> files;  // others, by name

  void write(const std::filesystem::path& folder) const;
};
HfFolder tiny_bitnet();
// The same as a LlamaForCausalLM: no sub-norms, bitlinear, untied.
HfFolder tiny_llama();

// Writes the folder, converts it and opens the result.
ModelFile convert(const HfFolder& hf, const TempDir& temp, const ConvertOptions& options = {});
// Writes the folder and expects that it is refused, without a file left behind.
void expect_refused(const HfFolder& hf, ExitCode code, const std::vector<std::string>& texts,
                    const ConvertOptions& options = {});

// The codes -1, 0, +1 of a matrix, row by row.
std::vector<int> codes_of(const TernaryTensor& tensor);

// --- .tmac2 files -----------------------------------------------------------------------------

// The bytes of a small valid file.
std::string tiny_model_bytes();
Json metadata_of(const std::string& file);
// The file with other metadata, padded to the old size, hash and length corrected.
std::string with_metadata(const std::string& file, const std::string& metadata);
std::string with_metadata(const std::string& file, const std::function<void(Json&)>& change);
// The entry of a section in parsed metadata.
Json& section_of(Json& metadata, const std::string& name);
// The file with the hash of one section recomputed over its present bytes.
std::string with_section_hash(const std::string& file, const std::string& name);

}  // namespace edgellm::test
