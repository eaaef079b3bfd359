// What operators and tools ask.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cctype>
#include <map>
#include <mutex>
#include <set>
#include <sstream>

#include "apps/serve/metrics.h"
#include "tests/apps/program.h"
#include "tests/serve/served.h"

namespace edgellm::test {
namespace {

using nlohmann::json;

// Name with labels: value. Every line is a comment or a sample.
std::map<std::string, double> samples(const std::string& text) {
  std::map<std::string, double> found;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("# HELP edgellm:") || line.starts_with("# TYPE edgellm:")) continue;
    const size_t space = line.rfind(' ');
    REQUIRE(space != std::string::npos);
    REQUIRE(line.starts_with("edgellm:"));
    size_t n_read = 0;
    found[line.substr(0, space)] = std::stod(line.substr(space + 1), &n_read);
    REQUIRE(n_read == line.size() - space - 1);
  }
  return found;
}

TEST_CASE("metrics count what was asked and answered") {
  Served server;
  json body = {{"prompt", json::array()}, {"max_tokens", 5}, {"temperature", 0}};
  for (int id = 0; id < 100; ++id) body["prompt"].push_back(id + 100);
  post(server, "/v1/completions", body);
  post(server, "/v1/completions", body);
  post(server, "/v1/completions", {{"prompt", 5}}, 400);
  REQUIRE(server.becomes_idle());
  const httplib::Result result = server.client().Get("/metrics");
  REQUIRE(result);
  CHECK(result->get_header_value("Content-Type").starts_with("text/plain; version=0.0.4"));
  const std::map<std::string, double> found = samples(result->body);
  const auto value = [&](const std::string& name) {
    return found.at("edgellm:" + name + "{model_name=\"storyteller\"}");
  };
  CHECK(value("num_requests_running") == 0);
  CHECK(value("num_requests_waiting") == 0);
  CHECK(value("kv_cache_usage_perc") == 0);
  CHECK(value("kv_cache_blocks_cached") == 1);
  const std::string blocks = std::to_string(static_cast<int>(value("kv_cache_blocks")));
  CHECK(found.at("edgellm:cache_config_info{model_name=\"storyteller\",block_size=\"64\","
                 "num_gpu_blocks=\"" +
                 blocks + "\"}") == 1);
  CHECK(value("prompt_tokens_total") == 136);
  CHECK(value("prompt_tokens_cached_total") == 64);
  CHECK(value("tokens_predicted_total") == 10);
  CHECK(value("requests_total") == 2);
  CHECK(found.at("edgellm:connections") >= 1);
  CHECK(value("time_to_first_token_seconds_count") == 2);
  CHECK(value("inter_token_latency_seconds_count") == 8);
  CHECK(value("e2e_request_latency_seconds_sum") > 0);
  CHECK(found.at("edgellm:inter_token_latency_seconds_bucket{model_name=\"storyteller\",le=\"+Inf"
                 "\"}") == 8);
}

TEST_CASE("a histogram's buckets hold what is at most their bound") {
  serve::SecondsHistogram histogram;
  for (const int64_t ms : {1, 2, 3, 100, 101, 1'000'000}) histogram.add(ms * 1'000'000);
  histogram.add(-5);               // a clock that stood still
  CHECK(histogram.up_to(0) == 2);  // 1 ms
  CHECK(histogram.up_to(1) == 3);  // 2.5 ms
  CHECK(histogram.up_to(2) == 4);
  CHECK(histogram.up_to(6) == 5);   // 0.1 s
  CHECK(histogram.up_to(7) == 6);   // 0.25 s
  CHECK(histogram.up_to(15) == 6);  // 100 s
  CHECK(histogram.count() == 7);
  CHECK(histogram.sum() == Approx(1000.207));
}

TEST_CASE(
    "metrics of several models stand together under each name, and energy where it is known") {
  serve::EngineState state;
  state.counters.output_ids = 30;
  serve::EngineState other;
  other.counters.output_ids = 10;
  serve::EngineState earlier = other;
  earlier.ttft.add(2'000'000);
  other.add_counts(earlier);
  const std::string text = serve::metrics_text(
      {.connections = 3, .gpu_joules = 100.0, .models = {{"a", state}, {"b", other}}});
  CHECK(text.find("edgellm:tokens_predicted_total{model_name=\"a\"} 30\n"
                  "edgellm:tokens_predicted_total{model_name=\"b\"} 20\n") != std::string::npos);
  const std::map<std::string, double> found = samples(text);
  CHECK(found.at("edgellm:connections") == 3);
  CHECK(found.at("edgellm:gpu_energy_joules_total") == 100);
  CHECK(found.at("edgellm:joules_per_token") == 2);
  CHECK(found.at("edgellm:time_to_first_token_seconds_count{model_name=\"b\"}") == 1);
  // Each name is declared once.
  std::set<std::string> types;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("# TYPE ")) CHECK(types.insert(line).second);
  }
  CHECK(serve::metrics_text({.models = {{"a", state}}}).find("joules") == std::string::npos);
}

TEST_CASE("a label's quotes and newlines do not end it") {
  const std::string text = serve::metrics_text({.models = {{"a\"b\\c\nd", {}}}});
  CHECK(text.find("{model_name=\"a\\\"b\\\\c d\"} ") != std::string::npos);
}

