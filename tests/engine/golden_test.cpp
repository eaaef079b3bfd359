// Whole models against Hugging Face transformers: every golden folder below EDGELLM_FIXTURES.
//
// A golden folder holds cases.json; its model is the folder beside it whose name lacks "-golden",
// or else the one model folder of the fixtures whose sizes are those of the golden arrays (the
// vocabulary; layers and width too where there are hidden states). The
// limits are those of the fixtures' README, as fractions of the logits' rms: int8 rounding makes a
// BitNet a step function, so two right programs agree to about 1e-5 or, after a flipped code, to a
// few percent.
#include <catch2/catch.hpp>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>

#include "engine/kv_type.h"
#include "model/convert.h"
#include "tests/support/fixtures.h"
#include "tests/support/npy.h"
#include "tests/support/run_ids.h"
#include "tests/support/skip.h"
#include "tests/support/temp_dir.h"

namespace edgellm {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using namespace edgellm::test;

json read_json(const fs::path& path) {
  std::ifstream in(path);
  return json::parse(in);
}

bool is_golden_folder(const fs::path& path) {
  if (!fs::exists(path / "cases.json")) return false;
  const json golden = read_json(path / "cases.json");
  return golden.contains("cases") && !golden["cases"].empty() &&
         golden["cases"][0].contains("ids") && golden["cases"][0].contains("top1");
}

// The sizes that a golden folder's arrays tell of.
struct Sizes {
  size_t vocab = 0;
  std::optional<std::pair<size_t, size_t>> layers_and_dim;  // of hidden states, where there are any

  explicit Sizes(const fs::path& golden) {
    vocab = read_npy(golden / "logits_final.npy").shape.at(1);
    for (const auto& entry : fs::directory_iterator(golden)) {
      if (!entry.path().filename().string().starts_with("hidden_")) continue;
      const std::vector<size_t> shape = read_npy(entry.path()).shape;  // [layers + 1, n, dim]
      layers_and_dim.emplace(shape.at(0) - 1, shape.at(2));
      return;
    }
  }

  bool fit(const fs::path& model) const {
    const json config = read_json(model / "config.json");
    if (config["vocab_size"] != vocab) return false;
    return !layers_and_dim || (config["num_hidden_layers"] == layers_and_dim->first &&
                               config["hidden_size"] == layers_and_dim->second);
  }
};

fs::path model_of(const fs::path& golden) {
  const std::string name = golden.filename().string();
  const std::string suffix = "-golden";
  if (name.ends_with(suffix)) {
    const fs::path beside = golden.parent_path() / name.substr(0, name.size() - suffix.size());
    if (fs::is_directory(beside) && is_model_folder(beside)) return beside;
  }
  const Sizes sizes(golden);
  std::vector<fs::path> fitting;
  for (const fs::path& model : fixtures_where(is_model_folder)) {
    if (sizes.fit(model)) fitting.push_back(model);
  }
  if (fitting.size() == 1) return fitting.front();
  std::string message = golden.string() + ": " + std::to_string(fitting.size()) +
                        " models of the fixtures have the sizes of these goldens, expected one; "
                        "call the folder MODEL-golden to say which";
  for (const fs::path& model : fitting) message += "\n  " + model.string();
  throw std::runtime_error(message);
}

double rms(std::span<const float> values) {
  double sum = 0;
  for (float v : values) sum += static_cast<double>(v) * static_cast<double>(v);
  return std::sqrt(sum / static_cast<double>(values.size()));
}

struct Difference {
  double max = 0;
  double rms = 0;
};

Difference difference(std::span<const float> a, std::span<const float> b) {
  REQUIRE(a.size() == b.size());
  Difference d;
  double squares = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double e = std::fabs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
    d.max = std::max(d.max, e);
    squares += e * e;
  }
  d.rms = std::sqrt(squares / static_cast<double>(a.size()));
  return d;
}

// A golden folder with its converted model.
struct Golden {
  fs::path folder;
  json cases;
  TempDir temp;
  ModelFile model;

