#include "tests/serve/served.h"

#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <stdexcept>

#include "tests/apps/program.h"

namespace edgellm::test {
namespace {

using nlohmann::json;

Messages silent() {
  return {.note = [](std::string_view) {}, .with_progress = [](const auto& work) { work({}); }};
}

SessionOptions session_options(const ServedOptions& served) {
  SessionOptions options;
  options.device = served.device;
  options.fault = parse_device_fault(served.fault);
  options.threads = 2;
  return options;
}

std::vector<ModelChoice> choices(const ServedOptions& options) {
  std::vector<ModelChoice> all;
  for (const std::string& path : options.models) all.push_back({.name = path});
  return all.empty() ? std::vector<ModelChoice>{{.name = demo_model()}} : all;
}

serve::ModelsOptions models_options(const ServedOptions& options) {
  serve::ModelsOptions models;
  models.session = session_options(options);
  models.model.sequences.sequences = options.sequences;
  models.model.sequences.kv_memory = options.kv_memory;
  models.model.queue = options.queue;
  models.max_loaded = options.max_loaded;
  models.keep_alive = options.keep_alive;
  return models;
}

json parsed(const httplib::Result& result, int status) {
  REQUIRE(result);
  INFO(result->body);
  REQUIRE(result->status == status);
  return json::parse(result->body);
}

}  // namespace

Served::Served(const ServedOptions& options)
    : server_(options.limits),
      port_(server_.bind("127.0.0.1", 0)),
      models_(choices(options), models_options(options), options.messages.value_or(silent())),
      api_(models_, options.api) {
  api_.set_connections([this] { return server_.connections(); });
  thread_ = std::thread([this] { server_.run(api_.handlers()); });
  if (options.models.empty())
    models_.use(models_.first(), serve::NoClient(), serve::Clock::time_point::max());
}

Served::~Served() {
  server_.close_connections();
  server_.stop();
  thread_.join();
}

bool becomes_true(const std::function<bool()>& condition) {
  for (int i = 0; i < 1000; ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
}

bool Served::becomes_idle() {
  return becomes_true([this] { return models_.live() == 0 && state().running == 0; });
}

httplib::Client Served::client() const {
  httplib::Client client("127.0.0.1", port_);
  client.set_read_timeout(60);
  return client;
}

json post(const Served& server, const std::string& path, const json& body, int status,
          const httplib::Headers& headers) {
  const std::string text = body.is_string() ? body.get<std::string>() : body.dump();
  return parsed(server.client().Post(path, headers, text, "application/json"), status);
}

json get(const Served& server, const std::string& path, int status,
         const httplib::Headers& headers) {
  return parsed(server.client().Get(path, headers), status);
}

std::vector<json> post_events(const Served& server, const std::string& path, json body) {
  body["stream"] = true;
  const httplib::Result result = server.client().Post(path, body.dump(), "application/json");
  REQUIRE(result);
  INFO(result->body);
  REQUIRE(result->status == 200);
  REQUIRE(result->get_header_value("Content-Type") == "text/event-stream");
  REQUIRE(result->get_header_value_count("Content-Type") == 1);
  std::vector<json> events;
  std::string rest = result->body;
  bool is_done = false;
  while (!rest.empty()) {
    const size_t end = rest.find("\n\n");
    REQUIRE(end != std::string::npos);
    const std::string event = rest.substr(0, end);
    rest = rest.substr(end + 2);
    REQUIRE(event.starts_with("data: "));
    REQUIRE_FALSE(is_done);
    is_done = event == "data: [DONE]";
    if (!is_done) events.push_back(json::parse(event.substr(6)));
  }
  REQUIRE(is_done);
  return events;
}

std::vector<json> post_lines(const Served& server, const std::string& path, const json& body) {
  const httplib::Result result = server.client().Post(path, body.dump(), "application/json");
  REQUIRE(result);
  INFO(result->body);
  REQUIRE(result->status == 200);
  REQUIRE(result->get_header_value("Content-Type") == "application/x-ndjson");
  std::vector<json> lines;
  for (size_t begin = 0; begin < result->body.size();) {
    const size_t end = result->body.find('\n', begin);
    REQUIRE(end != std::string::npos);
    lines.push_back(json::parse(result->body.substr(begin, end - begin)));
    begin = end + 1;
  }
  return lines;
}

RawConnection::RawConnection(const Served& server) : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(server.port()));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (connect(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    throw std::runtime_error("cannot connect");
  }
}

RawConnection::~RawConnection() { close(); }

void RawConnection::close() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

void RawConnection::reset() {
  const linger at_once = {.l_onoff = 1, .l_linger = 0};
  setsockopt(fd_, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
  close();
}

bool RawConnection::send(const std::string& bytes) {
  for (size_t at = 0; at < bytes.size();) {
    const ssize_t n = ::send(fd_, bytes.data() + at, bytes.size() - at, MSG_NOSIGNAL);
    if (n <= 0) return false;
    at += static_cast<size_t>(n);
  }
  return true;
}

std::string RawConnection::receive_until(const std::string& part) {
  std::string text;
  pollfd source = {.fd = fd_, .events = POLLIN, .revents = 0};
  while (text.find(part) == std::string::npos && poll(&source, 1, 20'000) > 0) {
    char bytes[4096];
    const ssize_t n = recv(fd_, bytes, sizeof bytes, 0);
    if (n <= 0) break;
    text.append(bytes, static_cast<size_t>(n));
  }
  return text;
}

bool RawConnection::is_closed_within(int ms) {
  pollfd source = {.fd = fd_, .events = POLLIN, .revents = 0};
  char byte = 0;
  return poll(&source, 1, ms) > 0 && recv(fd_, &byte, 1, MSG_PEEK) <= 0;
}

}  // namespace edgellm::test