TEST_CASE("tokenize and detokenize, with the fields of other servers") {
  const Served server;
  const json vllm = post(server, "/tokenize", {{"prompt", "Once upon a time"}});
  const json plain = post(server, "/tokenize", {{"content", "Once upon a time"}});
  CHECK(vllm["count"] == vllm["tokens"].size());
  CHECK(vllm["tokens"].size() == plain["tokens"].size() + 1);  // a BOS
  CHECK(vllm["max_model_len"] == 2048);
  const json with_special =
      post(server, "/tokenize", {{"content", "Once upon a time"}, {"add_special", true}});
  CHECK(with_special["tokens"] == vllm["tokens"]);
  const json pieces = post(server, "/tokenize", {{"content", "Once upon"}, {"with_pieces", true}});
  std::string joined;
  for (const json& token : pieces["tokens"]) joined += token["piece"].get<std::string>();
  CHECK(joined == "Once upon");
  CHECK(post(server, "/detokenize", {{"tokens", plain["tokens"]}})["content"] ==
        "Once upon a time");
  CHECK(post(server, "/detokenize", {{"tokens", json::array({4096})}}, 400)["error"]["message"]
            .get<std::string>()
            .find("4096") != std::string::npos);
  CHECK(get(server, "/tokenizer_info")["bos_token"] == "<|begin_of_text|>");
}

TEST_CASE("docs/openapi.json has every path, and no other") {
  Served server;
  const json file = json::parse(read_file(EDGELLM_SOURCE_DIR "/docs/openapi.json"));
  std::set<std::pair<std::string, std::string>> described;
  for (const auto& [path, operations] : file["paths"].items()) {
    for (const auto& [method, operation] : operations.items()) {
      std::string name = path.substr(0, path.find('{'));
      std::string verb = method;
      std::ranges::transform(verb, verb.begin(), [](unsigned char c) { return std::toupper(c); });
      described.emplace(verb, name);
    }
  }
  std::set<std::pair<std::string, std::string>> served;
  for (const auto& route : server.api().routes()) served.insert(route);
  CHECK(served == described);
}

TEST_CASE("the access log has a line for each request, with what was answered") {
  std::mutex mutex;
  std::vector<json> lines;
  ServedOptions options;
  options.api.access_log = [&](const std::string& line) {
    const std::lock_guard guard(mutex);
    lines.push_back(json::parse(line));
  };
  {
    const Served server(options);
    get(server, "/health", 200, {{"User-Agent", "probe \"1\""}});
    get(server, "/nowhere", 404);
    post(server, "/v1/completions", {{"prompt", "x"}, {"max_tokens", 2}});
    post_events(server, "/v1/completions", {{"prompt", "x"}, {"max_tokens", 2}});
  }
  REQUIRE(lines.size() == 4);
  CHECK(lines[0]["path"] == "/health");
  CHECK(lines[0]["user_agent"] == "probe \"1\"");
  CHECK(lines[0]["client"] == "127.0.0.1");
  CHECK(lines[1]["status"] == 404);
  CHECK(lines[2]["method"] == "POST");
  for (const json& line : lines) {
    CHECK(line["bytes"].get<int>() > 10);
    CHECK(line["ms"].get<double>() > 0);
    CHECK(line["time"].get<std::string>().ends_with("Z"));
  }
}

TEST_CASE("props say what runs where") {
  Served server;
  const json props = get(server, "/props");
  CHECK(props["model"] == "storyteller");
  CHECK(props["total_slots"] == 4);
  CHECK(props["default_generation_settings"]["n_ctx"] == 2048);
  CHECK(props["default_generation_settings"]["params"]["temperature"] == 1);
  CHECK(props["device"].get<std::string>().starts_with("cpu"));
}

TEST_CASE("SGLang's router learns a worker's model") {
  Served server;
  const json info = get(server, "/server_info");
  CHECK(info["served_model_name"] == "storyteller");
  CHECK(info["max_running_requests"] == 4);
  const json model = get(server, "/model_info");
  CHECK(model["is_generation"] == true);
  CHECK(model["max_model_len"] == 2048);
}

TEST_CASE("the fields that SGLang's router adds change nothing") {
  Served server;
  const json body = {{"prompt", "Once"}, {"max_tokens", 5}, {"temperature", 0}};
  json routed = body;
  routed.update({{"no_stop_trim", false},
                 {"ignore_eos", false},
                 {"skip_special_tokens", true},
                 {"return_hidden_states", false},
                 {"continue_final_message", false},
                 {"separate_reasoning", true},
                 {"stream_reasoning", true}});
  CHECK(post(server, "/v1/completions", routed)["choices"][0]["text"] ==
        post(server, "/v1/completions", body)["choices"][0]["text"]);
  for (const json& other : {json{{"no_stop_trim", true}}, json{{"skip_special_tokens", false}},
                            json{{"return_hidden_states", true}}}) {
    json wrong = body;
    wrong.update(other);
    post(server, "/v1/completions", wrong, 400);
  }
}

}  // namespace
}  // namespace edgellm::test