  explicit Golden(const fs::path& path)
      : folder(path), cases(read_json(path / "cases.json")["cases"]), model(convert()) {}

  std::unique_ptr<Backend> backend(KvType type) const {
    EngineOptions options;
    options.kv_type = type;
    options.threads = 2;
    return make_cpu_backend(model, options);
  }

 private:
  ModelFile convert() const {
    const std::string output = temp / "model.tmac2";
    convert_hf(model_of(folder).string(), output, {});
    return ModelFile::open(output);
  }
};

// Calls check(golden) for each golden folder, or skips.
template <class Check>
void for_each_golden(Check check) {
  const std::vector<fs::path> folders = fixtures_where(is_golden_folder);
  if (folders.empty()) {
    skip("no golden folders below " + fixtures().string() + " (set EDGELLM_FIXTURES)");
    return;
  }
  for (const fs::path& folder : folders) {
    INFO("golden folder " << folder);
    check(Golden(folder));
  }
}

std::vector<int32_t> ids_of(const json& array) { return array.get<std::vector<int32_t>>(); }

// Longer prompts hold int8 codes that flip between correct programs. So may a prompt of one token,
// whose attention output is v itself: integers times one factor, and exact ties after scaling.
bool has_tight_hidden_states(const fs::path& folder, const json& c) {
  const std::string name = c["name"];
  const size_t n = c["ids"].size();
  return n > 1 && n <= 8 && fs::exists(folder / ("hidden_" + name + ".npy"));
}

TEST_CASE("hidden states of short prompts match layer by layer") {
  for_each_golden([](const Golden& golden) {
    for (const json& c : golden.cases) {
      if (!has_tight_hidden_states(golden.folder, c)) continue;
      const std::string name = c["name"];
      INFO("case " << name);
      const Npy expected = read_npy(golden.folder / ("hidden_" + name + ".npy"));
      const auto backend = golden.backend(KvType::kF32);
      const std::vector<int32_t> ids = ids_of(c["ids"]);
      const Results actual = run_ids(*backend, ids, 0, true);
      REQUIRE(actual.hidden.size() == expected.values.size());
      const size_t plane = ids.size() * static_cast<size_t>(golden.model.config().dim);
      for (size_t l = 0; l < expected.shape[0]; ++l) {
        INFO("hidden state " << l);
        const std::span<const float> want = std::span(expected.values).subspan(l * plane, plane);
        const Difference d = difference(std::span(actual.hidden).subspan(l * plane, plane), want);
        CHECK(d.max <= 1e-5 * std::max(1.0, rms(want)));
      }
    }
  });
}

TEST_CASE("logits stay within the limits of a correct program") {
  for_each_golden([](const Golden& golden) {
    for (const KvType type : kKvTypes) {
      const auto backend = golden.backend(type);
      const Npy final_logits = read_npy(golden.folder / "logits_final.npy");
      const size_t vocab = static_cast<size_t>(golden.model.config().vocab);
      size_t index = 0;
      for (const json& c : golden.cases) {
        const std::string name = c["name"];
        INFO("case " << name << ", KV " << to_string(type));
        const std::vector<int32_t> ids = ids_of(c["ids"]);
        const Results actual = run_ids(*backend, ids);
        const std::span<const float> last = std::span(actual.logits).last(vocab);
        const std::span<const float> want =
            std::span(final_logits.values).subspan(index++ * vocab, vocab);
        const double scale = rms(want);
        const Difference d = difference(last, want);
        CHECK(d.max <= 0.24 * scale);
        CHECK(d.rms <= 0.05 * scale);
        const fs::path file = golden.folder / ("logits_full_" + name + ".npy");
        if (!fs::exists(file)) continue;
        const Npy full = read_npy(file);
        const Difference all = difference(actual.logits, full.values);
        CHECK(all.max <= 0.24 * rms(full.values));
        CHECK(all.rms <= 0.05 * rms(full.values));
        // Where the hidden states are compared tightly, no code flips up to the logits either. 4e-5
        // of the rms is the README's 1e-4 and 2e-4 for logits of rms 2 and 5.
        const bool no_flip = has_tight_hidden_states(golden.folder, c);
        if (type == KvType::kF32 && no_flip) CHECK(all.max <= 4e-5 * rms(full.values));
      }
    }
  });
}

