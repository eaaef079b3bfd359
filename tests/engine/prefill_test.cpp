// Prefill: which rows and outputs each pass has, and what is known after a pass that failed.
#include "engine/prefill.h"

#include <catch2/catch.hpp>
#include <cstring>
#include <stdexcept>
#include <tuple>

#include "tests/support/hashed_models.h"
#include "tests/support/run_ids.h"

namespace edgellm {
namespace {

using namespace edgellm::test;

// Notes the passes that it is asked for, and runs none.
class RecordingBackend : public Backend {
 public:
  struct Pass {
    std::vector<int32_t> ids, sequences, positions, output_rows;
    size_t n_ids;
  };

  RecordingBackend(const ModelFile& model, int max_rows)
      : Backend(model, {.device = "none", .context = 100, .sequences = 4, .max_rows = max_rows}) {}

  std::vector<Pass> passes;
  size_t fails_at = 1000;  // number of the pass that throws

  void forward(const Batch& batch, const Outputs& outputs) override {
    if (passes.size() == fails_at) throw std::runtime_error("failed");
    const auto copy = [](std::span<const int32_t> values) {
      return std::vector<int32_t>(values.begin(), values.end());
    };
    passes.push_back({copy(batch.ids), copy(batch.sequences), copy(batch.positions),
                      copy(outputs.rows), outputs.ids.size()});
  }
  void set_blocks(int, std::span<const int32_t>) override {}
  void set_choice(int, const Choice&) override {}
  MemoryPlan memory() const override { return {}; }
  HeadStats head_stats() const override { return {}; }
};

struct Fixture {
  TempDir temp;
  ModelFile model = ModelFile::open(changed_model(temp));
  std::vector<int32_t> ids = prompt_of(20, model.config().vocab);
};

TEST_CASE("a prefill feeds every id once, at its position, and asks the last pass for its result") {
  Fixture f;
  for (const auto& [backend_rows, max_rows, n_ids] : {std::tuple{8, 0, 20},
                                                      {8, 5, 20},
                                                      {8, 1000, 20},
                                                      {4, 0, 20},
                                                      {1, 0, 3},
                                                      {20, 0, 20},
                                                      {19, 0, 20},
                                                      {256, 0, 20},
                                                      {8, 0, 1}}) {
    INFO(backend_rows << " rows of the backend, " << max_rows << " asked for, " << n_ids << " ids");
    const size_t longest = static_cast<size_t>(max_rows == 5 ? 5 : backend_rows);
    RecordingBackend backend(f.model, backend_rows);
    const auto ids = std::span(f.ids).first(static_cast<size_t>(n_ids));
    Prefill prefill(backend, /*sequence=*/3, /*first=*/40, ids, max_rows);
    int32_t chosen = -1;
    Outputs outputs;
    outputs.ids = {&chosen, 1};
    size_t fed = 0;
    while (!prefill.is_done()) {
      const size_t rows = std::min(longest, ids.size() - fed);
      const bool is_last = fed + rows == ids.size();
      REQUIRE(prefill.n_fed() == fed);
      REQUIRE(prefill.rows() == rows);
      REQUIRE(prefill.is_last_pass() == is_last);
      prefill.run_pass_for_last_id(outputs);

      const RecordingBackend::Pass& pass = backend.passes.back();
      REQUIRE(std::ranges::equal(pass.ids, ids.subspan(fed, rows)));
      REQUIRE(pass.sequences == std::vector<int32_t>(rows, 3));
      REQUIRE(pass.positions.size() == rows);
      for (size_t row = 0; row < rows; ++row) {
        REQUIRE(pass.positions[row] == static_cast<int32_t>(40 + fed + row));
      }
      REQUIRE(pass.n_ids == (is_last ? 1 : 0));
      REQUIRE(pass.output_rows == (is_last ? std::vector<int32_t>{static_cast<int32_t>(rows) - 1}
                                           : std::vector<int32_t>{}));
      fed += rows;
    }
    CHECK(fed == ids.size());
    CHECK(backend.passes.size() == (ids.size() + longest - 1) / longest);
  }
  RecordingBackend backend(f.model, 8);
  CHECK(Prefill(backend, 0, 0, {}).is_done());
}

TEST_CASE("a pass that throws does not count as fed, and can be run again") {
  Fixture f;
  RecordingBackend backend(f.model, 8);
  backend.fails_at = 1;
  Prefill prefill(backend, 0, 0, f.ids);
  prefill.run_pass({});
  CHECK_THROWS_AS(prefill.run_pass({}), std::runtime_error);
  CHECK(prefill.n_fed() == 8);
  CHECK_FALSE(prefill.is_done());
  backend.fails_at = 1000;
  while (!prefill.is_done()) prefill.run_pass({});
  CHECK(prefill.n_fed() == 20);
  CHECK(backend.passes.size() == 3);
  CHECK(backend.passes[1].ids == std::vector<int32_t>(f.ids.begin() + 8, f.ids.begin() + 16));
}

TEST_CASE("a prefill in passes of any length gives the bits of a single pass") {
  Fixture f;
  EngineOptions options;
  options.context = 32;
  options.threads = 1;
  const auto backend = make_cpu_backend(f.model, options);
  const size_t vocab = static_cast<size_t>(f.model.config().vocab);
  const Results whole = run_ids(*backend, f.ids);
  for (const int max_rows : {0, 1, 7, 19}) {
    INFO(max_rows);
    std::vector<float> logits(vocab);
    Outputs outputs;
    outputs.logits = logits;
    Prefill prefill(*backend, 0, 0, f.ids, max_rows);
    while (!prefill.is_done()) prefill.run_pass_for_last_id(outputs);
    CHECK(std::memcmp(logits.data(), whole.logits.data() + (f.ids.size() - 1) * vocab,
                      vocab * sizeof(float)) == 0);
  }
}

}  // namespace
}  // namespace edgellm
