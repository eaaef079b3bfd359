// Several engines as one: every request gets what generate() gives it, once, whichever engines
// fail.
#include "engine/dispatcher.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <condition_variable>
#include <map>

#include "engine/failing_backend.h"
#include "engine/generate.h"
#include "tests/support/hashed_models.h"
#include "tests/support/sanitizers.h"

namespace edgellm {
namespace {

using namespace edgellm::test;

constexpr int kContext = 200;

EngineOptions options_of(int sequences, int kv_blocks) {
  EngineOptions options;
  options.context = kContext;
  options.threads = 1;
  options.sequences = sequences;
  options.kv_blocks = kv_blocks;
  options.max_rows = 100;
  return options;
}

// What came of a request.
struct Answer {
  std::vector<int32_t> ids;        // handed over
  std::vector<int> prompt_places;  // of on_prompt_hidden or on_prompt_logprobs
  int n_logprobs = 0;
  int n_ends = 0;
  SequenceResult result;
};

// Requests, and what generate() makes of them.
struct Fixture {
  TempDir temp;
  ModelFile model = ModelFile::open(changed_model(temp));
  std::vector<SequenceRequest> requests;
  std::vector<std::vector<int32_t>> expected;

  Fixture() {
    constexpr int n_requests = kSanitized ? 16 : 40;
    Random random(8);
    const auto alone = make_cpu_backend(model, options_of(1, 0));
    const std::vector<int32_t> system = prompt_of(150, model.config().vocab);
    for (int i = 0; i < n_requests; ++i) {
      SequenceRequest request;
      const int n = 1 + random.below(40);
      for (int p = 0; p < n; ++p) request.prompt_ids.push_back(random.below(model.config().vocab));
      // Some begin alike.
      if (random.below(3) == 0) {
        request.prompt_ids.insert(request.prompt_ids.begin(), system.begin(),
                                  system.begin() + random.below(150));
      }
      request.max_tokens = 1 + random.below(24);
      if (random.below(2) == 0) {
        request.sampling.temperature = 1.3;
        request.sampling.seed = random.bits();
        request.sampling.repeat_penalty = 1.2;
      }
      GenerateRequest one;
      one.prompt_ids = request.prompt_ids;
      one.max_tokens = request.max_tokens;
      one.sampling = request.sampling;
      expected.push_back(generate(*alone, one).token_ids);
      // Some look at more.
      if (i % 5 == 1) request.on_logprobs = [](int32_t, const TokenLogprobs&) {};
      if (i % 10 == 3) request.on_prompt_hidden = [](int, std::span<const float>) {};
      if (i % 10 == 8) request.on_prompt_logprobs = [](int, const TokenLogprobs&) {};
      requests.push_back(std::move(request));
    }
  }

  std::unique_ptr<Backend> backend(int sequences = 4, int kv_blocks = 24) const {
    return make_cpu_backend(model, options_of(sequences, kv_blocks));
  }
};

const Fixture& fixture() {
  static const Fixture shared;
  return shared;
}

// The requests of a run, which end in any order.
class Run {
 public:
  Run(Dispatcher& dispatcher, const std::vector<SequenceRequest>& requests)
      : answers_(requests.size()) {
    for (size_t i = 0; i < requests.size(); ++i) {
      SequenceRequest request = requests[i];
      Answer& answer = answers_[i];
      request.on_token = [&answer](int32_t id) {
        answer.ids.push_back(id);
        return true;
      };
      if (request.on_logprobs) {
        request.on_logprobs = [&answer](int32_t, const TokenLogprobs&) { ++answer.n_logprobs; };
      }
      const auto take_place = [&answer](int position, const auto&) {
        answer.prompt_places.push_back(position);
      };
      if (request.on_prompt_hidden) request.on_prompt_hidden = take_place;
      if (request.on_prompt_logprobs) request.on_prompt_logprobs = take_place;
      request.on_end = [this, &answer](SequenceResult&& result) {
        answer.result = std::move(result);
        const std::lock_guard guard(mutex_);
        ++answer.n_ends;
        ++n_ended_;
        changed_.notify_all();
      };
      ids_.push_back(dispatcher.submit(std::move(request)));
    }
  }

  const std::vector<uint64_t>& ids() const { return ids_; }

