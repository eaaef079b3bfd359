// Embeddings are the hidden states that `edgellm logits --hidden` writes, pooled and normalised.
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>

#include "tests/apps/program.h"
#include "tests/serve/served.h"
#include "tests/support/npy.h"
#include "tests/support/temp_dir.h"

namespace edgellm::test {
namespace {

using nlohmann::json;

constexpr const char* kEmbeddings = "/v1/embeddings";

std::vector<double> normalised(std::vector<double> values) {
  double square = 0;
  for (const double value : values) square += value * value;
  for (double& value : values) value /= std::sqrt(square);
  return values;
}

struct Expected {
  std::vector<double> mean;
  std::vector<double> last;
  size_t n_tokens = 0;
};

Expected expected_of(const std::string& text) {
  const TempDir temp;
  const json ids = json_of(run({"tokenize", demo_model(), text, "--json"}))["ids"];
  const std::string path = write_file(temp, "ids.json", ids.dump());
  const Result logits = run({"logits", demo_model(), "--ids-file", path, "--hidden",
                             temp / "hidden.npy", "--device", "cpu"});
  REQUIRE(logits.exit_code == 0);
  const Npy hidden = read_npy(temp / "hidden.npy");  // [layers + 1, tokens, dim]
  REQUIRE(hidden.shape.size() == 3);
  const size_t n = hidden.shape[1], dim = hidden.shape[2];
  const float* level = hidden.values.data() + (hidden.shape[0] - 1) * n * dim;
  Expected expected = {std::vector<double>(dim), std::vector<double>(dim), n};
  for (size_t i = 0; i < n; ++i) {
    for (size_t d = 0; d < dim; ++d) {
      expected.last[d] = static_cast<double>(level[i * dim + d]);
      expected.mean[d] += expected.last[d];
    }
  }
  expected.mean = normalised(expected.mean);
  expected.last = normalised(expected.last);
  return expected;
}

void check_close(const json& values, const std::vector<double>& expected) {
  REQUIRE(values.size() == expected.size());
  double worst = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    worst = std::max(worst, std::abs(values[i].get<double>() - expected[i]));
  }
  CHECK(worst < 1e-7);
}

std::string refusal(const Served& server, const char* path, const json& body) {
  const json error = post(server, path, body, 400)["error"];
  return error.is_string() ? error : error["message"];
}

// The floats of a base64 text.
std::vector<float> floats_of(const std::string& text) {
  const std::string digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string bytes;
  uint32_t bits = 0;
  int n_bits = 0;
  for (const char c : text) {
    if (c == '=') break;
    bits = bits << 6 | static_cast<uint32_t>(digits.find(c));
    n_bits += 6;
    if (n_bits < 8) continue;
    n_bits -= 8;
    bytes += static_cast<char>(bits >> n_bits & 0xff);
  }
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), values.size() * sizeof(float));
  return values;
}

TEST_CASE("embeddings are pooled hidden states of length 1") {
  const Served server;
  const std::string text = "A wolf met a lamb.";
  const std::string other = "The sea was calm, and the ships lay in the harbour.";
  const Expected first = expected_of(text), second = expected_of(other);
  const json answer = post(server, kEmbeddings, {{"input", json::array({text, other})}});
  CHECK(answer["object"] == "list");
  CHECK(answer["model"] == "storyteller");
  CHECK(answer["usage"]["prompt_tokens"] == first.n_tokens + second.n_tokens);
  REQUIRE(answer["data"].size() == 2);
  CHECK(answer["data"][1]["index"] == 1);
  check_close(answer["data"][0]["embedding"], first.mean);
  check_close(answer["data"][1]["embedding"], second.mean);

  json body = {{"input", text}, {"pooling", "last"}};
  const json last = post(server, kEmbeddings, body)["data"][0]["embedding"];
  check_close(last, first.last);
  body["encoding_format"] = "base64";
  const std::string encoded = post(server, kEmbeddings, body)["data"][0]["embedding"];
  CHECK(floats_of(encoded) == last.get<std::vector<float>>());

  // Beside answers, and of ids.
  const json ids = post(server, "/tokenize", {{"prompt", text}})["tokens"];
  for (int i = 0; i < 3; ++i) {
    // Catch2 allows assertions in one thread only.
    int status = 0;
    std::thread beside([&] {
      const json asked = {{"prompt", other}, {"max_tokens", 30}};
      const auto result = server.client().Post("/v1/completions", asked.dump(), "application/json");
      if (result) status = result->status;
    });
    const json again = post(server, kEmbeddings, {{"input", ids}});
    beside.join();
    CHECK(status == 200);
    CHECK(again["data"][0]["embedding"] == answer["data"][0]["embedding"]);
  }
}

TEST_CASE("Ollama's embeddings are the same, and a long text loses its end") {
  const Served server;
  const std::string text = "A wolf met a lamb.";
  const json openai = post(server, kEmbeddings, {{"input", text}})["data"][0]["embedding"];
  const json many = post(server, "/api/embed", {{"input", json::array({text, "x"})}});
  CHECK(many["embeddings"].size() == 2);
  CHECK(many["embeddings"][0] == openai);
  CHECK(many["total_duration"] >= many["load_duration"]);
  CHECK(many["prompt_eval_count"].get<int>() > 2);
  CHECK(post(server, "/api/embeddings", {{"prompt", text}})["embedding"] == openai);

  json ids = json::array();
  for (int i = 0; i < 3000; ++i) ids.push_back(100 + i % 300);
  const json cut = json(ids.begin(), ids.begin() + 2047);
  CHECK(post(server, "/api/embed", {{"input", ids}})["prompt_eval_count"] == 2047);
  CHECK(post(server, "/api/embed", {{"input", ids}})["embeddings"] ==
        post(server, "/api/embed", {{"input", cut}})["embeddings"]);
  CHECK(refusal(server, "/api/embed", {{"input", ids}, {"truncate", false}}).find("3000") !=
        std::string::npos);
}

TEST_CASE("what is wrong with a request for embeddings is named") {
  const Served server;
  const auto refused = [&](const json& body, const std::string& part) {
    const std::string message = refusal(server, kEmbeddings, body);
    INFO(message);
    CHECK(message.find(part) != std::string::npos);
  };
  refused({{"model", "storyteller"}}, "input");
  refused({{"input", ""}}, "input is empty");
  refused({{"input", json::array()}}, "input is empty");
  refused({{"input", json::array({"a", 5})}}, "input");
  refused({{"input", json::array({4096})}}, "4096");
  refused({{"input", "a"}, {"dimensions", 3}}, "dimensions is 3");
  refused({{"input", "a"}, {"encoding_format", "hex"}}, "expected float or base64");
  refused({{"input", "a"}, {"pooling", "cls"}}, "expected mean or last");
  refused({{"input", "a"}, {"temperature", 1}}, "temperature");
}

}  // namespace
}  // namespace edgellm::test
