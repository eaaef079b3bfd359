// Continuous batching: every request gets what generate() gives it alone.
#include "engine/scheduler.h"

#include <malloc.h>

#include <catch2/catch.hpp>
#include <numeric>
#include <stdexcept>

#include "engine/generate.h"
#include "tests/support/decode_ids.h"
#include "tests/support/gpu.h"
#include "tests/support/hashed_models.h"

namespace edgellm {
namespace {

using namespace edgellm::test;

constexpr int kContext = 200;
constexpr int kChunk = kKvBlockPositions;

// A small random model and what generate() makes of requests, on the CPU.
struct Fixture {
  TempDir temp;
  ModelFile model;
  std::unique_ptr<Backend> alone;

  explicit Fixture(const nlohmann::json& changes = nlohmann::json::object())
      : model(ModelFile::open(changed_model(temp, changes))) {
    run_alone_from(model);
  }

  // Sets what expected() asks.
  void run_alone_from(const ModelFile& file) {
    EngineOptions options;
    options.context = kContext;
    options.threads = 2;
    alone = make_cpu_backend(file, options);
  }

  EngineOptions options(int sequences, int kv_blocks, int max_rows = 0) const {
    EngineOptions options;
    options.context = kContext;
    options.threads = 2;
    options.sequences = sequences;
    options.kv_blocks = kv_blocks;
    options.max_rows = max_rows > 0 ? max_rows : std::max(sequences, 100);
    return options;
  }
  std::unique_ptr<Backend> backend(int sequences, int kv_blocks, int max_rows = 0) const {
    return make_cpu_backend(model, options(sequences, kv_blocks, max_rows));
  }