  void wait_until_ended(size_t n) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return n_ended_ >= n; });
  }
  const std::vector<Answer>& wait_for_all() {
    wait_until_ended(answers_.size());
    return answers_;
  }

 private:
  std::vector<Answer> answers_;
  std::vector<uint64_t> ids_;
  std::mutex mutex_;
  std::condition_variable changed_;
  size_t n_ended_ = 0;
};

void check_whole(const Answer& answer, const SequenceRequest& request,
                 const std::vector<int32_t>& expected) {
  CHECK(answer.n_ends == 1);
  CHECK_FALSE(answer.result.failure);
  CHECK(answer.ids == expected);
  CHECK(answer.result.token_ids == expected);
  if (request.on_logprobs) CHECK(answer.n_logprobs == static_cast<int>(expected.size()));
  std::vector<int> places;
  const int first = request.on_prompt_logprobs ? 1 : 0;
  if (request.on_prompt_hidden || request.on_prompt_logprobs) {
    for (int i = first; i < static_cast<int>(request.prompt_ids.size()); ++i) places.push_back(i);
  }
  CHECK(answer.prompt_places == places);
}

TEST_CASE("requests get the ids of generate() on any number of engines") {
  const Fixture& f = fixture();
  for (const int n_engines : {1, 2, 5}) {
    std::vector<std::unique_ptr<Backend>> backends;
    std::vector<Dispatcher::Engine> engines;
    for (int i = 0; i < n_engines; ++i) {
      // Engines differ in how much they can do at the same time.
      backends.push_back(f.backend(1 + i, 8 + 8 * i));
      engines.push_back({backends.back().get()});
    }
    Dispatcher dispatcher(engines, {});
    Run run(dispatcher, f.requests);
    const std::vector<Answer>& answers = run.wait_for_all();
    for (size_t i = 0; i < answers.size(); ++i) {
      INFO("request " << i << " on " << n_engines);
      check_whole(answers[i], f.requests[i], f.expected[i]);
    }
    dispatcher.stop();  // an engine's counts are those of its last step
    SchedulerCounters all;
    for (const EngineStatus& engine : dispatcher.status()) {
      CHECK(engine.counters.requests > 0);
      all.add(engine.counters);
    }
    CHECK(all.requests == static_cast<int64_t>(f.requests.size()));
  }
}

TEST_CASE("an engine that fails loses and doubles nothing, in 50 random runs") {
  const Fixture& f = fixture();
  Random random(50);
  int n_failed = 0;
  int64_t n_taken_over = 0;
  for (int round = 0; round < (kSanitized ? 12 : 50); ++round) {
    const int n_engines = 2 + random.below(2);
    const int failing = random.below(n_engines);
    std::vector<std::unique_ptr<Backend>> backends;
    std::vector<Dispatcher::Engine> engines;
    for (int i = 0; i < n_engines; ++i) {
      backends.push_back(f.backend());
      if (i == failing) {
        backends[static_cast<size_t>(i)] =
            make_failing_backend(std::move(backends.back()), random.below(60));
      }
      engines.push_back({backends.back().get()});
    }
    SchedulerOptions options;
    options.run_ns = random.below(2) * 20'000'000;
    Dispatcher dispatcher(engines, options);
    Run run(dispatcher, f.requests);
    const std::vector<Answer>& answers = run.wait_for_all();
    for (size_t i = 0; i < answers.size(); ++i) {
      INFO("round " << round << ", request " << i);
      check_whole(answers[i], f.requests[i], f.expected[i]);
    }
    CHECK_FALSE(dispatcher.failure());
    for (const EngineStatus& engine : dispatcher.status()) {
      if (!engine.failure) continue;
      ++n_failed;
      n_taken_over += engine.n_taken_over;
      CHECK(engine.failure->code == ExitCode::kDevice);
    }
  }
  // An engine may get too little to do to reach its fault.
  CHECK(n_failed >= (kSanitized ? 4 : 25));
  CHECK(n_taken_over >= n_failed);
}

