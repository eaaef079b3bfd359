// Several models: loaded on demand, unloaded when others need their place or nobody asks.
#include <catch2/catch.hpp>
#include <csignal>
#include <filesystem>
#include <map>
#include <mutex>

#include "apps/common/signals.h"
#include "apps/serve/api_error.h"
#include "tests/apps/program.h"
#include "tests/serve/served.h"
#include "tests/support/environment.h"
#include "tests/support/temp_dir.h"

namespace edgellm::test {
namespace {

using nlohmann::json;

// The demo model under other names.
class ModelFiles {
 public:
  explicit ModelFiles(const std::vector<std::string>& names) {
    for (const std::string& name : names) {
      paths_.push_back(temp_ / (name + ".tmac2"));
      std::filesystem::copy_file(demo_model(), paths_.back());
    }
  }
  const std::vector<std::string>& paths() const { return paths_; }

 private:
  TempDir temp_;
  std::vector<std::string> paths_;
};

std::string answer_of(const Served& server, const std::string& model) {
  const json body = {
      {"model", model}, {"prompt", "Once upon"}, {"max_tokens", 8}, {"temperature", 0}};
  return post(server, "/v1/completions", body)["choices"][0]["text"];
}

std::vector<std::string> loaded_models(const Served& server) {
  std::vector<std::string> names;
  const json answer = get(server, "/api/ps");
  for (const json& model : answer["models"]) names.push_back(model["name"]);
  return names;
}

using Names = std::vector<std::string>;

serve::Clock::time_point in(int ms) { return serve::Clock::now() + std::chrono::milliseconds(ms); }

// What a client sends that wants an answer.
std::string question(const json& asked) {
  const std::string body = asked.dump();
  return "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: " +
         std::to_string(body.size()) + "\r\n\r\n" + body;
}

// Statuses of a server's answers, as its access log has them.
class Statuses {
 public:
  std::function<void(const std::string&)> log() {
    return [this](const std::string& line) {
      const std::lock_guard guard(mutex_);
      ++counts_[json::parse(line)["status"]];
    };
  }
  int count(int status) {
    const std::lock_guard guard(mutex_);
    return counts_[status];
  }

 private:
  std::mutex mutex_;
  std::map<int, int> counts_;
};

// Holds up whoever loads a model, until it is let through.
class Gate {
 public:
  Messages messages() {
    return {.note = [](std::string_view) {},
            .with_progress =
                [this](const auto& work) {
                  ++n_loads_;
                  work([this](std::string_view, uint64_t, uint64_t) {
                    while (!is_open_) std::this_thread::sleep_for(std::chrono::milliseconds(1));
                  });
                }};
  }
  void open() { is_open_ = true; }
  int loads() const { return n_loads_; }  // that have begun