  // What the request should get; its on_token is asked as a new one would be.
  SequenceResult expected(const SequenceRequest& request) {
    GenerateRequest one;
    one.prompt_ids = request.prompt_ids;
    one.max_tokens = request.max_tokens;
    one.stop_ids = request.stop_ids;
    one.ignore_stop_ids = request.ignore_stop_ids;
    one.sampling = request.sampling;
    one.on_token = request.on_token;
    SequenceResult result;
    try {
      GenerateResult run = generate(*alone, one);
      result.token_ids = std::move(run.token_ids);
      result.finish_reason = run.finish_reason;
    } catch (const Error& error) {
      result.failure = {error.code(), error.what()};
    }
    return result;
  }
};

SamplingOptions lively(uint64_t seed) {
  SamplingOptions options;
  options.temperature = 1.5;
  options.top_k = 200;
  options.top_p = 0.95;
  options.repeat_penalty = 1.2;
  options.seed = seed;
  return options;
}

// Half of them sampled, with any of the filters, penalties and biases.
SamplingOptions mixed_sampling(Random& random, int vocab) {
  const bool samples = random.below(2) == 0;
  SamplingOptions options = samples ? lively(random.bits()) : SamplingOptions();
  if (samples && random.below(2) == 0) options.top_k = random.below(3) * 20;
  if (samples && random.below(2) == 0) options.top_p = 1;
  if (samples && random.below(3) == 0) options.min_p = 0.02;
  options.repeat_penalty = random.below(3) == 0 ? 1.3 : 1;
  if (random.below(4) == 0) options.frequency_penalty = 0.3;
  if (random.below(4) == 0) options.presence_penalty = 0.5;
  if (random.below(4) == 0) {
    for (int id = random.below(7); id < vocab; id += 1 + random.below(50)) {
      options.logit_bias.push_back({id, random.uniform(-3.0f, 3.0f)});
    }
  }
  return options;
}

// Ends a run at the n-th id.
std::function<bool(int32_t)> stops_after(int n) {
  return [n, seen = 0](int32_t) mutable { return ++seen < n; };
}

// Requests of every kind: lengths around chunks and blocks, greedy and sampled, ends of all sorts.
std::vector<SequenceRequest> mixed_requests(Fixture& f, int count, uint64_t seed) {
  Random random(seed);
  const int vocab = f.model.config().vocab;
  const int lengths[] = {1, 31, 33, 63, 64, 65, 127, 128, 129, 5, 198, 199};
  const std::vector<int32_t> system = prompt_of(2 * kChunk, vocab);
  std::vector<SequenceRequest> requests;
  for (int i = 0; i < count; ++i) {
    SequenceRequest request;
    const int n = lengths[random.below(12)];
    for (int p = 0; p < n; ++p) request.prompt_ids.push_back(random.below(vocab));
    // Some begin alike.
    if (random.below(3) == 0) {
      std::copy_n(system.begin(), std::min(n, 2 * kChunk), request.prompt_ids.begin());
    }
    const int limits[] = {1, 2, 7, 30, 1000, -1};
    request.max_tokens = limits[random.below(6)];
    request.sampling = mixed_sampling(random, vocab);
    // One id in ten or so: most runs meet one sooner or later.
    if (random.below(3) == 0) {
      for (int s = 0; s < vocab / 40; ++s) request.stop_ids.push_back(random.below(vocab));
      request.ignore_stop_ids = random.below(2) == 0;
    }
    if (random.below(6) == 0) request.on_token = stops_after(1 + random.below(20));
    requests.push_back(std::move(request));
  }
  return requests;
}

// Submits copies of the requests and steps until all have ended.
std::vector<SequenceResult> run_all(Scheduler& scheduler,
                                    const std::vector<SequenceRequest>& requests) {
  std::vector<SequenceResult> results(requests.size());
  std::vector<int> ends(requests.size());
  std::vector<std::vector<int32_t>> handed_over(requests.size());
  for (size_t i = 0; i < requests.size(); ++i) {
    SequenceRequest request = requests[i];
    request.on_token = [&handed_over, i, on_token = request.on_token](int32_t id) {
      handed_over[i].push_back(id);
      return !on_token || on_token(id);
    };
    request.on_end = [&results, &ends, i](SequenceResult&& result) {
      results[i] = std::move(result);
      ++ends[i];
    };
    scheduler.submit(std::move(request));
  }
  while (scheduler.step()) {
  }
  for (size_t i = 0; i < requests.size(); ++i) {
    INFO("request " << i);
    CHECK(ends[i] == 1);
    CHECK(handed_over[i] == results[i].token_ids);
    if (!results[i].token_ids.empty()) {
      CHECK(results[i].inter_token_ns.size() == results[i].token_ids.size() - 1);
    }
    CHECK(results[i].total_ns >= results[i].ttft_ns);
  }
  CHECK(scheduler.blocks().used() == 0);
  CHECK(scheduler.active() == 0);
  CHECK(scheduler.waiting() == 0);
  return results;
}

void check_same(const SequenceResult& result, const SequenceResult& expected) {
  CHECK(result.token_ids == expected.token_ids);
  REQUIRE(result.failure.has_value() == expected.failure.has_value());
  if (expected.failure) {
    CHECK(result.failure->code == expected.failure->code);
    CHECK(result.failure->message == expected.failure->message);
  } else {
    CHECK(result.finish_reason == expected.finish_reason);
  }
}

void check_equal(const std::vector<SequenceResult>& results,
                 const std::vector<SequenceResult>& expected) {
  for (size_t i = 0; i < expected.size(); ++i) {
    INFO("request " << i);
    check_same(results[i], expected[i]);
  }
}

std::vector<SequenceResult> expected_of(Fixture& f, const std::vector<SequenceRequest>& requests) {
  std::vector<SequenceResult> expected;
  for (const SequenceRequest& request : requests) expected.push_back(f.expected(request));
  return expected;
}

TEST_CASE("requests get the ids of generate(), beside any others and with any memory") {
  Fixture f;
  const std::vector<SequenceRequest> requests = mixed_requests(f, 60, 5);
  const std::vector<SequenceResult> expected = expected_of(f, requests);
  // A request needs 4 blocks at most.
  struct Case {
    int sequences, kv_blocks, max_rows, max_batch_tokens;
  };
  const Case cases[] = {{1, 4, 256, 0},   {7, 28, 100, 0}, {64, 256, 128, 0}, {64, 256, 80, 1},
                        {64, 5, 170, 90}, {7, 11, 7, 0},   {3, 4, 33, 0},     {64, 100, 300, 0}};
  for (const Case& c : cases) {
    INFO(c.sequences << " sequences, " << c.kv_blocks << " blocks, " << c.max_rows << " rows, "
                     << c.max_batch_tokens << " of them beside decoding");
    const auto backend = f.backend(c.sequences, c.kv_blocks, c.max_rows);
    Scheduler scheduler(*backend, {.max_batch_tokens = c.max_batch_tokens});
    check_equal(run_all(scheduler, requests), expected);
    const SchedulerCounters& counters = scheduler.counters();
    CHECK(counters.requests == 60);
    CHECK(counters.failures == 0);
    int64_t ids = 0;
    int64_t prompts = 0;
    int64_t fed = 0;
    for (size_t i = 0; i < requests.size(); ++i) {
      ids += static_cast<int64_t>(expected[i].token_ids.size());
      prompts += static_cast<int64_t>(requests[i].prompt_ids.size());
      fed += static_cast<int64_t>(expected[i].token_ids.size()) - 1;
    }
    CHECK(counters.output_ids == ids);
    CHECK(counters.prompt_ids + counters.shared_prompt_ids == prompts);
    CHECK(counters.decode_rows == fed);
  }
}

TEST_CASE("a request is reported by the step that ends it, the others by an interruption") {
  Fixture f;
  const auto backend = f.backend(2, 8);
  Scheduler scheduler(*backend, {.run_ns = 0});
  int n_ended = 0;
  for (const int max_tokens : {1, 20}) {
    SequenceRequest request;
    request.prompt_ids = prompt_of(5, f.model.config().vocab);
    request.max_tokens = max_tokens;
    request.ignore_stop_ids = true;
    request.on_end = [&](SequenceResult&&) { ++n_ended; };
    scheduler.submit(std::move(request));
  }
  while (scheduler.active() != 1) scheduler.step();
  CHECK(n_ended == 1);
  scheduler.interrupt();
  CHECK(n_ended == 2);
}

struct SeenLogprobs {
  std::vector<int32_t> ids;
  std::vector<TokenLogprobs> of_ids;
};

void check_same(const SeenLogprobs& seen, const SeenLogprobs& expected) {
  CHECK(seen.ids == expected.ids);
  REQUIRE(seen.of_ids.size() == expected.of_ids.size());
  for (size_t k = 0; k < seen.of_ids.size(); ++k) {
    const TokenLogprobs& a = seen.of_ids[k];
    const TokenLogprobs& b = expected.of_ids[k];
    CHECK(a.logprob == b.logprob);
    REQUIRE(a.top.size() == b.top.size());
    for (size_t t = 0; t < a.top.size(); ++t) {
      CHECK(a.top[t].id == b.top[t].id);
      CHECK(a.top[t].logprob == b.top[t].logprob);
    }
  }
}

TEST_CASE("log-probabilities are those of generate(), beside requests that want others or none") {
  Fixture f;
  std::vector<SequenceRequest> requests = mixed_requests(f, 24, 11);
  std::vector<SeenLogprobs> seen(requests.size());
  std::vector<SeenLogprobs> expected(requests.size());
  for (size_t i = 0; i < requests.size(); ++i) {
    SequenceRequest& request = requests[i];
    request.on_token = {};
    if (i % 3 == 0) continue;
    request.top_logprobs = i % 3 == 1 ? 0 : 1 + static_cast<int>(i % 5);
    request.on_logprobs = [&to = seen[i]](int32_t id, const TokenLogprobs& logprobs) {
      to.ids.push_back(id);
      to.of_ids.push_back(logprobs);
    };
    GenerateRequest one;
    one.prompt_ids = request.prompt_ids;
    one.max_tokens = request.max_tokens;
    one.stop_ids = request.stop_ids;
    one.ignore_stop_ids = request.ignore_stop_ids;
    one.sampling = request.sampling;
    one.top_logprobs = request.top_logprobs;
    one.on_logprobs = [&](const TokenLogprobs& logprobs) {
      expected[i].of_ids.push_back(logprobs);
    };
    try {
      expected[i].ids = generate(*f.alone, one).token_ids;
    } catch (const Error&) {  // a prompt that fills the context
    }
  }
  const auto backend = f.backend(6, 20);
  Scheduler scheduler(*backend, {});
  check_equal(run_all(scheduler, requests), expected_of(f, requests));
  size_t n_ids = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    INFO("request " << i);
    check_same(seen[i], expected[i]);
    n_ids += seen[i].ids.size();
  }
  CHECK(n_ids > 100);
}

TEST_CASE("a beginning that many prompts share is computed once, arriving together or later") {
  Fixture f;
  const int vocab = f.model.config().vocab;
  const std::vector<int32_t> system = prompt_of(100, vocab);
  std::vector<SequenceRequest> requests(12);
  int64_t own = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    requests[i].prompt_ids = system;
    for (size_t p = 0; p < 5 + i; ++p) {
      requests[i].prompt_ids.push_back(static_cast<int32_t>(100 * i + p) % vocab);
    }
    requests[i].max_tokens = 9;
    own += static_cast<int64_t>(requests[i].prompt_ids.size()) - kChunk;
  }
  const std::vector<SequenceResult> expected = expected_of(f, requests);
  for (const int max_rows : {30, 256}) {
    INFO(max_rows);
    const auto backend = f.backend(12, 40, max_rows);
    Scheduler scheduler(*backend, {});
    std::vector<SequenceResult> results = run_all(scheduler, requests);
    check_equal(results, expected);
    CHECK(scheduler.counters().prompt_ids == kChunk + own);
    CHECK(scheduler.counters().shared_prompt_ids == 11 * kChunk);
    CHECK(results[0].n_shared_prompt_ids == 0);
    for (size_t i = 1; i < 12; ++i) CHECK(results[i].n_shared_prompt_ids == kChunk);

    // Kept when all have gone.
    CHECK(scheduler.blocks().cached() == 1);
    results = run_all(scheduler, requests);
    check_equal(results, expected);
    CHECK(scheduler.counters().prompt_ids == kChunk + 2 * own);
    CHECK(results[0].n_shared_prompt_ids == kChunk);
  }
}

