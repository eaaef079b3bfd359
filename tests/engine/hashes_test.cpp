// Whole models: the hashes of tests/data/hashes.json, and the determinism contract: the same bits
// for ref and cpu, any instruction set, thread count, prefill chunking and company in the batch.
//
// EDGELLM_WRITE_HASHES=1 rewrites the hashes instead of checking them: for a deliberate change of
// the canonical arithmetic, never to make a red test green.
#include <catch2/catch.hpp>
#include <cstdlib>
#include <iostream>

#include "kernels/cpu/isa.h"
#include "kernels/cpu/primitives.h"
#include "tests/support/environment.h"
#include "tests/support/hashed_models.h"
#include "tests/support/ref_model.h"

namespace edgellm {
namespace {

using nlohmann::json;
using namespace edgellm::test;

std::unique_ptr<Backend> backend_for(const ModelFile& model, KvType type, int threads,
                                     int sequences = 1) {
  EngineOptions options;
  options.context = 160;
  options.kv_type = type;
  options.threads = threads;
  options.sequences = sequences;
  options.max_rows = 512;
  return make_cpu_backend(model, options);
}

void check_hashes(bool large) {
  const bool write = std::getenv("EDGELLM_WRITE_HASHES") != nullptr;
  json hashes = read_hashes();
  for (json& entry : hashes["models"]) {
    if (is_published_shape(entry) != large) continue;
    INFO("model " << entry["name"]);
    const TempDir temp;
    const std::string path = make_model(entry, temp);
    const std::string file_hash = hash_of_file(path);
    if (write) entry["file_xxh3"] = file_hash;
    REQUIRE(entry["file_xxh3"] == file_hash);
    const ModelFile model = ModelFile::open(path);
    model.verify_contents();
    json written = json::object();
    for (const KvType type : hashed_kv_types(model)) {
      const auto backend = backend_for(model, type, 2);
      json cases = json::array();
      for (const int n : kPromptLengths) {
        const HashedRun run =
            run_case(*backend, prompt_of(n, model.config().vocab), kDecodedTokens, 512);
        cases.push_back({{"n", n}, {"token_ids", run.token_ids}, {"logits_xxh3", run.hash()}});
      }
      INFO("KV " << to_string(type));
      if (!write) CHECK(cases_of(entry, type) == cases);
      written[to_string(type)] = std::move(cases);
    }
    if (write) entry["kv"] = std::move(written);
  }
  if (write) std::ofstream(hashes_path()) << hashes.dump(1) << "\n";
}

TEST_CASE("the logits of every listed small model have the recorded hashes") {
  check_hashes(/*large=*/false);
}

TEST_CASE("the logits of every listed published shape have the recorded hashes") {
  check_hashes(/*large=*/true);
}

TEST_CASE("ref and cpu give the same logits bits for whole models") {
  const json hashes = read_hashes();
  for (const json& entry : hashes["models"]) {
    INFO("model " << entry["name"]);
    const TempDir temp;
    const ModelFile model = ModelFile::open(make_model(entry, temp));
    // The reference takes about 2 ns a weight: the long prompts are for the small models.
    for (const KvType type : hashed_kv_types(model)) {
      const auto backend = backend_for(model, type, 2);
      for (int n : {1, 65, 130}) {
        if (n > 1 && !is_small(model)) continue;
        if (n == 65 && is_coded(type)) continue;  // ref takes its time
        INFO("KV " << to_string(type) << ", prompt of " << n << " ids");
        const std::vector<int32_t> prompt = prompt_of(n, model.config().vocab);
        const HashedRun run = run_case(*backend, prompt, 2, 512);
        RefModel ref(model, 160, type);
        const size_t vocab = static_cast<size_t>(model.config().vocab);
        std::vector<float> expected = ref.forward(prompt);
        expected.erase(expected.begin(), expected.end() - static_cast<ptrdiff_t>(vocab));
        for (int32_t id : run.token_ids) {
          const std::vector<float> step = ref.forward({&id, 1});
          expected.insert(expected.end(), step.begin(), step.end());
        }
        REQUIRE(expected.size() == run.logits.size());
        CHECK(std::memcmp(expected.data(), run.logits.data(), expected.size() * sizeof(float)) ==
              0);
      }
    }
  }
}

void check_that_bits_depend_on_nothing(KvType type) {
  const json hashes = read_hashes();
  for (const json& entry : hashes["models"]) {
    INFO("model " << entry["name"]);
    const TempDir temp;
    const ModelFile model = ModelFile::open(make_model(entry, temp));
    if (!is_small(model)) continue;
    const std::vector<int32_t> prompt = prompt_of(130, model.config().vocab);
    const std::string expected = run_case(*backend_for(model, type, 1), prompt, 4, 512).hash();
    for (const cpu::Primitives* isa : cpu::usable_isas()) {
      const WithVariable forced("EDGELLM_ISA", isa->name);
      for (int threads : {1, 2, 3}) {
        const auto backend = backend_for(model, type, threads);
        for (int chunk : {1, 7, 64, 512}) {
          INFO(isa->name << ", " << threads << " threads, chunks of " << chunk);
          CHECK(run_case(*backend, prompt, 4, chunk).hash() == expected);
        }
      }
    }

    // Three sequences in one pass, rows interleaved: each as if it were alone.
    const auto backend = backend_for(model, type, 2, 3);
    const size_t vocab = static_cast<size_t>(model.config().vocab);
    std::vector<HashedRun> alone;
    std::vector<std::vector<int32_t>> prompts;
    for (int s = 0; s < 3; ++s) {
      prompts.push_back(prompt_of(60 + s, model.config().vocab));
      alone.push_back(run_case(*backend, prompts.back(), 1, 512, s));
    }
    const auto together = backend_for(model, type, 2, 3);
    std::vector<int32_t> ids, sequences, positions, last_rows(3);
    for (int s : {2, 0, 1}) {
      for (size_t i = 0; i < prompts[static_cast<size_t>(s)].size(); ++i) {
        ids.push_back(prompts[static_cast<size_t>(s)][i]);
        sequences.push_back(s);
        positions.push_back(static_cast<int32_t>(i));
      }
      last_rows[static_cast<size_t>(s)] = static_cast<int32_t>(ids.size()) - 1;
    }
    std::vector<float> logits(3 * vocab);
    Outputs outputs;
    outputs.rows = last_rows;
    outputs.logits = logits;
    together->forward({ids, sequences, positions}, outputs);
    const auto same_as_alone = [&](size_t row) {
      for (size_t s = 0; s < 3; ++s) {
        CHECK(std::memcmp(&logits[s * vocab], &alone[s].logits[row * vocab],
                          vocab * sizeof(float)) == 0);
      }
    };
    same_as_alone(0);
    const std::vector<int32_t> next = {alone[0].token_ids[0], alone[1].token_ids[0],
                                       alone[2].token_ids[0]};
    const std::vector<int32_t> slots = {0, 1, 2};
    const std::vector<int32_t> places = {60, 61, 62};
    outputs.rows = slots;
    together->forward({next, slots, places}, outputs);
    same_as_alone(1);
  }
}

TEST_CASE("bits do not depend on instruction set, threads, chunking or company") {
  check_that_bits_depend_on_nothing(KvType::kF32);
}

TEST_CASE("bits over int16 codes do not depend on instruction set, threads, chunking or company") {
  check_that_bits_depend_on_nothing(KvType::kI16);
}

TEST_CASE("bits over int8 codes do not depend on instruction set, threads, chunking or company") {
  check_that_bits_depend_on_nothing(KvType::kI8);
}

}  // namespace
}  // namespace edgellm
