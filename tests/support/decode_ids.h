// Greedy decode in two ways, and what any backend's decode() must do.
#pragma once

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <numeric>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/error.h"
#include "engine/backend.h"
#include "model/model_file.h"
#include "tests/support/run_ids.h"

namespace edgellm::test {

// Feeds `id` to sequence 0 at `position`, then what forward() chooses; the n ids chosen.
inline std::vector<int32_t> ids_by_forward(Backend& backend, int32_t id, int position, int n,
                                           std::span<const int32_t> banned = {}) {
  std::vector<int32_t> ids;
  const int32_t zero = 0;
  backend.set_choice(0, {.sampling = {}, .banned = banned, .prompt = {}});
  for (int i = 0; i < n; ++i, ++position) {
    int32_t chosen = -1;
    Outputs outputs;
    outputs.rows = {&zero, 1};
    outputs.ids = {&chosen, 1};
    backend.forward({{&id, 1}, {&zero, 1}, {&position, 1}}, outputs);
    ids.push_back(chosen);
    id = chosen;
  }
  return ids;
}

// What decode() hands over when it is stopped after `until` ids.
inline std::vector<int32_t> ids_by_decode(Backend& backend, int32_t id, int position, int n_max,
                                          size_t until, std::span<const int32_t> banned = {}) {
  std::vector<int32_t> ids;
  backend.set_choice(0, {.sampling = {}, .banned = banned, .prompt = {}});
  backend.decode(0, id, position, n_max, [&](int32_t chosen) {
    ids.push_back(chosen);
    return ids.size() < until;
  });
  return ids;
}

inline std::vector<int32_t> first(const std::vector<int32_t>& ids, size_t count) {
  return {ids.begin(), ids.begin() + static_cast<ptrdiff_t>(count)};
}

// Checks decode() of a backend whose context is 100 positions, against its own forward().
inline void check_decode(Backend& backend, const std::vector<int32_t>& prompt) {
  REQUIRE(backend.info().context == 100);
  const int n = static_cast<int>(prompt.size());
  constexpr int32_t kFirst = 5;
  constexpr size_t kNever = 1000;
  run_ids(backend, prompt);
  const std::vector<int32_t> expected = ids_by_forward(backend, kFirst, n, 100 - n);
  CHECK(ids_by_decode(backend, kFirst, n, 0, kNever).empty());
  CHECK(ids_by_decode(backend, kFirst, n, 1000, 1) == first(expected, 1));
  CHECK(ids_by_decode(backend, kFirst, n, 1, kNever) == first(expected, 1));
  CHECK(ids_by_decode(backend, kFirst, n, 7, kNever) == first(expected, 7));
  CHECK(ids_by_decode(backend, kFirst, n, 1000, 9) == first(expected, 9));
  // To the last place of the context, and no further.
  CHECK(ids_by_decode(backend, kFirst, n, 1000, kNever) == expected);
  // Resuming where a stop with a step under way has left the cache.
  const std::vector<int32_t> start = ids_by_decode(backend, kFirst, n, 1000, 20);
  REQUIRE(start == first(expected, 20));
  const std::vector<int32_t> rest = ids_by_decode(backend, start.back(), n + 20, 1000, kNever);
  CHECK(rest == std::vector<int32_t>(expected.begin() + 20, expected.end()));

  const std::vector<int32_t> banned = {expected[0], expected[3]};
  const std::vector<int32_t> without = ids_by_decode(backend, kFirst, n, 20, kNever, banned);
  CHECK(without == ids_by_forward(backend, kFirst, n, 20, banned));
  for (int32_t ban : banned) CHECK(std::count(without.begin(), without.end(), ban) == 0);
  std::vector<int32_t> every_id(static_cast<size_t>(backend.model().config().vocab));
  std::iota(every_id.begin(), every_id.end(), 0);
  CHECK(ids_by_decode(backend, kFirst, n, 20, kNever, every_id) == std::vector<int32_t>{-1});

  // What the callback throws comes through, and the backend can be used afterwards.
  const auto fail = [](int32_t) -> bool { throw std::runtime_error("full"); };
  CHECK_THROWS_AS(backend.decode(0, kFirst, n, 10, fail), std::runtime_error);
  CHECK(ids_by_decode(backend, kFirst, n, 7, kNever) == first(expected, 7));
}

// Overwrites bytes of a model file, at an offset into a section.
inline void damage(const std::string& path, const std::string& section_name, uint64_t at,
                   const std::string& bytes) {
  uint64_t offset = 0;
  {
    const ModelFile model = ModelFile::open(path);
    const auto sections = model.sections();
    const auto found = std::find_if(sections.begin(), sections.end(), [&](const Section& section) {
      return section.name == section_name;
    });
    REQUIRE(found != sections.end());
    REQUIRE(at + bytes.size() <= found->bytes);
    offset = found->offset + at;
  }
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(static_cast<std::streamoff>(offset));
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  REQUIRE(file.good());
}

// Spoils the embedding of an id that a run comes upon: decode() must hand over that id, and fail
// when it is fed. `open(path)` makes a backend; the model's head is its own.
template <class Open>
void check_fault_in_decode(const std::string& path, const Open& open) {
  constexpr int32_t kFirst = 5;
  std::vector<int32_t> clean;
  uint64_t row_bytes = 0;
  {
    const ModelFile model = ModelFile::open(path);
    REQUIRE_FALSE(model.config().tied_head);
    REQUIRE(model.weights().embedding.dtype == DType::kBF16);
    row_bytes = 2 * static_cast<uint64_t>(model.config().dim);
    clean = ids_by_decode(*open(model), kFirst, 0, 40, 1000);
  }
  // The first id after a few others that was not fed before.
  size_t at = 2;
  const auto was_fed = [&](int32_t id) {
    return id == kFirst ||
           std::count(clean.begin(), clean.begin() + static_cast<ptrdiff_t>(at), id) > 0;
  };
  while (at + 1 < clean.size() && was_fed(clean[at])) ++at;
  REQUIRE(at + 1 < clean.size());
  const std::string not_finite("\x80\x7f", 2);  // bf16 infinity
  damage(path, "embedding", static_cast<uint64_t>(clean[at]) * row_bytes, not_finite);

  const ModelFile model = ModelFile::open(path);
  const auto backend = open(model);
  for (int time = 0; time < 2; ++time) {
    std::vector<int32_t> ids;
    std::string message;
    try {
      backend->decode(0, kFirst, 0, 40, [&](int32_t id) {
        ids.push_back(id);
        return true;
      });
    } catch (const Error& error) {
      CHECK(error.code() == ExitCode::kRuntime);
      message = error.what();
    }
    CHECK(message.find("a value in layer 0 is not finite") == 0);
    CHECK(ids == first(clean, at + 1));
    // A run that stops at that id meets no error, even if the next step was under way; nor does a
    // later run.
    CHECK(ids_by_decode(*backend, kFirst, 0, 40, at + 1) == first(clean, at + 1));
    CHECK(ids_by_decode(*backend, kFirst, 0, static_cast<int>(at), 1000) == first(clean, at));
  }
}

}  // namespace edgellm::test