TEST_CASE("at least one id of a prompt is computed, though all of it is in the cache") {
  Fixture f;
  for (const int n : {kChunk, 2 * kChunk, 2 * kChunk + 1}) {
    SequenceRequest request;
    request.prompt_ids = prompt_of(n, f.model.config().vocab);
    request.max_tokens = 5;
    const auto backend = f.backend(4, 16);
    Scheduler scheduler(*backend, {});
    const SequenceResult expected = f.expected(request);
    run_all(scheduler, {request});
    const auto results = run_all(scheduler, {request, request, request});
    for (const SequenceResult& result : results) {
      check_same(result, expected);
      CHECK(result.n_shared_prompt_ids == (n - 1) / kChunk * kChunk);
    }
  }
}

TEST_CASE("what cannot run fails alone, and says by how much") {
  Fixture f;
  const int vocab = f.model.config().vocab;
  std::vector<SequenceRequest> requests(9);
  for (SequenceRequest& request : requests) {
    request.prompt_ids = prompt_of(40, vocab);
    request.max_tokens = 20;
  }
  requests[1].prompt_ids = prompt_of(kContext, vocab);  // the context is full
  requests[2].prompt_ids = {};
  requests[3].prompt_ids = {1, vocab};
  requests[4].sampling.top_p = 2;
  requests[5].max_tokens = 0;
  for (int32_t id = 0; id < vocab; ++id) requests[6].stop_ids.push_back(id);
  requests[6].ignore_stop_ids = true;
  requests[7] = requests[6];
  requests[7].sampling.temperature = 1;
  std::vector<SequenceResult> expected = expected_of(f, requests);
  for (const size_t i : {1, 2, 3, 4, 6, 7}) CHECK(expected[i].failure.has_value());
  const auto backend = f.backend(4, 16);
  Scheduler scheduler(*backend, {});
  check_equal(run_all(scheduler, requests), expected);
  CHECK(scheduler.counters().failures == 6);
  CHECK(scheduler.counters().requests == 9);

  // More than the pool, but not more than the context.
  const auto small = f.backend(4, 2);
  Scheduler scarce(*small, {});
  requests[1].prompt_ids = prompt_of(120, vocab);
  requests[1].max_tokens = 10;
  requests[2].prompt_ids = prompt_of(120, vocab);
  requests[2].max_tokens = 9;  // the last one is not fed: 128 positions
  const auto results = run_all(scarce, {requests[0], requests[1], requests[2]});
  check_same(results[0], expected[0]);
  REQUIRE(results[1].failure);
  CHECK(results[1].failure->code == ExitCode::kPromptDoesNotFit);
  CHECK(results[1].failure->message.find("the prompt has 120 tokens and with its answer can need "
                                         "129 positions, but the KV cache of all sequences holds "
                                         "128") == 0);
  check_same(results[2], f.expected(requests[2]));
}

