// An HTTP server, on cpp-httplib, for connections from anybody: heads, bodies, the number of
// connections and the time that a client may take are limited.
//
// Each connection has a thread. A handler gets whole requests, returns answers, and can learn that
// its client has gone.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace edgellm::serve {

using Clock = std::chrono::steady_clock;

struct HttpLimits {
  size_t head_bytes = size_t{32} << 10;
  size_t body_bytes = size_t{8} << 20;
  // Each is a thread and two descriptors; a process may often have 1024 descriptors.
  int connections = 448;
  std::chrono::milliseconds head_time{10'000};  // from the first byte of a head to its last
  std::chrono::milliseconds body_time{60'000};
  std::chrono::milliseconds idle_time{30'000};   // between two requests of a connection
  std::chrono::milliseconds write_time{30'000};  // in which a client reads nothing
};

// The connection that a request came on.
class Client {
 public:
  enum class Wake { kEvent, kGone, kTimeout };

  virtual ~Client() = default;

  // Returns when `event_fd` can be read, when the client has closed the connection, or at the time
  // given.
  virtual Wake wait(int event_fd, Clock::time_point until) const = 0;

  bool has_gone() const { return wait(-1, Clock::now()) == Wake::kGone; }
};

// In place of a client, where the program itself wants something: never goes away.
class NoClient final : public Client {
 public:
  Wake wait(int event_fd, Clock::time_point until) const override;
};

struct HttpRequest {
  std::string method;
  std::string path;
  std::vector<std::pair<std::string, std::string>> query;  // behind the path's question mark
  std::vector<std::pair<std::string, std::string>> headers;
  std::string body;
  std::string client_address;
  const Client* client = nullptr;  // while the request is handled

  // The first of that name, in any case; empty where there is none.
  std::string header(std::string_view name) const;
  // The first of that name in the query; empty where there is none.
  std::string parameter(std::string_view name) const;
};

// Takes bytes of a streamed body. False where the client has gone: nothing more is read.
using StreamWriter = std::function<bool(std::string_view bytes)>;

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  std::string body = {};
  std::vector<std::pair<std::string, std::string>> headers = {};
  // In place of `body`: writes it piece by piece, in the thread of the connection.
  std::function<void(const StreamWriter& write)> stream = {};
};

struct HttpHandlers {
  // Asked when the head is there: an answer refuses the request, and the body is not read.
  std::function<std::optional<HttpResponse>(const HttpRequest&)> on_head;
  std::function<HttpResponse(const HttpRequest&)> on_request;
  // The answer to what is no HTTP, or beyond the limits.
  std::function<HttpResponse(int status)> on_error;
  // Sees every request with the status of its answer and the bytes of its body.
  std::function<void(const HttpRequest&, int status, size_t bytes, Clock::duration)> on_end;
};

class HttpServer {
 public:
  explicit HttpServer(const HttpLimits& limits = {});
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  // Port 0 is any that is free. Returns the port. Throws Error (kUsage) where nobody can listen
  // there.
  int bind(const std::string& host, int port);

  // Answers requests until stop(). Then connections end with the answers that are on their way.
  void run(HttpHandlers handlers);
  void stop();

  // From now on a connection ends with its next answer.
  void close_connections();

  int connections() const;

 private:
  class Listener;
  std::unique_ptr<Listener> listener_;
};

}  // namespace edgellm::serve
