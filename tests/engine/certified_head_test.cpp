// Greedy decode with the certified head chooses the ids of the full head: whole runs, and the
// hidden states of real text.
#include "kernels/certified_head.h"

#include <catch2/catch.hpp>
#include <numeric>
#include <span>
#include <utility>

#include "engine/backend.h"
#include "engine/views.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/head_codes.h"
#include "kernels/cpu/isa.h"
#include "tests/support/gpu.h"
#include "tests/support/hashed_models.h"
#include "tests/support/run_ids.h"

namespace edgellm {
namespace {

using namespace edgellm::test;

ModelFile demo_model() {
  return ModelFile::open(source_path("model/demo/storyteller.tmac2").string());
}

EngineOptions options_of(int sequences, int context, bool full_head) {
  EngineOptions options;
  options.context = context;
  options.sequences = sequences;
  options.max_rows = 64;
  options.threads = 2;
  options.full_head = full_head;
  return options;
}

// Decodes `steps` tokens of every sequence on both backends, each fed with its own choices. Every
// third step bans what was chosen before, as a run that ignores stop ids does.
void require_same_ids(Backend& full, Backend& certified, int sequences, int steps) {
  const int vocab = full.model().config().vocab;
  const size_t n = static_cast<size_t>(sequences);
  std::vector<int32_t> slots(n);
  std::iota(slots.begin(), slots.end(), 0);
  std::vector<int32_t> full_ids = prompt_of(sequences, vocab);
  std::vector<int32_t> certified_ids = full_ids;
  for (int step = 0; step < steps; ++step) {
    const std::vector<int32_t> positions(n, step);
    const std::vector<int32_t> banned(step % 3 == 2 ? 1 : 0, full_ids[0]);
    const auto choose = [&](Backend& backend, std::vector<int32_t>& ids) {
      std::vector<int32_t> chosen(n, -1);
      for (const int32_t slot : slots) {
        backend.set_choice(slot, {.sampling = {}, .banned = banned, .prompt = {}});
      }
      Outputs outputs;
      outputs.rows = slots;
      outputs.ids = chosen;
      backend.forward({ids, slots, positions}, outputs);
      ids = chosen;
    };
    choose(full, full_ids);
    choose(certified, certified_ids);
    INFO("step " << step);
    REQUIRE(full_ids == certified_ids);
  }
  REQUIRE(full.head_stats().steps == 0);
  REQUIRE(full.memory().certified_head == 0);
  const HeadStats stats = certified.head_stats();
  REQUIRE(stats.steps >= static_cast<int64_t>(sequences) * (steps - 16));
  REQUIRE(stats.rescored >= stats.steps);
  REQUIRE(stats.rescored <= (20 + vocab / 1000) * stats.steps);
  REQUIRE(certified.memory().certified_head >=
          static_cast<uint64_t>(vocab) * static_cast<uint64_t>(full.model().config().dim) * 3 / 4);
}

TEST_CASE("the CPU decodes the same ids with the certified head, one sequence and several") {
  const ModelFile model = demo_model();
  for (const auto& [sequences, steps] : {std::pair{1, 500}, {3, 60}}) {
    const auto full = make_cpu_backend(model, options_of(sequences, 512, true));
    const auto certified = make_cpu_backend(model, options_of(sequences, 512, false));
    require_same_ids(*full, *certified, sequences, steps);
  }
}

// Rules of sequences: some keep few ids, some all; with penalties, biases and bans.
Choice mixed_choice(int sequence, std::span<const int32_t> banned) {
  Choice choice;
  SamplingOptions& sampling = choice.sampling;
  sampling.seed = static_cast<uint64_t>(sequence);
  sampling.temperature = 0.9;
  sampling.top_k = 40;
  sampling.top_p = 0.95;
  switch (sequence % 6) {
    case 1:
      sampling = {};
      sampling.repeat_penalty = 1.5;  // greedy
      break;
    case 2:
      sampling.top_k = 0;  // the full head's
      break;
    case 3:
      sampling.frequency_penalty = 0.5;
      sampling.logit_bias = {{7, 9.5f}, {300, 10.25f}};
      break;
    case 4:
      choice.banned = banned;
      sampling.min_p = 0.05;
      break;
    case 5:
      sampling.top_k = 5;
      sampling.temperature = 3;
      break;
    default:
      break;
  }
  return choice;
}

// The ids of all steps of a sequence for each of `choices`, fed with its own.
std::vector<int32_t> chosen_ids(Backend& backend, std::span<const Choice> choices, int steps) {
  std::vector<int32_t> slots(choices.size());
  std::iota(slots.begin(), slots.end(), 0);
  for (const int32_t slot : slots) {
    backend.set_choice(slot, choices[static_cast<size_t>(slot)]);
  }
  std::vector<int32_t> ids =
      prompt_of(static_cast<int>(choices.size()), backend.model().config().vocab);
  std::vector<int32_t> all;
  for (int step = 0; step < steps; ++step) {
    const std::vector<int32_t> positions(choices.size(), step);
    std::vector<int32_t> chosen(choices.size(), -1);
    Outputs outputs;
    outputs.rows = slots;
    outputs.ids = chosen;
    backend.forward({ids, slots, positions}, outputs);
    ids = chosen;
    all.insert(all.end(), ids.begin(), ids.end());
  }
  return all;
}

constexpr int32_t kBanned[] = {13, 260, 4094};

TEST_CASE("sampled sequences get the same ids from the certified head, for any rules together") {
  const ModelFile model = demo_model();
  constexpr int kSequences = 7;
  constexpr int kSteps = 60;
  std::vector<Choice> choices;
  for (int i = 0; i < kSequences; ++i) choices.push_back(mixed_choice(i, kBanned));
  std::vector<std::vector<int32_t>> answers;
  for (const bool full_head : {true, false}) {
    const auto backend = make_cpu_backend(model, options_of(kSequences, 128, full_head));
    answers.push_back(chosen_ids(*backend, choices, kSteps));
    const HeadStats stats = backend->head_stats();
    // Six of seven rows of a step, once it is built.
    REQUIRE(stats.steps == (full_head ? 0 : 6 * (kSteps - 2)));
    REQUIRE(stats.rescored <= 200 * stats.steps);
  }
  REQUIRE(answers[0] == answers[1]);
}

TEST_CASE("a run of a few tokens on the CPU does not build the copy of the head") {
  const ModelFile model = demo_model();
  const auto backend = make_cpu_backend(model, options_of(1, 64, false));
  const std::vector<int32_t> prompt = prompt_of(5, model.config().vocab);
  run_case(*backend, prompt, kDecodedTokens, 5);  // with logits, so by the full head
  REQUIRE(backend->memory().certified_head == 0);
  REQUIRE(backend->head_stats().steps == 0);
}

TEST_CASE("20,000 hidden states of the demo model: certified equals full") {
  const ModelFile model = demo_model();
  const DenseMatrix head = view(model.weights().head);
  const size_t dim = static_cast<size_t>(head.cols);
  const size_t vocab = static_cast<size_t>(head.rows);
  cpu::Pool pool(2, cpu::primitives());
  std::vector<uint8_t> codes(vocab * cpu::head_row_bytes(head.cols));
  std::vector<CertifiedRow> row_bounds(vocab);
  cpu::build_certified_head(head, codes.data(), row_bounds.data(), pool);
  const CertifiedHead built{codes.data(), row_bounds.data(), head.rows, head.cols};

  // Normed states of random prompts, and each with three lots of noise.
  constexpr int kRows = 64;
  constexpr int kPrompts = 80;
  const auto backend = make_cpu_backend(model, options_of(1, kRows, true));
  const std::vector<float> ones(dim, 1.0f);
  std::vector<int32_t> row_list(kRows);
  std::iota(row_list.begin(), row_list.end(), 0);
  Random random(5);
  HeadStats stats;
  for (int p = 0; p < kPrompts; ++p) {
    std::vector<int32_t> ids;
    for (int i = 0; i < kRows; ++i) ids.push_back(random.below(head.rows));
    const Results run = run_ids(*backend, ids, 0, /*with_hidden=*/true);
    std::vector<float> x(run.hidden.end() - static_cast<ptrdiff_t>(kRows * dim), run.hidden.end());
    for (float noise : {0.0f, 1e-3f, 0.1f, 1.0f}) {
      for (float& value : x) value += noise * static_cast<float>(random.uniform() - 0.5);
      std::vector<float> normed(x.size());
      std::vector<float> logits(kRows * vocab);
      std::vector<int32_t> full(kRows), certified(kRows), rescored(kRows);
      int32_t fault = 0;
      HeadArgs args{x.data(),      row_list.data(), ones.data(), 1e-5f, head,  normed.data(),
                    logits.data(), full.data(),     nullptr,     0,     kRows, 0,
                    &fault};
      cpu::head(args, pool);
      args.argmax = certified.data();
      cpu::certified_head({args, built, rescored.data()}, pool);
      stats.add(rescored);
      REQUIRE(fault == 0);
      REQUIRE(full == certified);
    }
  }
  REQUIRE(stats.steps >= 20'000);
  REQUIRE(stats.rescored <= 10 * stats.steps);
}

TEST_CASE("the GPU decodes 20,000 of the same ids with the certified head", "[gpu]") {
  if (no_gpu()) return;
  const ModelFile model = demo_model();
  for (const auto& [sequences, steps] : {std::pair{1, 2000}, {3, 500}, {8, 2000}, {11, 100}}) {
    const auto full = make_cuda_backend(model, options_of(sequences, 2048, true));
    const auto certified = make_cuda_backend(model, options_of(sequences, 2048, false));
    require_same_ids(*full, *certified, sequences, steps);
  }
}

TEST_CASE("sampled sequences get the CPU's ids from the GPU's certified head", "[gpu]") {
  if (no_gpu()) return;
  const ModelFile model = demo_model();
  constexpr int kSteps = 100;
  for (const int sequences : {1, 3, 7, 40}) {
    for (const bool all_keep_few : {true, false}) {
      INFO(sequences << " sequences, all keep few: " << all_keep_few);
      std::vector<Choice> choices;
      for (int i = 0; i < sequences; ++i) {
        choices.push_back(mixed_choice(i, kBanned));
        if (all_keep_few && i % 6 == 2) choices.back().sampling.top_k = 50;
      }
      if (!all_keep_few) choices[0].sampling.top_k = 0;
      const auto cpu = make_cpu_backend(model, options_of(sequences, 128, true));
      const auto gpu = make_cuda_backend(model, options_of(sequences, 128, false));
      REQUIRE(chosen_ids(*gpu, choices, kSteps) == chosen_ids(*cpu, choices, kSteps));
      const HeadStats stats = gpu->head_stats();
      REQUIRE(stats.steps == (all_keep_few ? sequences * kSteps : 0));
      REQUIRE(stats.rescored <= 300 * stats.steps);
    }
  }
}

TEST_CASE("the GPU decodes the same ids of synthetic shapes with the certified head", "[gpu]") {
  if (no_gpu()) return;
  const nlohmann::json hashes = read_hashes();
  for (const nlohmann::json& entry : hashes["models"]) {
    INFO("model " << entry["name"]);
    const TempDir temp;
    const ModelFile model = ModelFile::open(make_model(entry, temp));
    if (model.weights().ternary_head.codes != nullptr) continue;  // needs no certified head
    for (int sequences : {1, 2}) {
      const auto full = make_cuda_backend(model, options_of(sequences, 160, true));
      const auto certified = make_cuda_backend(model, options_of(sequences, 160, false));
      require_same_ids(*full, *certified, sequences, 100);
    }
  }
}

}  // namespace
}  // namespace edgellm