// A damaged embedding row, met by three of many prompts.
void check_fails_alone(
    const std::function<std::unique_ptr<Backend>(const ModelFile&, const EngineOptions&)>& make) {
  Fixture f(nlohmann::json{{"tie_word_embeddings", false}});
  const int vocab = f.model.config().vocab;
  const auto finite = mixed_requests(f, 20, 8);
  // An id that a few prompts hold, but none of the others meet.
  std::vector<bool> met(static_cast<size_t>(vocab));
  std::vector<SequenceResult> expected = expected_of(f, finite);
  for (size_t i = 0; i < finite.size(); ++i) {
    for (const int32_t id : finite[i].prompt_ids) met[static_cast<size_t>(id)] = true;
    for (const int32_t id : expected[i].token_ids) met[static_cast<size_t>(id)] = true;
  }
  const auto unmet = std::find(met.begin(), met.end(), false);
  REQUIRE(unmet != met.end());
  const auto bad = static_cast<int32_t>(unmet - met.begin());
  damage(f.model.path(), "embedding",
         static_cast<uint64_t>(bad) * 2 * static_cast<uint64_t>(f.model.config().dim),
         std::string("\x80\x7f", 2));
  const ModelFile damaged = ModelFile::open(f.model.path());

  std::vector<SequenceRequest> requests = finite;
  for (const size_t at : {3, 4, 17}) {
    SequenceRequest request;
    request.prompt_ids = prompt_of(70, vocab);
    std::replace(request.prompt_ids.begin(), request.prompt_ids.end(), bad, (bad + 1) % vocab);
    request.prompt_ids[at == 17 ? 69 : 10] = bad;
    requests.insert(requests.begin() + static_cast<ptrdiff_t>(at), request);
    expected.insert(expected.begin() + static_cast<ptrdiff_t>(at), SequenceResult{});
  }
  for (const int sequences : {1, 7, 23}) {
    INFO(sequences);
    const auto backend = make(damaged, f.options(sequences, 92));
    Scheduler scheduler(*backend, {});
    const auto results = run_all(scheduler, requests);
    for (size_t i = 0; i < requests.size(); ++i) {
      INFO("request " << i);
      if (i == 3 || i == 4 || i == 17) {
        REQUIRE(results[i].failure);
        CHECK(results[i].failure->code == ExitCode::kRuntime);
        CHECK(results[i].failure->message.find("a value in layer 0 is not finite") == 0);
      } else {
        check_same(results[i], expected[i]);
      }
    }
    CHECK(scheduler.counters().failures == 3);
  }
}

TEST_CASE("a sequence that meets a value that is not finite fails alone") {
  check_fails_alone(make_cpu_backend);
}

// Logits of one id that are not finite now and then, so that passes of many sequences are run
// again, a sequence at a time: each id counts once.
void check_counts_once(
    const std::function<std::unique_ptr<Backend>(const ModelFile&, const EngineOptions&)>& make,
    int sequences) {
  Fixture f(nlohmann::json{{"tie_word_embeddings", false}});
  constexpr int32_t kHuge = 7;
  // 1.2e38 in the first column: beyond the range of floats where the normed state is beyond 2.8.
  damage(f.model.path(), "head",
         static_cast<uint64_t>(kHuge) * 2 * static_cast<uint64_t>(f.model.config().dim),
         "\xb4\x7e");
  const ModelFile damaged = ModelFile::open(f.model.path());
  f.run_alone_from(damaged);
  Random random(12);
  std::vector<SequenceRequest> requests;
  for (int i = 0; i < sequences; ++i) {
    SequenceRequest request;
    for (int p = 0; p < 5; ++p) {
      request.prompt_ids.push_back(random.below(f.model.config().vocab));
    }
    request.max_tokens = 40;
    request.stop_ids = {kHuge};
    request.ignore_stop_ids = true;  // so it is never chosen
    request.sampling.frequency_penalty = 0.1 * (1 + random.below(3));
    requests.push_back(std::move(request));
  }
  const std::vector<SequenceResult> expected = expected_of(f, requests);
  const auto backend = make(damaged, f.options(sequences, sequences));
  Scheduler scheduler(*backend, {});
  const std::vector<SequenceResult> results = run_all(scheduler, requests);
  int failures = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    INFO("request " << i);
    REQUIRE(results[i].failure.has_value() == expected[i].failure.has_value());
    if (expected[i].failure) {
      ++failures;
    } else {
      CHECK(results[i].token_ids == expected[i].token_ids);
    }
  }
  CHECK(failures > 3);
  CHECK(failures < sequences / 2);
}

TEST_CASE("a pass that is run again counts its ids once") {
  check_counts_once(make_cpu_backend, 70);
}

TEST_CASE("requests are admitted in their order, and callbacks may submit more") {
  Fixture f;
  const int vocab = f.model.config().vocab;
  const auto backend = f.backend(4, 4);
  Scheduler scheduler(*backend, {});
  std::vector<int> order;
  std::vector<int> began;
  const auto request = [&](int name, int prompt, int tokens) {
    SequenceRequest r;
    r.prompt_ids = prompt_of(prompt, vocab);
    r.max_tokens = tokens;
    r.on_token = [&, name](int32_t) {
      if (std::find(began.begin(), began.end(), name) == began.end()) began.push_back(name);
      return true;
    };
    r.on_end = [&, name](SequenceResult&&) { order.push_back(name); };
    return r;
  };
  // The second needs the whole pool: the third, for which there is room, does not overtake it.
  scheduler.submit(request(0, 10, 30));
  scheduler.submit(request(1, 100, 94));
  SequenceRequest last = request(2, 10, 2);
  last.on_end = [&](SequenceResult&&) {
    order.push_back(2);
    scheduler.submit(request(3, 10, 2));
  };
  scheduler.submit(std::move(last));
  CHECK(scheduler.waiting() == 3);
  CHECK(scheduler.step());
  CHECK(scheduler.active() == 1);
  CHECK(scheduler.waiting() == 2);
  CHECK(scheduler.blocks().used() == 1);
  while (scheduler.step()) {
  }
  CHECK(began == std::vector<int>{0, 1, 2, 3});
  CHECK(order == std::vector<int>{0, 1, 2, 3});
}

