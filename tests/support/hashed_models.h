// The models and prompts of tests/data/hashes.json, whose logits every backend must meet to the
// bit.
//
// hashes.json lists models: a file of the repository, or a synthetic one with the hash of its
// bytes. A model has cases for each of its KV types (hashed_kv_types()). A case is a prompt of n
// ids and 8 greedy tokens after it: the ids, and the xxh3-64 of the float32 logits of the last
// prompt row and of the 8 decode steps, one after the other.
#pragma once

#include <xxhash.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include "engine/backend.h"
#include "engine/kv_type.h"
#include "model/convert.h"
#include "tests/support/random.h"
#include "tests/support/temp_dir.h"

namespace edgellm::test {

inline constexpr int kDecodedTokens = 8;
inline constexpr int kPromptLengths[] = {1, 63, 64, 65, 130};

inline std::string hex64(uint64_t value) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(value));
  return text;
}

inline std::string hash_of_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  XXH3_state_t* state = XXH3_createState();
  XXH3_64bits_reset(state);
  std::vector<char> buffer(1 << 20);
  while (in.read(buffer.data(), static_cast<std::streamsize>(buffer.size())) || in.gcount() > 0) {
    XXH3_64bits_update(state, buffer.data(), static_cast<size_t>(in.gcount()));
  }
  const uint64_t hash = XXH3_64bits_digest(state);
  XXH3_freeState(state);
  return hex64(hash);
}

inline std::filesystem::path source_path(const std::string& relative) {
  return std::filesystem::path(EDGELLM_SOURCE_DIR) / relative;
}

inline std::filesystem::path hashes_path() { return source_path("tests/data/hashes.json"); }

inline nlohmann::json read_hashes() {
  std::ifstream in(hashes_path());
  return nlohmann::json::parse(in);
}

inline bool is_small(const ModelFile& model) { return model.parameter_count() < 20'000'000; }

// An entry of a shape that edgellm knows by name, as against a file or a shape of the tests.
inline bool is_published_shape(const nlohmann::json& entry) {
  return entry.contains("shape") && !entry["shape"].get<std::string>().ends_with(".json");
}

// The KV types whose hashes a model has.
inline std::vector<KvType> hashed_kv_types(const ModelFile& model) {
  if (is_small(model)) return {KvType::kI16, KvType::kI8, KvType::kF32};
  return {KvType::kI16, KvType::kI8};
}

// The cases of a model and a KV type.
inline nlohmann::json cases_of(const nlohmann::json& entry, KvType type) {
  if (entry["kv"].contains(to_string(type))) return entry["kv"][to_string(type)];
  throw std::runtime_error(hashes_path().string() + " has no hashes of " +
                           entry["name"].get<std::string>() + " with KV type " + to_string(type) +
                           "; write them by a run of engine_test with EDGELLM_WRITE_HASHES=1");
}

// The path of an entry's model; a synthetic one is made in `temp`.
inline std::string make_model(const nlohmann::json& entry, const TempDir& temp) {
  if (entry.contains("file")) return source_path(entry["file"]).string();
  SynthOptions options;
  const std::string shape = entry["shape"];
  options.shape = shape.ends_with(".json") ? source_path(shape).string() : shape;
  if (entry.contains("layers")) options.layers = entry["layers"].get<int>();
  if (entry.contains("vocab")) options.vocab = entry["vocab"].get<int>();
  options.seed = entry.value("seed", 0);
  const std::string path = temp / "synth.tmac2";
  write_synth(options, path);
  return path;
}

// A small random model whose config.json is that of a listed shape with some values changed.
inline std::string changed_model(const TempDir& temp,
                                 const nlohmann::json& changes = nlohmann::json::object()) {
  std::ifstream in(source_path("tests/data/shapes/head-dim-80.json"));
  nlohmann::json config = nlohmann::json::parse(in);
  config.update(changes);
  std::ofstream(temp / "shape.json") << config;
  SynthOptions options;
  options.shape = temp / "shape.json";
  write_synth(options, temp / "changed.tmac2");
  return temp / "changed.tmac2";
}

// Its head is not its embedding.
inline std::string untied_model(const TempDir& temp) {
  return changed_model(temp, {{"tie_word_embeddings", false}});
}

// Prompt of n ids: SplitMix64 seeded with n, modulo the vocabulary.
inline std::vector<int32_t> prompt_of(int n, int vocab) {
  Random random(static_cast<uint64_t>(n));
  std::vector<int32_t> ids;
  for (int i = 0; i < n; ++i) ids.push_back(random.below(vocab));
  return ids;
}

struct HashedRun {
  std::vector<float> logits;       // [1 + decoded, vocab]
  std::vector<int32_t> token_ids;  // [decoded]

  std::string hash() const {
    return hex64(XXH3_64bits(logits.data(), logits.size() * sizeof(float)));
  }
};

// Runs a case on sequence `slot` of a backend, the prompt in passes of `chunk` rows.
inline HashedRun run_case(Backend& backend, const std::vector<int32_t>& prompt, int decoded,
                          int chunk, int slot = 0) {
  const size_t vocab = static_cast<size_t>(backend.model().config().vocab);
  HashedRun run;
  run.logits.resize(static_cast<size_t>(1 + decoded) * vocab);
  const auto pass = [&](std::span<const int32_t> ids, int first, float* logits) {
    const std::vector<int32_t> sequences(ids.size(), slot);
    std::vector<int32_t> positions(ids.size());
    std::iota(positions.begin(), positions.end(), first);
    const int32_t last = static_cast<int32_t>(ids.size()) - 1;
    int32_t argmax = -1;
    Outputs outputs;
    if (logits != nullptr) {
      outputs.rows = {&last, 1};
      outputs.ids = {&argmax, 1};
      outputs.logits = {logits, vocab};
    }
    backend.forward({ids, sequences, positions}, outputs);
    return argmax;
  };
  const int n = static_cast<int>(prompt.size());
  int32_t next = -1;
  for (int begin = 0; begin < n; begin += chunk) {
    const int rows = std::min(chunk, n - begin);
    next = pass(std::span(prompt).subspan(static_cast<size_t>(begin), static_cast<size_t>(rows)),
                begin, begin + rows == n ? run.logits.data() : nullptr);
  }
  for (int i = 0; i < decoded; ++i) {
    run.token_ids.push_back(next);
    next = pass({&run.token_ids.back(), 1}, n + i,
                run.logits.data() + static_cast<size_t>(i + 1) * vocab);
  }
  return run;
}

}  // namespace edgellm::test