TEST_CASE("teacher-forced greedy is exact wherever the margin is clear") {
  for_each_golden([](const Golden& golden) {
    const size_t vocab = static_cast<size_t>(golden.model.config().vocab);
    for (const KvType type : kKvTypes) {
      INFO("KV " << to_string(type));
      const auto backend = golden.backend(type);
      int agree = 0;
      int total = 0;
      for (const json& c : golden.cases) {
        INFO("case " << c["name"]);
        std::vector<int32_t> ids = ids_of(c["ids"]);
        const std::vector<int32_t> greedy = ids_of(c["greedy"]);
        std::vector<int32_t> expected = ids_of(c["top1"]);
        std::vector<double> margin = c["top1_margin"].get<std::vector<double>>();
        const std::vector<double> greedy_margin = c["greedy_margin"].get<std::vector<double>>();
        // Row ids.size() - 1 + i predicts greedy[i]; top1's last entry is greedy[0] as well.
        ids.insert(ids.end(), greedy.begin(), greedy.end() - 1);
        expected.insert(expected.end(), greedy.begin() + 1, greedy.end());
        margin.insert(margin.end(), greedy_margin.begin() + 1, greedy_margin.end());
        REQUIRE(expected.size() == ids.size());
        const Results actual = run_ids(*backend, ids);
        for (size_t i = 0; i < ids.size(); ++i) {
          const auto row = actual.logits.begin() + static_cast<ptrdiff_t>(i * vocab);
          const auto best = std::max_element(row, row + static_cast<ptrdiff_t>(vocab)) - row;
          const bool same = best == expected[i];
          agree += same;
          ++total;
          if (margin[i] >= 0.3 && !same) {
            INFO("position " << i << ", margin " << margin[i] << ": " << best << ", expected "
                             << expected[i]);
            CHECK(same);
          }
        }
      }
      INFO(agree << " of " << total << " positions agree");
      CHECK(agree >= 0.9 * total);
    }
  });
}

TEST_CASE("perplexity matches within 0.3 percent") {
  for_each_golden([](const Golden& golden) {
    if (!fs::exists(golden.folder / "ppl.json")) return;
    const json ppl = read_json(golden.folder / "ppl.json");
    const Npy logprobs = read_npy(golden.folder / "ppl_logprobs.npy");
    const size_t vocab = static_cast<size_t>(golden.model.config().vocab);
    for (const KvType type : kKvTypes) {
      const auto backend = golden.backend(type);
      double sum = 0;
      double differences = 0;
      size_t count = 0;
      for (const json& window : ppl["windows"]) {
        const std::vector<int32_t> ids = ids_of(window);
        const Results actual = run_ids(*backend, ids);
        for (size_t i = 0; i + 1 < ids.size(); ++i) {
          const float* row = actual.logits.data() + i * vocab;
          const double max = static_cast<double>(*std::max_element(row, row + vocab));
          double total = 0;
          for (size_t v = 0; v < vocab; ++v) total += std::exp(static_cast<double>(row[v]) - max);
          const double logprob = static_cast<double>(row[ids[i + 1]]) - max - std::log(total);
          differences += std::fabs(logprob - static_cast<double>(logprobs.values[count]));
          sum -= logprob;
          ++count;
        }
      }
      const double actual_ppl = std::exp(sum / static_cast<double>(count));
      INFO("KV " << to_string(type) << ", ppl " << actual_ppl);
      CHECK(actual_ppl == Approx(ppl["ppl"].get<double>()).epsilon(0.003));
      CHECK(differences / static_cast<double>(count) <= 0.06);
    }
  });
}

}  // namespace
}  // namespace edgellm