// Runs of decode_rows() against passes of each sequence by itself.
void check_decode_rows(Backend& backend, int vocab) {
  const int n = backend.info().sequences;
  const int blocks_each = backend.info().kv_blocks / n;
  std::vector<int32_t> sequences, next, positions;
  for (int sequence = 0; sequence < n; ++sequence) {
    std::vector<int32_t> blocks;
    for (int i = 0; i < blocks_each; ++i) blocks.push_back(i * n + sequence);
    backend.set_blocks(sequence, blocks);
    const std::vector<int32_t> prompt = prompt_of(20 + 7 * sequence, vocab);
    const std::vector<int32_t> slots(prompt.size(), sequence);
    std::vector<int32_t> places(prompt.size());
    std::iota(places.begin(), places.end(), 0);
    const int32_t last = static_cast<int32_t>(prompt.size()) - 1;
    int32_t chosen = -1;
    Outputs outputs;
    outputs.rows = {&last, 1};
    outputs.ids = {&chosen, 1};
    backend.forward({prompt, slots, places}, outputs);
    sequences.push_back(sequence);
    next.push_back(chosen);
    positions.push_back(last + 1);
  }
  constexpr int kSteps = 20;
  const Batch first{next, sequences, positions};
  const auto alone = [&](size_t row, std::span<const int32_t> banned) {
    std::vector<int32_t> ids;
    backend.set_choice(sequences[row], {.sampling = {}, .banned = banned, .prompt = {}});
    int32_t id = next[row];
    for (int32_t position = positions[row]; ids.size() < kSteps; ++position) {
      const int32_t only = 0;
      int32_t chosen = -1;
      Outputs outputs;
      outputs.rows = {&only, 1};
      outputs.ids = {&chosen, 1};
      backend.forward({{&id, 1}, {&sequences[row], 1}, {&position, 1}}, outputs);
      ids.push_back(chosen);
      id = chosen;
    }
    return ids;
  };
  const int32_t favourite = alone(0, {}).front();
  for (const std::vector<int32_t>& banned : {std::vector<int32_t>{}, {favourite}}) {
    std::vector<std::vector<int32_t>> expected;
    for (size_t row = 0; row < sequences.size(); ++row) expected.push_back(alone(row, banned));
    for (const int n_asked : {0, 1, 5, kSteps}) {
      INFO(n << " sequences, " << banned.size() << " banned, " << n_asked << " steps asked for");
      int n_steps = 0;
      backend.decode_rows(first, kSteps, [&](std::span<const int32_t> ids) {
        REQUIRE(n_steps < kSteps);
        REQUIRE(ids.size() == sequences.size());
        for (size_t row = 0; row < ids.size(); ++row) {
          REQUIRE(ids[row] == expected[row][static_cast<size_t>(n_steps)]);
        }
        return ++n_steps < n_asked;
      });
      // A device may have begun one more.
      CHECK(n_steps >= std::max(n_asked, 1));
      CHECK(n_steps <= std::max(n_asked, 1) + 1);
    }
  }
  backend.decode_rows(first, 0, [](std::span<const int32_t>) {
    FAIL("no step was asked for");
    return true;
  });
}

TEST_CASE("runs of many sequences choose the ids of each alone, and end where they are told to") {
  Fixture f;
  check_decode_rows(*f.backend(3, 9), f.model.config().vocab);
}

TEST_CASE("an interruption ends everything with the ids so far, and work can go on afterwards") {
  Fixture f;
  const std::vector<SequenceRequest> requests = mixed_requests(f, 20, 12);
  const auto expected = expected_of(f, requests);
  const auto backend = f.backend(5, 20);
  Scheduler scheduler(*backend, {.run_ns = 0});
  std::vector<SequenceResult> results(requests.size());
  size_t ended = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    SequenceRequest request = requests[i];
    request.on_end = [&, i](SequenceResult&& result) {
      results[i] = std::move(result);
      ++ended;
    };
    scheduler.submit(std::move(request));
  }
  for (int i = 0; i < 25; ++i) REQUIRE(scheduler.step());
  const size_t before = ended;
  CHECK(before > 0);
  scheduler.interrupt();
  CHECK(ended == requests.size());
  CHECK_FALSE(scheduler.step());
  CHECK(scheduler.blocks().used() == 0);
  size_t interrupted = 0;
  size_t with_ids = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    INFO("request " << i);
    if (results[i].finish_reason != FinishReason::kInterrupted) {
      check_same(results[i], expected[i]);
      continue;
    }
    ++interrupted;
    if (!results[i].token_ids.empty()) ++with_ids;
    REQUIRE(results[i].token_ids.size() <= expected[i].token_ids.size());
    CHECK(results[i].token_ids == first(expected[i].token_ids, results[i].token_ids.size()));
  }
  CHECK(interrupted == requests.size() - before);
  CHECK(with_ids > 0);
  check_equal(run_all(scheduler, requests), expected);
}

TEST_CASE("a cancelled request frees its blocks at once, and the others do not notice") {
  Fixture f;
  const std::vector<SequenceRequest> requests = mixed_requests(f, 40, 21);
  const auto expected = expected_of(f, requests);
  Random random(4);
  for (const int64_t run_ns : {int64_t{0}, int64_t{20'000'000}}) {
    const auto backend = f.backend(5, 20);
    bool has_news = false;  // true ends a run of passes, as a server's inbox does
    Scheduler scheduler(*backend, {.run_ns = run_ns, .wants_control = [&] { return has_news; }});
    std::vector<SequenceResult> results(requests.size());
    std::vector<int> ends(requests.size());
    std::vector<uint64_t> ids;
    for (size_t i = 0; i < requests.size(); ++i) {
      SequenceRequest request = requests[i];
      request.on_token = [&, on_token = request.on_token](int32_t id) {
        has_news = random.below(8) == 0;
        return !on_token || on_token(id);
      };
      request.on_end = [&, i](SequenceResult&& result) {
        results[i] = std::move(result);
        ++ends[i];
      };
      ids.push_back(scheduler.submit(std::move(request)));
    }
    CHECK_FALSE(scheduler.cancel(ids.back() + 1));
    size_t n_cancelled = 0;
    size_t n_waiting = 0;
    while (scheduler.step()) {
      const auto victim = static_cast<size_t>(random.below(static_cast<int>(requests.size())));
      if (random.below(4) != 0 || n_cancelled >= requests.size() / 2) continue;
      const bool has_ended = ends[victim] == 1;
      const size_t waiting = scheduler.waiting();
      REQUIRE(scheduler.cancel(ids[victim]) == !has_ended);
      REQUIRE(ends[victim] == 1);
      if (has_ended) continue;
      REQUIRE(results[victim].finish_reason == FinishReason::kInterrupted);
      if (scheduler.waiting() < waiting) ++n_waiting;
      ++n_cancelled;
      REQUIRE_FALSE(scheduler.cancel(ids[victim]));
    }
    CHECK(n_cancelled > 5);
    CHECK(n_waiting > 0);
    CHECK(n_waiting < n_cancelled);
    CHECK(scheduler.blocks().used() == 0);
    CHECK(scheduler.active() == 0);
    for (size_t i = 0; i < requests.size(); ++i) {
      INFO("request " << i);
      CHECK(ends[i] == 1);
      if (results[i].finish_reason == FinishReason::kInterrupted && !results[i].failure) {
        CHECK(results[i].token_ids == first(expected[i].token_ids, results[i].token_ids.size()));
      } else {
        check_same(results[i], expected[i]);
      }
    }
  }
}

