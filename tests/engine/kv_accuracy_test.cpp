// What coded keys and values cost on a whole model (docs/numerics.md, "Attention in integers"): the
// demo model's perplexity on a text that it has not seen.
//
// A second model computes the same function, but its keys have outlier channels: rows of K's matrix
// have larger scales, and those of Q's smaller ones.
#include <catch2/catch.hpp>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "engine/kv_type.h"
#include "engine/sampling.h"
#include "model/convert.h"
#include "tests/support/hashed_models.h"
#include "tests/support/older_writer.h"
#include "tests/support/run_ids.h"
#include "tests/support/temp_dir.h"

namespace edgellm {
namespace {

using nlohmann::json;
using namespace edgellm::test;

// Above the 20 of docs/numerics.md, and a power of two: scores over f32 keep their bits.
constexpr float kOutlier = 32.0f;

ModelFile demo_model() {
  return ModelFile::open(source_path("model/demo/storyteller.tmac2").string());
}

std::vector<std::vector<int32_t>> held_out_windows() {
  std::ifstream in(source_path("tests/data/held_out.json"));
  return json::parse(in)["windows"].get<std::vector<std::vector<int32_t>>>();
}

json config_json(const ModelConfig& config) {
  std::ifstream in(source_path("tests/data/shapes/head-dim-80.json"));
  json result = json::parse(in);
  result.update({{"hidden_size", config.dim},
                 {"intermediate_size", config.ffn},
                 {"num_hidden_layers", config.layers},
                 {"num_attention_heads", config.heads},
                 {"num_key_value_heads", config.kv_heads},
                 {"head_dim", config.head_dim},
                 {"vocab_size", config.vocab},
                 {"max_position_embeddings", config.max_context},
                 {"rms_norm_eps", config.norm_eps},
                 {"rope_theta", config.rope_theta}});
  return result;
}

// The same model with two RoPE pairs of every key kOutlier times as large, of every query as much
// smaller. Older files are the ones whose matrices have a scale for each row.
ModelFile with_key_outliers(const ModelFile& model, const TempDir& temp) {
  const ModelConfig& config = model.config();
  const auto scale = [&](OlderMatrix& matrix, float factor) {
    for (int row = 0; row < matrix.rows; ++row) {
      const int pair = row % config.head_dim % (config.head_dim / 2);
      if (pair == 3 || pair == 17) matrix.scales[static_cast<size_t>(row)] *= factor;
    }
  };
  OlderModel older = older_model(model);
  for (OlderLayer& layer : older.layers) {
    scale(layer.k, kOutlier);
    scale(layer.q, 1.0f / kOutlier);
  }
  std::ofstream(temp / "older.bin", std::ios::binary) << tm2_bytes(older);
  std::ofstream(temp / "config.json") << config_json(config);
  convert_older(temp / "older.bin", temp / "outliers.tmac2",
                {.config = temp / "config.json", .tokenizer = ""}, {});
  return ModelFile::open(temp / "outliers.tmac2");
}

struct Run {
  double perplexity = 0;
  std::vector<float> logits;  // of all windows
};

Run run_held_out(const ModelFile& model, KvType type) {
  EngineOptions options;
  options.kv_type = type;
  options.threads = 2;
  const auto backend = make_cpu_backend(model, options);
  const auto vocab = static_cast<size_t>(model.config().vocab);
  Run run;
  double loss = 0;
  double tokens = 0;
  for (const std::vector<int32_t>& ids : held_out_windows()) {
    const Results results = run_ids(*backend, ids);
    run.logits.insert(run.logits.end(), results.logits.begin(), results.logits.end());
    for (size_t i = 0; i + 1 < ids.size(); ++i) {
      loss -= log_probability(std::span(results.logits).subspan(i * vocab, vocab), ids[i + 1]);
      ++tokens;
    }
  }
  run.perplexity = std::exp(loss / tokens);
  return run;
}

// The distance of the logits relative to the length of `exact`.
double drift(const Run& run, const Run& exact) {
  double error = 0;
  double length = 0;
  for (size_t i = 0; i < exact.logits.size(); ++i) {
    const auto want = static_cast<double>(exact.logits[i]);
    const double difference = static_cast<double>(run.logits[i]) - want;
    error += difference * difference;
    length += want * want;
  }
  return std::sqrt(error / length);
}

TEST_CASE("coded keys and values cost less than 0.3 percent of perplexity, outliers included") {
  const TempDir temp;
  const ModelFile plain = demo_model();
  const ModelFile outliers = with_key_outliers(plain, temp);
  const Run exact = run_held_out(plain, KvType::kF32);
  CHECK(exact.perplexity == Approx(20.95).epsilon(0.003));
  const bool same_function = run_held_out(outliers, KvType::kF32).logits == exact.logits;
  CHECK(same_function);
  for (const ModelFile* model : {&plain, &outliers}) {
    for (const KvType type : {KvType::kI16, KvType::kI8}) {
      const Run coded = run_held_out(*model, type);
      const double distance = drift(coded, exact);
      INFO("KV " << to_string(type) << (model == &plain ? "" : ", outliers") << ": perplexity "
                 << coded.perplexity << ", f32 " << exact.perplexity << ", drift " << distance);
      CHECK(coded.perplexity == Approx(exact.perplexity).epsilon(0.003));
      CHECK(distance < 0.02);
      CHECK(distance > 0);
    }
  }
}

}  // namespace
}  // namespace edgellm
