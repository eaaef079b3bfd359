// generate(): how a run ends, what it refuses, and that it does what feeding ids by hand does.
#include "engine/generate.h"

#include <catch2/catch.hpp>

#include "base/error.h"
#include "tests/support/choose_id.h"
#include "tests/support/decode_ids.h"
#include "tests/support/hashed_models.h"
#include "tests/support/run_ids.h"

namespace edgellm {
namespace {

using namespace edgellm::test;

// A small random model and a backend with a context of 100 positions.
struct Fixture {
  TempDir temp;
  ModelFile model;
  std::unique_ptr<Backend> backend;
  std::vector<int32_t> prompt;

  Fixture() : model(make()) {
    use_chunk(16);
    prompt = prompt_of(20, model.config().vocab);
  }

  // A fresh backend that prefills in passes of `rows` rows.
  void use_chunk(int rows) {
    EngineOptions options;
    options.context = 100;
    options.threads = 2;
    options.max_rows = rows;
    backend = make_cpu_backend(model, options);
  }

  GenerateResult run(GenerateRequest request) {
    if (request.prompt_ids.empty()) request.prompt_ids = prompt;
    return generate(*backend, request);
  }

 private:
  ModelFile make() const {
    SynthOptions options;
    options.shape = source_path("tests/data/shapes/head-dim-80.json").string();
    write_synth(options, temp / "m.tmac2");
    return ModelFile::open(temp / "m.tmac2");
  }
};

ExitCode code_of(const std::function<void()>& act) {
  try {
    act();
  } catch (const Error& error) {
    INFO(error.what());
    return error.code();
  }
  return ExitCode::kSuccess;
}

// Counts the rows that another backend is fed.
class CountingBackend : public Backend {
 public:
  explicit CountingBackend(Backend& inner) : Backend(inner.model(), inner.info()), inner_(inner) {}
  int rows = 0;

  void forward(const Batch& batch, const Outputs& outputs) override {
    rows += static_cast<int>(batch.ids.size());
    inner_.forward(batch, outputs);
  }
  MemoryPlan memory() const override { return inner_.memory(); }
  HeadStats head_stats() const override { return inner_.head_stats(); }
  void set_blocks(int sequence, std::span<const int32_t> blocks) override {
    inner_.set_blocks(sequence, blocks);
  }
  void set_choice(int sequence, const Choice& choice) override {
    inner_.set_choice(sequence, choice);
  }