TEST_CASE("who computes a shared beginning may be cancelled: another one computes the rest") {
  Fixture f;
  SequenceRequest request;
  request.prompt_ids = prompt_of(3 * kChunk + 5, f.model.config().vocab);
  request.max_tokens = 4;
  const SequenceResult expected = f.expected(request);
  const auto backend = f.backend(3, 12, kChunk / 2 + kChunk);
  Scheduler scheduler(*backend, {});
  std::vector<SequenceResult> results(3);
  std::vector<uint64_t> ids;
  for (SequenceResult& to : results) {
    request.on_end = [&to](SequenceResult&& result) { to = std::move(result); };
    ids.push_back(scheduler.submit(request));
  }
  scheduler.step();
  REQUIRE(scheduler.cancel(ids[0]));  // after a block and a half
  CHECK(scheduler.blocks().used() == 5);
  while (scheduler.step()) {
  }
  CHECK(results[0].token_ids.empty());
  check_same(results[1], expected);
  check_same(results[2], expected);
  CHECK(results[1].n_shared_prompt_ids == kChunk);
  CHECK(results[2].n_shared_prompt_ids == 3 * kChunk);
}

// By way of generate(): the most probable ids behind each beginning of the prompt, all of them.
std::vector<TokenLogprobs> prompt_logprobs_alone(Fixture& f, const std::vector<int32_t>& prompt) {
  std::vector<TokenLogprobs> all;
  for (size_t n = 1; n < prompt.size(); ++n) {
    GenerateRequest one;
    one.prompt_ids = std::span(prompt).first(n);
    one.max_tokens = 1;
    one.top_logprobs = f.model.config().vocab;
    one.on_logprobs = [&](const TokenLogprobs& logprobs) { all.push_back(logprobs); };
    generate(*f.alone, one);
  }
  return all;
}

TEST_CASE("log-probabilities of a prompt's ids are those of generate(), beside any others") {
  Fixture f(nlohmann::json{{"vocab_size", 90}});
  std::vector<SequenceRequest> requests = mixed_requests(f, 12, 31);
  requests[3].prompt_ids = prompt_of(150, 90);  // may share, and leaves its blocks behind
  struct Seen {
    std::vector<int> positions;
    std::vector<TokenLogprobs> logprobs;
  };
  std::vector<Seen> seen(requests.size());
  for (size_t i = 0; i < requests.size(); i += 2) {
    SequenceRequest& request = requests[i];
    // The second computes all of it again, though the first leaves it in the cache.
    if (i == 2 || i == 4) request.prompt_ids = prompt_of(150, 90);
    if (request.prompt_ids.size() == 199) request.prompt_ids.pop_back();
    request.max_tokens = 1 + static_cast<int>(i);
    request.top_logprobs = static_cast<int>(i % 5);
    request.on_prompt_logprobs = [&to = seen[i]](int position, const TokenLogprobs& logprobs) {
      to.positions.push_back(position);
      to.logprobs.push_back(logprobs);
    };
  }
  for (const int max_rows : {7, 100, 300}) {
    INFO(max_rows << " rows");
    seen.assign(requests.size(), {});
    const auto backend = f.backend(6, 24, max_rows);
    Scheduler scheduler(*backend, {});
    check_equal(run_all(scheduler, requests), expected_of(f, requests));
    for (size_t i = 0; i < requests.size(); i += 2) {
      INFO("request " << i);
      const std::vector<int32_t>& prompt = requests[i].prompt_ids;
      const std::vector<TokenLogprobs> expected = prompt_logprobs_alone(f, prompt);
      REQUIRE(seen[i].logprobs.size() == prompt.size() - 1);
      for (size_t k = 0; k < expected.size(); ++k) {
        CHECK(seen[i].positions[k] == static_cast<int>(k) + 1);
        const std::vector<TokenLogprob>& all = expected[k].top;
        const TokenLogprobs& one = seen[i].logprobs[k];
        const auto own = std::ranges::find(all, prompt[k + 1], &TokenLogprob::id);
        CHECK(one.logprob == own->logprob);
        REQUIRE(one.top.size() == static_cast<size_t>(requests[i].top_logprobs));
        for (size_t t = 0; t < one.top.size(); ++t) {
          CHECK(one.top[t].id == all[t].id);
          CHECK(one.top[t].logprob == all[t].logprob);
        }
      }
    }
  }
}

// The final norm's output of each id, from a pass of the prompt alone.
std::vector<float> hidden_alone(Backend& backend, const std::vector<int32_t>& prompt) {
  const ModelConfig& config = backend.model().config();
  const size_t values = prompt.size() * static_cast<size_t>(config.dim);
  std::vector<int32_t> sequences(prompt.size(), 0), positions(prompt.size());
  for (size_t i = 0; i < prompt.size(); ++i) positions[i] = static_cast<int32_t>(i);
  std::vector<float> hidden(static_cast<size_t>(config.layers + 1) * values);
  Outputs outputs;
  outputs.hidden = hidden;
  backend.forward({prompt, sequences, positions}, outputs);
  return {hidden.end() - static_cast<ptrdiff_t>(values), hidden.end()};
}

