// Whole models on the GPU: the hashes that the CPU made, and the determinism contract.
#include <catch2/catch.hpp>
#include <cstdlib>
#include <cstring>
#include <iostream>

#include "engine/backend.h"
#include "engine/generate.h"
#include "kernels/cuda/gpu_list.h"
#include "tests/support/hashed_models.h"
#include "tests/support/skip.h"

namespace edgellm {
namespace {

using nlohmann::json;
using namespace edgellm::test;

bool no_gpu() {
  const GpuList list = list_gpus();
  if (!list.problem.empty()) skip(list.problem);
  return !list.problem.empty();
}

std::unique_ptr<Backend> gpu_backend(const ModelFile& model, KvType type, bool use_graph = true,
                                     int sequences = 1) {
  EngineOptions options;
  options.context = 160;
  options.kv_type = type;
  options.sequences = sequences;
  options.max_rows = 512;
  options.use_graph = use_graph;
  return make_cuda_backend(model, options);
}

TEST_CASE("the GPU meets the hashes of every listed model", "[gpu]") {
  if (no_gpu()) return;
  const json hashes = read_hashes();
  for (const json& entry : hashes["models"]) {
    INFO("model " << entry["name"]);
    const TempDir temp;
    const ModelFile model = ModelFile::open(make_model(entry, temp));
    for (const auto& [kv, cases] : entry["kv"].items()) {
      const auto backend = gpu_backend(model, kv == "f32" ? KvType::kF32 : KvType::kF16);
      for (const json& c : cases) {
        const int n = c["n"];
        INFO("KV " << kv << ", prompt of " << n << " ids");
        const std::vector<int32_t> prompt = prompt_of(n, model.config().vocab);
        for (int chunk : {512, 64, 7, 1}) {
          if (chunk < 512 && (model.parameter_count() > 20'000'000 || n < 64)) continue;
          INFO("chunks of " << chunk);
          const HashedRun run = run_case(*backend, prompt, kDecodedTokens, chunk);
          CHECK(c["token_ids"].get<std::vector<int32_t>>() == run.token_ids);
          CHECK(c["logits_xxh3"] == run.hash());
        }
      }
    }
  }
}

TEST_CASE("graph and eager decode choose the same ids", "[gpu]") {
  if (no_gpu()) return;
  const json hashes = read_hashes();
  for (const json& entry : hashes["models"]) {
    INFO("model " << entry["name"]);
    const TempDir temp;
    const ModelFile model = ModelFile::open(make_model(entry, temp));
    const std::vector<int32_t> prompt = prompt_of(65, model.config().vocab);
    std::vector<std::vector<int32_t>> ids(2);
    for (bool use_graph : {false, true}) {
      const auto backend = gpu_backend(model, KvType::kF16, use_graph);
      GenerateRequest request;
      request.prompt_ids = prompt;
      request.max_tokens = 40;
      ids[use_graph] = generate(*backend, request).token_ids;
    }
    CHECK(ids[0] == ids[1]);
  }
}

}  // namespace
}  // namespace edgellm
