// Whole models on the GPU: the hashes that the CPU made, and the determinism contract.
#include <catch2/catch.hpp>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <stdexcept>

#include "engine/backend.h"
#include "engine/generate.h"
#include "tests/support/decode_ids.h"
#include "tests/support/gpu.h"
#include "tests/support/hashed_models.h"

namespace edgellm {
namespace {

using nlohmann::json;
using namespace edgellm::test;

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
    for (const KvType type : hashed_kv_types(model)) {
      const auto backend = gpu_backend(model, type);
      for (const json& c : cases_of(entry, type)) {
        const int n = c["n"];
        INFO("KV " << to_string(type) << ", prompt of " << n << " ids");
        const std::vector<int32_t> prompt = prompt_of(n, model.config().vocab);
        for (int chunk : {512, 64, 7, 1}) {
          if (chunk < 512 && (!is_small(model) || n < 64)) continue;
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
      const auto backend = gpu_backend(model, KvType::kI16, use_graph);
      GenerateRequest request;
      request.prompt_ids = prompt;
      request.max_tokens = 40;
      ids[use_graph] = generate(*backend, request).token_ids;
      const StepLaunches step = backend->step_launches(1);
      CHECK((use_graph ? step.launches == 1 : step.graph_nodes == 0));
      CHECK(std::max(step.launches, step.graph_nodes) >=
            static_cast<size_t>(5 * model.config().layers + 3));
    }
    CHECK(ids[0] == ids[1]);
  }
}

TEST_CASE("a seed gives the CPU's ids on the GPU", "[gpu]") {
  if (no_gpu()) return;
  const TempDir temp;
  const ModelFile model = ModelFile::open(changed_model(temp));
  const std::vector<int32_t> prompt = prompt_of(65, model.config().vocab);
  GenerateRequest request;
  request.prompt_ids = prompt;
  request.max_tokens = 60;
  request.sampling.temperature = 1.5;
  request.sampling.top_p = 0.95;
  request.sampling.repeat_penalty = 1.2;
  const auto gpu = gpu_backend(model, KvType::kI16);
  const auto cpu = make_cpu_backend(model, {});
  for (uint64_t seed : {0, 1, 2}) {
    INFO("seed " << seed);
    request.sampling.seed = seed;
    CHECK(generate(*gpu, request).token_ids == generate(*cpu, request).token_ids);
  }
}

TEST_CASE("decode on the GPU hands over the ids that forward chooses", "[gpu]") {
  if (no_gpu()) return;
  const TempDir temp;
  const ModelFile model = ModelFile::open(changed_model(temp));
  for (bool use_graph : {false, true}) {
    EngineOptions options;
    options.context = 100;
    options.max_rows = 16;
    options.use_graph = use_graph;
    check_decode(*make_cuda_backend(model, options), prompt_of(20, model.config().vocab));
  }
}

TEST_CASE("decode on the GPU fails at the id that makes a value not finite", "[gpu]") {
  if (no_gpu()) return;
  for (bool use_graph : {false, true}) {
    const TempDir temp;
    const std::string path = untied_model(temp);
    check_fault_in_decode(
        path, [&](const ModelFile& model) { return gpu_backend(model, KvType::kI16, use_graph); });
  }
}

TEST_CASE("contexts across chunk borders give the CPU's logits on the GPU", "[gpu]") {
  if (no_gpu()) return;
  const TempDir temp;
  const ModelFile model = ModelFile::open(changed_model(temp, {{"max_position_embeddings", 4200}}));
  for (const KvType type : kKvTypes) {
    EngineOptions options;
    options.kv_type = type;
    options.max_rows = 512;
    const auto cpu = make_cpu_backend(model, options);
    const auto gpu = make_cuda_backend(model, options);
    for (int n : {62, 63, 64, 65, 2047, 2048, 4095, 4096}) {
      INFO(n << " positions, KV " << to_string(type));
      const std::vector<int32_t> prompt = prompt_of(n, model.config().vocab);
      const HashedRun expected = run_case(*cpu, prompt, 3, 512);
      const HashedRun actual = run_case(*gpu, prompt, 3, 512);
      CHECK(actual.token_ids == expected.token_ids);
      CHECK(actual.hash() == expected.hash());
      // The same steps through decode(), whose attention is split over blocks in another way when
      // it comes from a graph of one row.
      CHECK(ids_by_decode(*gpu, expected.token_ids[0], n, 2, 1000) ==
            std::vector<int32_t>(expected.token_ids.begin() + 1, expected.token_ids.end()));
    }
  }
}

TEST_CASE("rows of a batch on the GPU are what each would be alone", "[gpu]") {
  if (no_gpu()) return;
  constexpr size_t kSequences = 8;
  const TempDir temp;
  const ModelFile model = ModelFile::open(changed_model(temp));
  const size_t vocab = static_cast<size_t>(model.config().vocab);
  for (bool use_graph : {false, true}) {
    const auto backend = gpu_backend(model, KvType::kI16, use_graph, kSequences);
    std::vector<HashedRun> alone;
    std::vector<int32_t> ids, sequences, positions, rows;
    for (size_t s = 0; s < kSequences; ++s) {
      const int n = 58 + static_cast<int>(s);
      alone.push_back(
          run_case(*backend, prompt_of(n, model.config().vocab), 1, 512, static_cast<int>(s)));
      ids.push_back(alone[s].token_ids[0]);
      sequences.push_back(static_cast<int32_t>(s));
      positions.push_back(n);
      rows.push_back(static_cast<int32_t>(s));
    }
    for (size_t n : {1, 2, 3, 7, 8}) {
      INFO(n << " rows" << (use_graph ? ", graph" : ", eager"));
      const Batch batch{std::span(ids).first(n), std::span(sequences).first(n),
                        std::span(positions).first(n)};
      std::vector<float> logits(n * vocab);
      std::vector<int32_t> chosen(n);
      Outputs outputs;
      outputs.rows = std::span(rows).first(n);
      outputs.logits = logits;
      backend->forward(batch, outputs);
      outputs.logits = {};
      outputs.ids = chosen;
      backend->forward(batch, outputs);
      for (size_t s = 0; s < n; ++s) {
        const float* expected = alone[s].logits.data() + vocab;  // after the decoded id
        CHECK(std::memcmp(&logits[s * vocab], expected, vocab * sizeof(float)) == 0);
        CHECK(chosen[s] == std::max_element(expected, expected + vocab) - expected);
      }
    }
  }
}

TEST_CASE("a pass has fewer rows where the GPU has not the memory for more") {
  const TempDir temp;
  const ModelFile model = ModelFile::open(changed_model(temp));
  EngineOptions options;
  options.max_rows = 2048;
  const auto bytes_for = [&](int rows) {
    EngineOptions with_rows = options;
    with_rows.max_rows = rows;
    return plan_cuda_memory(model, with_rows).total();
  };
  if (bytes_for(2048) == 0) return skip("built without CUDA");
  CHECK(cuda_fitting_rows(model, options, bytes_for(2048)) == 2048);
  CHECK(cuda_fitting_rows(model, options, bytes_for(2048) - 1) == 1024);
  CHECK(cuda_fitting_rows(model, options, bytes_for(512)) == 512);
  CHECK(cuda_fitting_rows(model, options, 0) == kLeastGpuRows);
  options.sequences = 700;
  CHECK(cuda_fitting_rows(model, options, 0) == 1024);
  options.max_rows = 100;
  options.sequences = 1;
  CHECK(cuda_fitting_rows(model, options, 0) == 100);
}

TEST_CASE("codes that are no ternary value are found on the GPU", "[gpu]") {
  if (no_gpu()) return;
  const TempDir temp;
  const std::string path = changed_model(temp);
  // Three of the four codes of a byte.
  damage(path, "layers.1.gate", 4321, "\x2a");
  const ModelFile model = ModelFile::open(path);
  std::string message;
  try {
    gpu_backend(model, KvType::kI16);
  } catch (const Error& error) {
    CHECK(error.code() == ExitCode::kModelFile);
    message = error.what();
  }
  CHECK(message.find(": 3 ternary weights have the code 10") != std::string::npos);
}

TEST_CASE("progress of the upload ends with all bytes, and can end the work", "[gpu]") {
  if (no_gpu()) return;
  const TempDir temp;
  const ModelFile model = ModelFile::open(changed_model(temp));
  uint64_t last = 0;
  uint64_t total = 1;
  make_cuda_backend(model, {}, [&](std::string_view, uint64_t done, uint64_t all) {
    CHECK(done >= last);
    last = done;
    total = all;
  });
  CHECK(last == total);
  const auto stop = [](std::string_view, uint64_t, uint64_t) { throw std::runtime_error("stop"); };
  CHECK_THROWS_AS(make_cuda_backend(model, {}, stop), std::runtime_error);
}

TEST_CASE("a model that does not fit is told with the context that would") {
  const TempDir temp;
  const ModelFile model = ModelFile::open(changed_model(temp, {{"max_position_embeddings", 4200}}));
  const MemoryPlan plan = plan_cuda_memory(model, {});
  if (plan.total() == 0) {
    skip("built without CUDA");
    return;
  }
  CHECK(cuda_memory_problem(model, {}, plan.total()).empty());
  CHECK(cuda_memory_problem(model, {}, plan.weights).ends_with("; no context would fit"));
  for (uint64_t free_bytes : {plan.total() - 1, plan.total() * 3 / 4, plan.total() / 2}) {
    const std::string problem = cuda_memory_problem(model, {}, free_bytes);
    INFO(problem);
    const size_t at = problem.find("(-c ");
    REQUIRE(at != std::string::npos);
    EngineOptions options;
    options.context = std::stoi(problem.substr(at + 4));
    options.max_rows = std::min(options.max_rows, options.context);
    CHECK(options.context < 4200);
    CHECK(plan_cuda_memory(model, options).total() <= free_bytes);
    options.context += kAttentionChunk;
    CHECK((options.context >= 4200 || plan_cuda_memory(model, options).total() > free_bytes));
  }
}

TEST_CASE("a pool of blocks takes what a GPU has left, and no more") {
  const TempDir temp;
  const ModelFile model = ModelFile::open(changed_model(temp));
  EngineOptions options;
  options.sequences = 40;
  options.kv_blocks = 1;
  const MemoryPlan least = plan_cuda_memory(model, options);
  if (least.total() == 0) {
    skip("built without CUDA");
    return;
  }
  CHECK(cuda_kv_blocks(model, options, 0) == 0);
  CHECK(cuda_kv_blocks(model, options, least.total() - 1) == 0);
  CHECK(cuda_kv_blocks(model, options, least.total()) == 1);
  for (const uint64_t more : {1'000'000, 1'234'567, 98'765'432}) {
    const uint64_t free_bytes = least.total() + more;
    options.kv_blocks = cuda_kv_blocks(model, options, free_bytes);
    CHECK(options.kv_blocks > 1);
    CHECK(plan_cuda_memory(model, options).total() <= free_bytes);
    CHECK(cuda_memory_problem(model, options, free_bytes).empty());
    const int fitting = options.kv_blocks++;
    CHECK(plan_cuda_memory(model, options).total() > free_bytes);
    CHECK(cuda_memory_problem(model, options, free_bytes)
              .ends_with("a KV cache of " + std::to_string(fitting) + " blocks would fit"));
  }
  CHECK(cuda_memory_problem(model, options, 1000).ends_with("; no KV cache would fit"));
}

}  // namespace
}  // namespace edgellm