// Every other of some mixed requests wants hidden states, half of those nothing else.
void check_prompt_hidden(Fixture& f,
                         const std::function<std::unique_ptr<Backend>(int rows)>& make) {
  std::vector<SequenceRequest> requests = mixed_requests(f, 12, 32);
  std::vector<SequenceResult> expected = expected_of(f, requests);
  const auto dim = static_cast<size_t>(f.model.config().dim);
  std::vector<std::vector<float>> seen(requests.size());
  for (size_t i = 0; i < requests.size(); i += 2) {
    if (i % 4 == 0) {
      requests[i].max_tokens = 0;
      requests[i].on_token = {};
      expected[i] = {};
    }
    requests[i].on_prompt_hidden = [&to = seen[i], dim](int position,
                                                        std::span<const float> hidden) {
      CHECK(static_cast<size_t>(position) * dim == to.size());
      to.insert(to.end(), hidden.begin(), hidden.end());
    };
  }
  const auto whole = make_cpu_backend(f.model, f.options(1, 4, 200));
  const int32_t all_blocks[] = {0, 1, 2, 3};
  whole->set_blocks(0, all_blocks);
  for (const int max_rows : {7, 100, 300}) {
    INFO(max_rows << " rows");
    seen.assign(requests.size(), {});
    const auto backend = make(max_rows);
    Scheduler scheduler(*backend, {});
    check_equal(run_all(scheduler, requests), expected);
    for (size_t i = 0; i < requests.size(); i += 2) {
      INFO("request " << i);
      CHECK(seen[i] == hidden_alone(*whole, requests[i].prompt_ids));
    }
  }
}

TEST_CASE("hidden states of a prompt are those of one pass, beside any others") {
  Fixture f;
  check_prompt_hidden(f, [&](int rows) { return f.backend(6, 24, rows); });
}

TEST_CASE("hidden states of a prompt are the CPU's on a GPU", "[gpu]") {
  if (no_gpu()) return;
  Fixture f;
  check_prompt_hidden(
      f, [&](int rows) { return make_cuda_backend(f.model, f.options(6, 24, rows), {}); });
}

TEST_CASE("while prompts are computed, sequences that decode get an id from every pass") {
  Fixture f;
  const int vocab = f.model.config().vocab;
  const auto backend = f.backend(8, 40, 64);
  Scheduler scheduler(*backend, {.max_batch_tokens = 17});
  SequenceRequest talker;
  talker.prompt_ids = {1, 2, 3};
  talker.max_tokens = 60;
  scheduler.submit(talker);
  scheduler.step();
  for (int i = 0; i < 5; ++i) {
    SequenceRequest reader;
    reader.prompt_ids = prompt_of(150 + i, vocab);
    reader.max_tokens = 1;
    scheduler.submit(reader);
  }
  int64_t prompts = scheduler.counters().prompt_ids;
  int64_t ids = scheduler.counters().output_ids;
  for (int i = 0; i < 40; ++i) {
    REQUIRE(scheduler.step());
    const SchedulerCounters& now = scheduler.counters();
    REQUIRE(now.decode_rows == i + 1);
    REQUIRE(now.output_ids > ids);
    REQUIRE(now.prompt_ids - prompts == 16);  // 760 ids in all
    ids = now.output_ids;
    prompts = now.prompt_ids;
  }
}

TEST_CASE("behind many rows a prompt is cut at a multiple of 16 positions") {
  Fixture f;
  const int vocab = f.model.config().vocab;
  struct Case {
    int max_rows;
    std::vector<int64_t> prompt_ids;  // after each pass
  };
  const Case cases[] = {
      {333, {300 + 32, 450}}, {315, {300, 450}}, {175, {175, 350, 450}},  // 150 rows are not many
  };
  for (const Case& c : cases) {
    INFO("passes of " << c.max_rows << " rows");
    const auto backend = f.backend(8, 40, c.max_rows);
    Scheduler scheduler(*backend, {});
    for (int i = 0; i < 3; ++i) {
      SequenceRequest request;
      request.prompt_ids = prompt_of(150, vocab);
      request.prompt_ids[0] = i + 1;
      request.max_tokens = 1;
      scheduler.submit(request);
    }
    for (const int64_t ids : c.prompt_ids) {
      scheduler.step();
      CHECK(scheduler.counters().prompt_ids == ids);
    }
  }
}

TEST_CASE("a scheduler refuses a backend that is not made for it") {
  Fixture f;
  CHECK_THROWS_AS(Scheduler(*f.alone, {}), ContractViolation);
  EngineOptions options = f.options(8, 10);
  options.max_rows = 7;
  const auto narrow = make_cpu_backend(f.model, options);
  CHECK_THROWS_AS(Scheduler(*narrow, {}), ContractViolation);
}

TEST_CASE("a paged backend refuses what its sequences do not hold") {
  Fixture f;
  const auto backend = f.backend(2, 3);
  const std::vector<int32_t> ids = prompt_of(10, f.model.config().vocab);
  CHECK_THROWS_AS(run_ids(*backend, ids), ContractViolation);
  const std::vector<int32_t> blocks = {2, 0};
  backend->set_blocks(0, blocks);
  run_ids(*backend, ids, 0, false, 0);
  run_ids(*backend, ids, 0, false, 118);
  CHECK_THROWS_AS(run_ids(*backend, ids, 0, false, 119), ContractViolation);
  backend->set_blocks(0, {});
  CHECK_THROWS_AS(run_ids(*backend, ids), ContractViolation);
  for (const std::vector<int32_t>& bad : {std::vector<int32_t>{3}, {-1}, {0, 1, 2, 0, 1}}) {
    CHECK_THROWS_AS(backend->set_blocks(0, bad), ContractViolation);
  }
  CHECK_THROWS_AS(backend->set_blocks(2, blocks), ContractViolation);
  CHECK_THROWS_AS(backend->set_blocks(-1, blocks), ContractViolation);
  CHECK_THROWS_AS(f.alone->set_blocks(0, blocks), ContractViolation);
}