 private:
  Backend& inner_;
};

TEST_CASE("generate feeds nothing that the cache holds") {
  Fixture f;
  CountingBackend counting(*f.backend);
  GenerateRequest request;
  request.prompt_ids = f.prompt;
  request.max_tokens = 5;
  generate(counting, request);
  CHECK(counting.rows == static_cast<int>(f.prompt.size()) + 4);
  counting.rows = 0;
  request.n_cached = 17;
  generate(counting, request);
  CHECK(counting.rows == static_cast<int>(f.prompt.size()) - 17 + 4);
}

TEST_CASE("generate resumes behind what the cache holds as if it had fed all of it") {
  Fixture f;
  for (const double temperature : {0.0, 0.8}) {
    INFO(temperature);
    GenerateRequest request;
    request.max_tokens = 9;
    request.sampling.temperature = temperature;
    const GenerateResult first = f.run(request);
    // The last id was chosen, and never fed.
    CHECK(first.n_cached == static_cast<int>(f.prompt.size()) + 8);

    std::vector<int32_t> longer = f.prompt;
    longer.insert(longer.end(), first.token_ids.begin(), first.token_ids.end());
    longer.insert(longer.end(), {3, 1, 4});
    request.prompt_ids = longer;
    request.n_cached = first.n_cached;
    const GenerateResult second = f.run(request);
    CHECK(second.n_cached == static_cast<int>(longer.size()) + 8);
    // Back to a place within what is cached.
    request.n_cached = 11;
    CHECK(f.run(request).token_ids == second.token_ids);
    request.n_cached = static_cast<int>(longer.size()) - 1;
    CHECK(f.run(request).token_ids == second.token_ids);
    Fixture fresh;
    request.n_cached = 0;
    CHECK(fresh.run(request).token_ids == second.token_ids);
    request.n_cached = static_cast<int>(longer.size());
    CHECK_THROWS_AS(f.run(request), ContractViolation);
  }
  // Interrupted between two chunks of the prompt.
  GenerateRequest request;
  f.use_chunk(8);
  int polls = 0;
  request.interrupted = [&] { return ++polls > 1; };
  CHECK(f.run(request).n_cached == 8);
}

TEST_CASE("generate chooses the arg-max of the logits at every step, for any prefill chunk") {
  Fixture f;
  GenerateRequest request;
  request.max_tokens = 12;
  const GenerateResult result = f.run(request);
  REQUIRE(result.token_ids.size() == 12);
  REQUIRE(result.finish_reason == FinishReason::kLength);
  REQUIRE(result.inter_token_ns.size() == 11);

  std::vector<int32_t> all = f.prompt;
  all.insert(all.end(), result.token_ids.begin(), result.token_ids.end());
  const Results fed = run_ids(*f.backend, all);
  const size_t vocab = static_cast<size_t>(f.model.config().vocab);
  for (size_t i = 0; i < result.token_ids.size(); ++i) {
    const float* row = fed.logits.data() + (f.prompt.size() - 1 + i) * vocab;
    REQUIRE(result.token_ids[i] == std::max_element(row, row + vocab) - row);
  }
  for (int chunk : {1, 3, 7, 20, 1000}) {
    f.use_chunk(chunk);
    REQUIRE(f.run(request).token_ids == result.token_ids);
  }
}

TEST_CASE(
    "a run ends at a stop id, which is its last token, and never chooses one it must ignore") {
  Fixture f;
  GenerateRequest request;
  request.max_tokens = 10;
  const std::vector<int32_t> free_ids = f.run(request).token_ids;
  const std::vector<int32_t> stop = {free_ids[4]};
  request.stop_ids = stop;
  std::vector<int32_t> seen;
  request.on_token = [&](int32_t id) {
    seen.push_back(id);
    return true;
  };
  const GenerateResult stopped = f.run(request);
  const auto first = std::find(free_ids.begin(), free_ids.end(), stop[0]);
  REQUIRE(stopped.finish_reason == FinishReason::kStop);
  REQUIRE(stopped.token_ids == std::vector<int32_t>(free_ids.begin(), first + 1));
  REQUIRE(seen == stopped.token_ids);

  request.ignore_stop_ids = true;
  const GenerateResult ignoring = f.run(request);
  REQUIRE(ignoring.finish_reason == FinishReason::kLength);
  REQUIRE(ignoring.token_ids.size() == 10);
  REQUIRE(std::find(ignoring.token_ids.begin(), ignoring.token_ids.end(), stop[0]) ==
          ignoring.token_ids.end());
}

TEST_CASE("a full context ends the run: prompt and answer fill it exactly") {
  Fixture f;
  const GenerateResult result = f.run({});
  REQUIRE(result.finish_reason == FinishReason::kContext);
  REQUIRE(f.prompt.size() + result.token_ids.size() == 100);

  const std::vector<int32_t> longest = prompt_of(99, f.model.config().vocab);
  GenerateRequest request;
  request.prompt_ids = longest;
  const GenerateResult one = f.run(request);
  REQUIRE(one.finish_reason == FinishReason::kContext);
  REQUIRE(one.token_ids.size() == 1);
}

TEST_CASE("the caller can end a run, by text or by interruption") {
  Fixture f;
  GenerateRequest request;
  int calls = 0;
  request.on_token = [&](int32_t) { return ++calls < 3; };
  GenerateResult result = f.run(request);
  REQUIRE(result.finish_reason == FinishReason::kStopString);
  REQUIRE(result.token_ids.size() == 3);

  // Interrupted during prefill: 20 ids in chunks of 4, stopped after two.
  request = {};
  f.use_chunk(4);
  calls = 0;
  request.interrupted = [&] { return ++calls > 2; };
  result = f.run(request);
  REQUIRE(result.finish_reason == FinishReason::kInterrupted);
  REQUIRE(result.token_ids.empty());

  calls = 0;
  f.use_chunk(16);
  request.interrupted = [&] { return ++calls > 5; };
  result = f.run(request);
  REQUIRE(result.finish_reason == FinishReason::kInterrupted);
  REQUIRE(result.token_ids.size() == 4);  // two polls were spent on the two passes of the prompt
}

TEST_CASE("decode hands over the ids that forward chooses, and ends where it is told to") {
  Fixture f;
  check_decode(*f.backend, f.prompt);
}

TEST_CASE("decode fails at the id that makes a value not finite, not before") {
  const TempDir temp;
  const std::string path = untied_model(temp);
  check_fault_in_decode(path, [](const ModelFile& model) { return make_cpu_backend(model, {}); });
}

SamplingOptions lively(uint64_t seed) {
  SamplingOptions options;
  options.temperature = 1.5;
  options.top_k = 200;
  options.top_p = 0.95;
  options.min_p = 0.01;
  options.repeat_penalty = 1.2;
  options.seed = seed;
  return options;
}

TEST_CASE("a sampled run chooses by the logits, the ids seen and the position of each step") {
  Fixture f;
  GenerateRequest request;
  request.max_tokens = 30;
  request.sampling = lively(3);
  const std::vector<int32_t> ids = f.run(request).token_ids;
  REQUIRE(ids.size() == 30);

  std::vector<int32_t> all = f.prompt;
  all.insert(all.end(), ids.begin(), ids.end());
  const Results fed = run_ids(*f.backend, all);
  const size_t vocab = static_cast<size_t>(f.model.config().vocab);
  for (size_t at = f.prompt.size(); at < all.size(); ++at) {
    const auto logits = std::span(fed.logits).subspan((at - 1) * vocab, vocab);
    const auto here = all.begin() + static_cast<ptrdiff_t>(at);
    const test::HadIds had{
        f.prompt, {all.begin() + static_cast<ptrdiff_t>(f.prompt.size()), here}, {}};
    REQUIRE(all[at] == test::choose_id(logits, had, request.sampling, at));
  }
}

TEST_CASE("a seed gives the same ids again, for any threads and prefill chunks; another does not") {
  Fixture f;
  GenerateRequest request;
  request.max_tokens = 40;
  request.sampling = lively(1);
  const std::vector<int32_t> ids = f.run(request).token_ids;
  CHECK(f.run(request).token_ids == ids);
  for (int chunk : {1, 7}) {
    f.use_chunk(chunk);
    CHECK(f.run(request).token_ids == ids);
  }
  EngineOptions options;
  options.context = 90;
  options.threads = 1;
  options.full_head = true;
  const auto one_thread = make_cpu_backend(f.model, options);
  request.prompt_ids = f.prompt;
  CHECK(generate(*one_thread, request).token_ids == ids);

  request.sampling.seed = 2;
  CHECK(f.run(request).token_ids != ids);
}

TEST_CASE("a sampled run ends at stop ids, and never chooses one it must ignore") {
  Fixture f;
  GenerateRequest request;
  request.max_tokens = 40;
  request.sampling = lively(1);
  const std::vector<int32_t> free_ids = f.run(request).token_ids;
  const std::vector<int32_t> stop = {free_ids[6]};
  const auto end = std::find(free_ids.begin(), free_ids.end(), stop[0]);
  request.stop_ids = stop;
  const GenerateResult stopped = f.run(request);
  CHECK(stopped.finish_reason == FinishReason::kStop);
  CHECK(stopped.token_ids == std::vector<int32_t>(free_ids.begin(), end + 1));

  request.ignore_stop_ids = true;
  request.max_tokens = -1;
  const GenerateResult ignoring = f.run(request);
  CHECK(ignoring.finish_reason == FinishReason::kContext);
  CHECK(f.prompt.size() + ignoring.token_ids.size() == 100);
  CHECK(std::count(ignoring.token_ids.begin(), ignoring.token_ids.end(), stop[0]) == 0);
}

TEST_CASE("log-probabilities are of the model's own logits and change no id") {
  Fixture f;
  const bool sampled = GENERATE(false, true);
  GenerateRequest request;
  request.max_tokens = 12;
  if (sampled) request.sampling = lively(4);
  const std::vector<int32_t> ids = f.run(request).token_ids;
  std::vector<TokenLogprobs> logprobs;
  size_t n_tokens = 0;
  request.top_logprobs = 3;
  request.on_logprobs = [&](const TokenLogprobs& of_token) { logprobs.push_back(of_token); };
  request.on_token = [&](int32_t) { return logprobs.size() == ++n_tokens; };
  CHECK(f.run(request).token_ids == ids);
  REQUIRE(logprobs.size() == ids.size());

  std::vector<int32_t> all = f.prompt;
  all.insert(all.end(), ids.begin(), ids.end());
  const Results fed = run_ids(*f.backend, all);
  const size_t vocab = static_cast<size_t>(f.model.config().vocab);
  for (size_t i = 0; i < ids.size(); ++i) {
    const auto logits = std::span(fed.logits).subspan((f.prompt.size() - 1 + i) * vocab, vocab);
    CHECK(logprobs[i].logprob == Approx(log_probability(logits, ids[i])).margin(1e-6));
    REQUIRE(logprobs[i].top.size() == 3);
    if (!sampled) CHECK(logprobs[i].top[0].id == ids[i]);
  }
}

TEST_CASE("generate refuses what cannot run") {
  Fixture f;
  const int vocab = f.model.config().vocab;
  REQUIRE(code_of([&] { generate(*f.backend, {}); }) == ExitCode::kUsage);
  for (int32_t bad : {-1, vocab}) {
    const std::vector<int32_t> ids = {1, bad};
    GenerateRequest request;
    request.prompt_ids = ids;
    REQUIRE(code_of([&] { generate(*f.backend, request); }) == ExitCode::kUsage);
  }
  const std::vector<int32_t> too_long = prompt_of(100, vocab);
  GenerateRequest request;
  request.prompt_ids = too_long;
  REQUIRE(code_of([&] { generate(*f.backend, request); }) == ExitCode::kPromptDoesNotFit);

  std::vector<int32_t> every_id(static_cast<size_t>(vocab));
  std::iota(every_id.begin(), every_id.end(), 0);
  request.prompt_ids = f.prompt;
  request.stop_ids = every_id;
  request.ignore_stop_ids = true;
  REQUIRE(code_of([&] { generate(*f.backend, request); }) == ExitCode::kUsage);
  request.sampling.temperature = 1;
  REQUIRE(code_of([&] { generate(*f.backend, request); }) == ExitCode::kUsage);

  request = {};
  request.prompt_ids = f.prompt;
  request.sampling.top_p = 2;
  REQUIRE(code_of([&] { generate(*f.backend, request); }) == ExitCode::kUsage);
  request.sampling = {};
  for (int bad : {-1, vocab + 1}) {
    request.top_logprobs = bad;
    REQUIRE(code_of([&] { generate(*f.backend, request); }) == ExitCode::kUsage);
  }
}

}  // namespace
}  // namespace edgellm