TEST_CASE("cancelled requests end once, whether they wait, run or lose their engine") {
  const Fixture& f = fixture();
  Random random(9);
  for (int round = 0; round < (kSanitized ? 5 : 20); ++round) {
    const auto one = make_failing_backend(f.backend(), round % 2 == 0 ? 1000000 : 20);
    const auto two = f.backend();
    Dispatcher dispatcher({{one.get()}, {two.get()}}, {});
    Run run(dispatcher, f.requests);
    run.wait_until_ended(static_cast<size_t>(random.below(10)));
    std::vector<bool> is_cancelled(f.requests.size());
    for (size_t i = 0; i < f.requests.size(); ++i) {
      is_cancelled[i] = random.below(2) == 0;
      if (is_cancelled[i]) dispatcher.cancel(run.ids()[i]);
    }
    const std::vector<Answer>& answers = run.wait_for_all();
    for (size_t i = 0; i < answers.size(); ++i) {
      INFO("round " << round << ", request " << i);
      if (!is_cancelled[i]) {
        check_whole(answers[i], f.requests[i], f.expected[i]);
        continue;
      }
      // It may have ended before; what it got is right in any case.
      CHECK(answers[i].n_ends == 1);
      CHECK_FALSE(answers[i].result.failure);
      REQUIRE(answers[i].ids.size() <= f.expected[i].size());
      CHECK(std::equal(answers[i].ids.begin(), answers[i].ids.end(), f.expected[i].begin()));
    }
  }
}

// A device that no request with this id in its prompt leaves alive.
class PoisonedBackend final : public Backend {
 public:
  PoisonedBackend(std::unique_ptr<Backend> backend, int32_t poison)
      : Backend(backend->model(), backend->info()), backend_(std::move(backend)), poison_(poison) {}

  void set_blocks(int sequence, std::span<const int32_t> blocks) override {
    backend_->set_blocks(sequence, blocks);
  }
  void set_choice(int sequence, const Choice& choice) override {
    backend_->set_choice(sequence, choice);
    for (const int32_t id : choice.prompt) is_poisoned_ = is_poisoned_ || id == poison_;
  }
  void forward(const Batch& batch, const Outputs& outputs) override {
    if (is_poisoned_) throw Error(ExitCode::kDevice, "poison");
    backend_->forward(batch, outputs);
  }
  MemoryPlan memory() const override { return backend_->memory(); }
  HeadStats head_stats() const override { return backend_->head_stats(); }

 private:
  const std::unique_ptr<Backend> backend_;
  const int32_t poison_;
  bool is_poisoned_ = false;
};

TEST_CASE("a request that no engine survives costs two engines and fails") {
  const Fixture& f = fixture();
  const int32_t poison = 5;
  SequenceRequest harmless;
  harmless.prompt_ids = {1, 2, 3, 4};
  harmless.max_tokens = 5;
  std::vector<SequenceRequest> requests(6, harmless);
  requests[2].prompt_ids = {1, poison, 2};
  std::vector<std::unique_ptr<Backend>> backends;
  std::vector<Dispatcher::Engine> engines;
  for (int i = 0; i < 4; ++i) {
    // One sequence each: nobody else is there when the poison comes.
    backends.push_back(std::make_unique<PoisonedBackend>(f.backend(1, 8), poison));
    engines.push_back({backends.back().get()});
  }
  Dispatcher dispatcher(engines, {});
  Run run(dispatcher, requests);
  const std::vector<Answer>& answers = run.wait_for_all();
  for (size_t i = 0; i < answers.size(); ++i) {
    INFO("request " << i);
    CHECK(answers[i].n_ends == 1);
    CHECK(answers[i].result.failure.has_value() == (i == 2));
  }
  CHECK(answers[2].result.failure->message == "poison");
  CHECK(std::ranges::count_if(dispatcher.status(), [](const EngineStatus& engine) {
          return engine.failure.has_value();
        }) == 2);
}

TEST_CASE("when all engines have failed every request fails, later ones too") {
  const Fixture& f = fixture();
  const auto one = make_failing_backend(f.backend(), 3);
  const auto two = make_failing_backend(f.backend(), 5);
  Dispatcher dispatcher({{one.get()}, {two.get()}}, {});
  Run run(dispatcher, f.requests);
  int n_failures = 0;
  for (const Answer& answer : run.wait_for_all()) {
    CHECK(answer.n_ends == 1);
    if (answer.result.failure) ++n_failures;
  }
  CHECK(n_failures >= 1);
  REQUIRE(dispatcher.failure());
  CHECK(dispatcher.failure()->code == ExitCode::kDevice);
  Run late(dispatcher, f.requests);
  for (const Answer& answer : late.wait_for_all()) CHECK(answer.result.failure);
}