TEST_CASE("memory does not grow with the number of requests") {
  Fixture f(nlohmann::json{{"num_hidden_layers", 1}, {"vocab_size", 90}});
  EngineOptions options = f.options(32, 40);
  options.threads = 1;
  const auto backend = make_cpu_backend(f.model, options);
  Scheduler scheduler(*backend, {});
  Random random(3);
  size_t in_use = 0;
  for (int i = 0; i < 10000; ++i) {
    SequenceRequest request;
    const int n = 1 + random.below(90);
    for (int p = 0; p < n; ++p) request.prompt_ids.push_back(random.below(90));
    request.max_tokens = 1 + random.below(3);
    if (i % 5 == 0) request.sampling = lively(7);
    scheduler.submit(std::move(request));
    while (scheduler.waiting() > 0) scheduler.step();
    // By then every buffer has grown to what it needs and the index is full.
    if (i == 2000) in_use = mallinfo2().uordblks;
  }
  const size_t at_end = mallinfo2().uordblks;
  INFO(in_use << " bytes, then " << at_end);
  CHECK(at_end < in_use + 200'000);
  scheduler.interrupt();
  CHECK(scheduler.blocks().used() == 0);
}

TEST_CASE("a GPU's scheduler gives every request the ids of the CPU", "[gpu]") {
  if (no_gpu()) return;
  Fixture f;
  std::vector<SequenceRequest> requests = mixed_requests(f, 60, 5);
  // Steps whose sequences choose by rules, and steps of arg-maxes alone.
  const bool greedy = GENERATE(false, true);
  for (SequenceRequest& request : requests) {
    if (greedy) request.sampling = {};
    if (greedy) request.ignore_stop_ids = false;
  }
  const std::vector<SequenceResult> expected = expected_of(f, requests);
  for (const int sequences : {1, 7, 8, 9, 33, 64}) {
    for (const auto& [use_graph, full_head] :
         {std::pair{true, false}, {true, true}, {false, false}}) {
      INFO(sequences << " sequences, graph " << use_graph << ", full head " << full_head);
      // 60 rows at most: no room to fill a pass of 57 or more up to 64.
      EngineOptions options = f.options(sequences, 4 * sequences, sequences == 64 ? 0 : 60);
      options.use_graph = use_graph;
      options.full_head = full_head;
      const auto backend = make_cuda_backend(f.model, options, {});
      Scheduler scheduler(*backend, {});
      check_equal(run_all(scheduler, requests), expected);
      CHECK(scheduler.counters().decodes > 0);
    }
  }
}

TEST_CASE("500 sampled requests get the same ids on CPU and GPU, alone and in batches", "[gpu]") {
  if (no_gpu()) return;
  Fixture f;
  std::vector<SequenceRequest> requests = mixed_requests(f, 500, 9);
  Random random(10);
  for (SequenceRequest& request : requests) {
    while (request.sampling.temperature == 0) {
      request.sampling = mixed_sampling(random, f.model.config().vocab);
    }
    request.max_tokens = 1 + random.below(60);
  }
  const std::vector<SequenceResult> expected = expected_of(f, requests);
  for (const int sequences : {1, 6, 50, 200}) {
    INFO(sequences << " sequences");
    const EngineOptions options = f.options(sequences, 4 * sequences, std::max(sequences, 60));
    const auto gpu = make_cuda_backend(f.model, options, {});
    Scheduler on_gpu(*gpu, {});
    check_equal(run_all(on_gpu, requests), expected);
    const auto cpu = make_cpu_backend(f.model, options);
    Scheduler on_cpu(*cpu, {});
    check_equal(run_all(on_cpu, requests), expected);
  }
}

TEST_CASE("requests that keep few ids get the CPU's answers from the GPU's certified head",
          "[gpu]") {
  if (no_gpu()) return;
  Fixture f;
  std::vector<SequenceRequest> requests = mixed_requests(f, 300, 13);
  Random random(14);
  for (SequenceRequest& request : requests) {
    request.sampling.top_k = 1 + random.below(8);
    request.max_tokens = 1 + random.below(60);
  }
  const std::vector<SequenceResult> expected = expected_of(f, requests);
  for (const int sequences : {1, 6, 11, 50, 200}) {
    for (const bool use_graph : {true, false}) {
      INFO(sequences << " sequences, graph " << use_graph);
      EngineOptions options = f.options(sequences, 4 * sequences, std::max(sequences, 60));
      options.use_graph = use_graph;
      const auto backend = make_cuda_backend(f.model, options, {});
      Scheduler scheduler(*backend, {});
      check_equal(run_all(scheduler, requests), expected);
      CHECK(backend->head_stats().steps > 0);
    }
  }
}

TEST_CASE("more sequences on a GPU than one launch of the head takes", "[gpu]") {
  if (no_gpu()) return;
  Fixture f;
  std::vector<SequenceRequest> requests = mixed_requests(f, 300, 6);
  for (SequenceRequest& request : requests) {
    request.sampling = {};
    request.max_tokens = 40;
    request.prompt_ids.resize(std::min<size_t>(request.prompt_ids.size(), 60));
  }
  const std::vector<SequenceResult> expected = expected_of(f, requests);
  const auto backend = make_cuda_backend(f.model, f.options(300, 800, 300), {});
  Scheduler scheduler(*backend, {});
  check_equal(run_all(scheduler, requests), expected);
}

TEST_CASE("runs of many sequences on a GPU choose the ids of each alone", "[gpu]") {
  if (no_gpu()) return;
  Fixture f;
  for (const int sequences : {1, 3, 11}) {
    for (const bool use_graph : {false, true}) {
      EngineOptions options = f.options(sequences, 3 * sequences);
      options.use_graph = use_graph;
      check_decode_rows(*make_cuda_backend(f.model, options), f.model.config().vocab);
    }
  }
}

TEST_CASE("a pass that is run again on a GPU counts its ids once", "[gpu]") {
  if (no_gpu()) return;
  for (const bool use_graph : {false, true}) {
    check_counts_once(
        [&](const ModelFile& model, EngineOptions options) {
          options.use_graph = use_graph;
          return make_cuda_backend(model, options);
        },
        300);
  }
}

TEST_CASE("a sequence that meets a value that is not finite fails alone on a GPU", "[gpu]") {
  if (no_gpu()) return;
  check_fails_alone([](const ModelFile& model, const EngineOptions& options) {
    return make_cuda_backend(model, options);
  });
}

}  // namespace
}  // namespace edgellm