 private:
  std::atomic<int> n_loads_ = 0;
  std::atomic<bool> is_open_ = false;
};

TEST_CASE("models are loaded when they are asked for, and the least recently used makes room") {
  const ModelFiles files({"a", "b", "c"});
  Served server({.models = files.paths(), .max_loaded = 2});
  CHECK(loaded_models(server).empty());
  const std::string text = answer_of(server, "a");
  CHECK_FALSE(text.empty());
  CHECK(loaded_models(server) == Names{"a:latest"});
  CHECK(answer_of(server, "b:latest") == text);
  CHECK(answer_of(server, "a") == text);
  CHECK(answer_of(server, "c") == text);  // b was used before a
  CHECK(loaded_models(server) == Names{"a:latest", "c:latest"});
  // Without a name: the first.
  CHECK(post(server, "/v1/completions", {{"prompt", "x"}, {"max_tokens", 1}})["model"] == "a");
  CHECK(answer_of(server, "b") == text);
  CHECK(loaded_models(server) == Names{"a:latest", "b:latest"});

  // What needs no weights loads none.
  CHECK(get(server, "/v1/models")["data"].size() == 3);
  CHECK(get(server, "/api/tags")["models"].size() == 3);
  CHECK(get(server, "/v1/models/c")["max_model_len"] == 2048);
  CHECK(post(server, "/tokenize", {{"model", "c"}, {"content", "x"}})["count"] == 1);
  CHECK(get(server, "/props?model=c")["is_loaded"] == false);
  CHECK(get(server, "/props")["device"].get<std::string>().starts_with("cpu"));
  CHECK(get(server, "/props?model=d", 404)["error"]["message"].get<std::string>().find("a, b, c") !=
        std::string::npos);
  CHECK(loaded_models(server) == Names{"a:latest", "b:latest"});
  // What an engine has counted outlives it.
  const std::string metrics = server.client().Get("/metrics")->body;
  CHECK(metrics.find("edgellm:requests_total{model_name=\"a\"} 3\n") != std::string::npos);
  CHECK(metrics.find("edgellm:requests_total{model_name=\"b\"} 2\n") != std::string::npos);
  CHECK(metrics.find("edgellm:requests_total{model_name=\"c\"} 1\n") != std::string::npos);
}

TEST_CASE("many clients of three models that share one place get right answers") {
  const ModelFiles files({"a", "b", "c"});
  Served server({.models = files.paths(), .max_loaded = 1});
  const std::string expected = answer_of(server, "a");
  std::atomic<int> n_right = 0;
  std::vector<std::thread> clients;
  constexpr int kClients = 6, kAsks = 3;
  for (int client = 0; client < kClients; ++client) {
    clients.emplace_back([&, client] {
      httplib::Client http = server.client();
      for (int i = 0; i < kAsks; ++i) {
        const json body = {{"model", std::string(1, static_cast<char>('a' + (client + i) % 3))},
                           {"prompt", "Once upon"},
                           {"max_tokens", 8},
                           {"temperature", 0}};
        const auto answer = http.Post("/v1/completions", body.dump(), "application/json");
        if (answer && answer->status == 200 &&
            json::parse(answer->body)["choices"][0]["text"] == expected) {
          ++n_right;
        }
      }
    });
  }
  for (std::thread& client : clients) client.join();
  CHECK(n_right == kClients * kAsks);
  CHECK(loaded_models(server).size() == 1);
}

TEST_CASE("a model whose place is in use is waited for, but not longer than a request may take") {
  const ModelFiles files({"a", "b"});
  Served server({.models = files.paths(), .max_loaded = 1});
  serve::ServedModel& a = *server.models().find("a");
  serve::ServedModel& b = *server.models().find("b");
  std::shared_ptr<serve::LoadedModel> in_use =
      server.models().use(a, serve::NoClient(), in(60'000));
  int status = 0;
  try {
    server.models().use(b, serve::NoClient(), in(100));
  } catch (const serve::ApiError& error) {
    status = error.status;
    CHECK(error.code == "models_busy");
  }
  CHECK(status == 503);
  // It was not unloaded, and can be used again.
  CHECK(server.models().use(a, serve::NoClient(), in(60'000)).get() == in_use.get());
  std::thread later([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    in_use.reset();
  });
  CHECK_FALSE(answer_of(server, "b").empty());
  later.join();
}

TEST_CASE("a client that goes away while its model waits for a place waits no longer") {
  const ModelFiles files({"a", "b"});
  Statuses statuses;
  Served server({.models = files.paths(), .max_loaded = 1, .api = {.access_log = statuses.log()}});
  serve::ServedModel& a = *server.models().find("a");
  const std::shared_ptr<serve::LoadedModel> in_use =
      server.models().use(a, serve::NoClient(), in(60'000));
  const auto is_leaving = [&] {
    try {
      server.models().use(a, serve::NoClient(), in(0));
    } catch (const serve::ApiError&) {
      return true;
    }
    return false;
  };
  CHECK_FALSE(is_leaving());
  RawConnection first(server), second(server);
  REQUIRE(first.send(question({{"model", "b"}, {"prompt", "x"}, {"max_tokens", 1}})));
  REQUIRE(becomes_true(is_leaving));
  REQUIRE(second.send(question({{"model", "b"}, {"prompt", "x"}, {"max_tokens", 1}})));
  first.close();
  REQUIRE(becomes_true([&] { return statuses.count(499) == 1; }));
  // The second still wants the place.
  CHECK(becomes_true(is_leaving));
  second.reset();
  REQUIRE(becomes_true([&] { return statuses.count(499) == 2; }));
  CHECK_FALSE(is_leaving());
  CHECK(loaded_models(server) == Names{"a:latest"});
}

TEST_CASE("a model is not loaded for clients that have all gone") {
  const ModelFiles files({"a"});
  Gate gate;
  Statuses statuses;
  Served server({.models = files.paths(),
                 .api = {.access_log = statuses.log()},
                 .messages = gate.messages()});
  const auto is_loading = [&] { return gate.loads() == 1; };
  SECTION("one client") {
    RawConnection client(server);
    REQUIRE(client.send(question({{"model", "a"}, {"prompt", "x"}, {"max_tokens", 1}})));
    REQUIRE(becomes_true(is_loading));
    client.close();
    gate.open();
    REQUIRE(becomes_true([&] { return statuses.count(499) == 1; }));
    CHECK(loaded_models(server).empty());
    CHECK_FALSE(answer_of(server, "a").empty());
    CHECK(gate.loads() == 2);
  }
  SECTION("another one waits for the same model") {
    RawConnection client(server), other(server);
    REQUIRE(client.send(question({{"model", "a"}, {"prompt", "x"}, {"max_tokens", 1}})));
    REQUIRE(becomes_true(is_loading));
    REQUIRE(other.send(question({{"model", "a"}, {"prompt", "x"}, {"max_tokens", 1}})));
    // It has no way to say that it waits.
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    client.close();
    gate.open();
    CHECK(other.receive_until("finish_reason").find(" 200 ") != std::string::npos);
    CHECK(becomes_true([&] { return statuses.count(499) == 1; }));
    CHECK(gate.loads() == 1);
    CHECK(becomes_true([&] { return server.state().counters.requests == 1; }));
  }
}

TEST_CASE("a signal that comes while a model is loaded for a request ends that request") {
  const ModelFiles files({"a"});
  const Served server({.models = files.paths(),
                       .messages = Messages{.note = [](std::string_view) {},
                                            .with_progress =
                                                [](const auto& work) {
                                                  work([](std::string_view, uint64_t, uint64_t) {
                                                    throw Interrupted{SIGTERM};
                                                  });
                                                }}});
  const json body = {{"prompt", "x"}, {"max_tokens", 1}};
  CHECK(post(server, "/v1/completions", body, 503)["error"]["code"] == "shutting_down");
}

TEST_CASE("a newer file of the first model takes its place and goes on with its counts") {
  const ModelFiles files({"a", "b"});
  const std::string path = files.paths()[0], newer = path + ".new";
  const auto make_model = [](const std::string& seed, const std::string& to) {
    REQUIRE(
        run({"synth", "smollm-135m", "--layers", "1", "--vocab", "50", "--seed", seed, "-o", to})
            .exit_code == 0);
  };
  std::filesystem::remove(path);
  make_model("1", path);
  make_model("2", newer);
  Served server({.models = files.paths()});
  json body = {{"prompt", {1, 2, 3}}, {"max_tokens", 8}, {"ignore_eos", true}, {"temperature", 0}};
  const auto ids = [&] {
    const json answer = post(server, "/v1/completions", body);
    CHECK(answer["model"] == "a");
    return answer["choices"][0]["token_ids"].get<std::vector<int>>();
  };
  const auto has_counted = [&](int n) {
    const std::string line = "edgellm:requests_total{model_name=\"a\"} " + std::to_string(n) + "\n";
    return server.client().Get("/metrics")->body.find(line) != std::string::npos;
  };
  const std::vector<int> old_ids = ids();
  CHECK(ids() == old_ids);
  // The old one is in use when the new one comes.
  const serve::ServedModel& old_model = server.models().first();
  json long_body = body;
  long_body["max_tokens"] = 1500;
  long_body["stream"] = true;
  RawConnection connection(server);
  REQUIRE(connection.send(question(long_body)));
  std::string long_answer = connection.receive_until("data: ");
  std::filesystem::rename(newer, path);
  server.models().add(path);
  server.models().add(path);  // the same once more
  const serve::ServedModel& new_model = server.models().first();
  CHECK(&new_model != &old_model);
  CHECK(new_model.file().id() != old_model.file().id());
  CHECK(get(server, "/v1/models")["data"].size() == 2);
  CHECK(get(server, "/v1/models")["data"][0]["id"] == "a");
  CHECK(ids() != old_ids);
  const std::string done = "[DONE]";
  if (long_answer.find(done) == std::string::npos) long_answer += connection.receive_until(done);
  CHECK(long_answer.find(done) != std::string::npos);
  // What the old one had answered, and what it has answered since.
  CHECK(becomes_true([&] { return has_counted(4); }));
  CHECK(becomes_true([&] {
    server.models().unload_expired();
    return !server.models().status(old_model).is_loaded;
  }));
  CHECK(has_counted(4));
  CHECK(loaded_models(server) == Names{"a:latest"});
}

TEST_CASE("a model is unloaded when its time is over") {
  const ModelFiles files({"a", "b"});
  Served server({.models = files.paths(), .keep_alive = std::chrono::milliseconds(150)});
  const auto ask = [&](const json& keep_alive) {
    json body = {
        {"model", "a"}, {"prompt", "x"}, {"stream", false}, {"options", {{"num_predict", 1}}}};
    if (!keep_alive.is_null()) body["keep_alive"] = keep_alive;
    return post(server, "/api/generate", body);
  };
  const auto unloads = [&] {
    server.models().unload_expired();
    return loaded_models(server).empty();
  };
  CHECK(ask(nullptr)["load_duration"].get<int64_t>() > 0);
  CHECK(becomes_true(unloads));  // the server's own time
  ask(-1);
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  CHECK_FALSE(unloads());
  CHECK(get(server, "/api/ps")["models"][0]["expires_at"] == "2318-01-01T00:00:00Z");
  ask("1h");
  CHECK_FALSE(unloads());
  CHECK(get(server, "/api/ps")["models"][0]["expires_at"].get<std::string>() < "2300");
  ask(0);
  CHECK(unloads());

  // In use, it stays.
  const std::shared_ptr<serve::LoadedModel> used = server.models().use(
      server.models().first(), serve::NoClient(), serve::Clock::now() + std::chrono::minutes(1));
  server.models().expire(server.models().first());
  CHECK_FALSE(unloads());

  // Loading and unloading alone.
  const auto reason = [&](const json& keep_alive) {
    return post(server, "/api/generate",
                {{"model", "b"}, {"keep_alive", keep_alive}})["done_reason"];
  };
  CHECK(reason("5m") == "load");
  CHECK(loaded_models(server) == Names{"a:latest", "b:latest"});
  CHECK(reason(0) == "unload");
  server.models().unload_expired();
  CHECK(loaded_models(server) == Names{"a:latest"});
}

TEST_CASE("durations as Ollama writes them") {
  const auto ms = [](const std::string& text) -> int64_t {
    const serve::KeepAlive parsed = serve::parse_keep_alive("--keep-alive", text);
    return parsed ? parsed->count() : -1;
  };
  CHECK(ms("0") == 0);
  CHECK(ms("90s") == 90'000);
  CHECK(ms("5m") == 300'000);
  CHECK(ms("1h30m") == 5'400'000);
  CHECK(ms("1.5h") == 5'400'000);
  CHECK(ms("300ms") == 300);
  CHECK(ms("2500us") == 2);
  CHECK(ms("10") == 10'000);
  CHECK(ms("-1") == -1);
  CHECK(ms("-5m") == -1);
  for (const char* bad :
       {"", "-", "m", "5x", "5m3", "5 m", "m5", "--5", "1e3", "inf", "nan", "5m-1s"}) {
    INFO(bad);
    CHECK_THROWS_WITH(ms(bad), Catch::Contains("expected a duration"));
  }
}

TEST_CASE(
    "models of the command line: two of one name are refused, none means all that are stored") {
  const ModelFiles files({"a", "b"}), others({"a"});
  check_refused(run({"serve", files.paths()[0], others.paths()[0], "--port", "0"}), 2,
                "are both called a");
  check_refused(run({"serve", files.paths()[0], "--keep-alive", "soon"}), 2, "--keep-alive");
  check_refused(run({"serve", files.paths()[0], "--pooling", "cls"}), 2, "--pooling");
  const TempDir empty;
  const WithVariable no_models("EDGELLM_MODELS", empty.path().string());
  const WithVariable no_home("HOME", empty.path().string());
  const WithVariable no_data("XDG_DATA_HOME", "");
  check_refused(run({"serve", "--port", "0"}), 2, "edgellm pull");
}

}  // namespace
}  // namespace edgellm::test