TEST_CASE("a callback that throws is the failure of its request alone") {
  const Fixture& f = fixture();
  const auto one = f.backend();
  Dispatcher dispatcher({{one.get()}}, {});
  std::vector<SequenceRequest> requests(f.requests.begin(), f.requests.begin() + 4);
  std::atomic<int> n_ended = 0;
  std::vector<SequenceResult> results(requests.size());
  for (size_t i = 0; i < requests.size(); ++i) {
    requests[i].on_token = [i](int32_t) -> bool {
      if (i == 1) throw Error(ExitCode::kUsage, "no more of this");
      return true;
    };
    requests[i].on_end = [&results, &n_ended, i](SequenceResult&& result) {
      results[i] = std::move(result);
      ++n_ended;
    };
    dispatcher.submit(std::move(requests[i]));
  }
  while (n_ended < 4) std::this_thread::yield();
  for (size_t i = 0; i < results.size(); ++i) {
    INFO("request " << i);
    REQUIRE(results[i].failure.has_value() == (i == 1));
    if (i != 1) CHECK(results[i].token_ids == f.expected[i]);
  }
  CHECK(results[1].failure->message == "no more of this");
  CHECK_FALSE(dispatcher.failure());
}

TEST_CASE("a request that asks for its end alone is whole although an engine fails") {
  const Fixture& f = fixture();
  for (const int n_passes : {3, 9, 20}) {
    const auto failing = make_failing_backend(f.backend(), n_passes);
    const auto other = f.backend();
    std::vector<SequenceResult> results(f.requests.size());
    std::atomic<size_t> n_ended = 0;
    Dispatcher dispatcher({{failing.get()}, {other.get()}}, {});
    for (size_t i = 0; i < results.size(); ++i) {
      SequenceRequest request = f.requests[i];
      request.on_logprobs = nullptr;
      request.on_prompt_logprobs = nullptr;
      request.on_prompt_hidden = nullptr;
      request.on_end = [&results, &n_ended, i](SequenceResult&& result) {
        results[i] = std::move(result);
        ++n_ended;
      };
      dispatcher.submit(std::move(request));
    }
    while (n_ended < results.size()) std::this_thread::yield();
    for (size_t i = 0; i < results.size(); ++i) {
      INFO("request " << i << ", failure after " << n_passes << " passes");
      CHECK_FALSE(results[i].failure);
      CHECK(results[i].token_ids == f.expected[i]);
    }
  }
}

TEST_CASE("a dispatcher with nothing to do keeps nothing of its requests") {
  const Fixture& f = fixture();
  const auto one = f.backend();
  const auto held = std::make_shared<int>();
  Dispatcher dispatcher({{one.get()}}, {});
  for (size_t i = 0; i < 4; ++i) {
    SequenceRequest request = f.requests[i];
    request.on_end = [held](SequenceResult&&) {};
    dispatcher.submit(std::move(request));
  }
  while (dispatcher.live() > 0) std::this_thread::yield();
  // Soon: the engine's thread lets go behind its last step.
  while (held.use_count() > 1) std::this_thread::yield();
}

TEST_CASE("stop ends what waits and what runs, once") {
  const Fixture& f = fixture();
  const auto one = f.backend();
  const auto two = f.backend();
  Dispatcher dispatcher({{one.get()}, {two.get()}}, {});
  Run run(dispatcher, f.requests);
  run.wait_until_ended(2);
  dispatcher.stop();
  for (const Answer& answer : run.wait_for_all()) CHECK(answer.n_ends == 1);
  CHECK(dispatcher.live() == 0);
}

TEST_CASE("requests that no engine has can be dropped, and those that run are finished") {
  const Fixture& f = fixture();
  const auto one = f.backend(2);
  Dispatcher dispatcher({{one.get()}}, {});
  Run run(dispatcher, f.requests);
  dispatcher.drop_waiting();
  CHECK(dispatcher.waiting() == 0);
  CHECK(dispatcher.live() <= 2);
  while (dispatcher.live() > 0) std::this_thread::yield();
}

}  // namespace
}  // namespace edgellm
