#include "apps/serve/http_server.h"

#include <arpa/inet.h>
#include <httplib.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <system_error>
#include <thread>

#include "base/error.h"
#include "base/linux.h"
#include "base/log.h"

namespace edgellm::serve {
namespace {

// Connections that wait to be accepted. The library's own 5 would let a burst of clients wait for
// their second SYN.
constexpr int kBacklog = 1024;

bool same_name(std::string_view a, std::string_view b) {
  return a.size() == b.size() && strncasecmp(a.data(), b.data(), a.size()) == 0;
}

int ms_until(Clock::time_point until) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now()).count();
  return static_cast<int>(std::clamp<int64_t>(left, 0, 3'600'000));
}

bool poll_for(int fd, short event, Clock::time_point until) {
  pollfd source = {.fd = fd, .events = event, .revents = 0};
  int n = 0;
  while ((n = poll(&source, 1, ms_until(until))) < 0 && errno == EINTR) {
  }
  return n > 0;
}

}  // namespace

// A thread for each connection, up to a number of them; others wait to be accepted.
class ConnectionThreads : public httplib::TaskQueue {
 public:
  // `live` counts them; `is_full` says that one waits.
  ConnectionThreads(int most, std::atomic<int>& live, std::atomic<bool>& is_full)
      : most_(most), live_(live), is_full_(is_full) {}

  void enqueue(std::function<void()> connection) override {
    {
      std::unique_lock lock(mutex_);
      is_full_ = live_ >= most_;
      changed_.wait(lock, [this] { return live_ < most_; });
      is_full_ = false;
      ++live_;
    }
    try {
      std::thread([this, connection] {
        connection();
        end();
      }).detach();
    } catch (const std::system_error&) {  // no more threads: this one serves, and accepts later
      connection();
      end();
    }
  }

  void shutdown() override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return live_ == 0; });
  }

 private:
  void end() {
    const std::lock_guard lock(mutex_);
    --live_;
    changed_.notify_all();
  }

  const int most_;
  std::atomic<int>& live_;  // written with mutex_ held, as the next
  std::atomic<bool>& is_full_;
  std::mutex mutex_;
  std::condition_variable changed_;
};

// A connection as the library reads and writes it, with a time limit for what is on its way.
class Connection final : public httplib::Stream, public Client {
 public:
  Connection(int fd, const HttpLimits& limits) : fd_(fd), limits_(limits) {}

  // Waits for the first byte of a request. False where there is none in time, or `must_end` says
  // so.
  bool await_request(const std::function<bool()>& must_end) {
    constexpr std::chrono::milliseconds kSlice{100};
    const auto until = Clock::now() + limits_.idle_time;
    while (begin_ == end_) {
      if (must_end() || Clock::now() >= until) return false;
      if (poll_for(fd_, POLLIN, Clock::now() + kSlice)) return fill();
    }
    return true;
  }

  void begin_head() {
    n_head_bytes_ = 0;
    read_until_ = Clock::now() + limits_.head_time;
    must_close_ = false;
  }
  void end_head() {
    n_head_bytes_ = -1;
    read_until_ = Clock::now() + limits_.body_time;
  }

  // What is left of a request makes no sense as the next one.
  void close_after_answer() { must_close_ = true; }
  bool must_close() const { return must_close_; }
  bool is_past_deadline() const { return Clock::now() >= read_until_; }

  // ---- Client

  Wake wait(int event_fd, Clock::time_point until) const override {
    std::array<pollfd, 2> sources = {
        pollfd{.fd = fd_, .events = peer_ended(), .revents = 0},
        pollfd{.fd = event_fd, .events = POLLIN, .revents = 0},
    };
    while (poll(sources.data(), sources.size(), ms_until(until)) < 0 && errno == EINTR) {
    }
    if ((sources[0].revents & (peer_ended() | POLLHUP | POLLERR | POLLNVAL)) != 0)
      return Wake::kGone;
    return sources[1].revents != 0 ? Wake::kEvent : Wake::kTimeout;
  }

  // ---- httplib::Stream

  bool is_readable() const override { return begin_ < end_ || poll_for(fd_, POLLIN, read_until_); }
  bool is_writable() const override {
    return poll_for(fd_, POLLOUT, Clock::now() + limits_.write_time);
  }

  // The library reads a head byte by byte.
  ssize_t read(char* to, size_t n_bytes) override {
    if (n_head_bytes_ >= 0) {
      n_head_bytes_ += static_cast<ssize_t>(n_bytes);
      if (n_head_bytes_ > static_cast<ssize_t>(limits_.head_bytes)) return -1;
    }
    if (begin_ == end_ && !(poll_for(fd_, POLLIN, read_until_) && fill())) return -1;
    const size_t n = std::min(n_bytes, end_ - begin_);
    std::memcpy(to, buffer_.data() + begin_, n);
    begin_ += n;
    return static_cast<ssize_t>(n);
  }

  ssize_t write(const char* from, size_t n_bytes) override {
    if (!is_writable()) return -1;
    const ssize_t n = send(fd_, from, n_bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return 0;
    return n;
  }

  void get_remote_ip_and_port(std::string& ip, int& port) const override {
    sockaddr_storage address = {};
    socklen_t size = sizeof address;
    std::array<char, INET6_ADDRSTRLEN> text = {};
    port = 0;
    if (getpeername(fd_, reinterpret_cast<sockaddr*>(&address), &size) != 0) return;
    if (address.ss_family == AF_INET) {
      const auto& v4 = reinterpret_cast<const sockaddr_in&>(address);
      inet_ntop(AF_INET, &v4.sin_addr, text.data(), text.size());
      port = ntohs(v4.sin_port);
    } else if (address.ss_family == AF_INET6) {
      const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address);
      inet_ntop(AF_INET6, &v6.sin6_addr, text.data(), text.size());
      port = ntohs(v6.sin6_port);
    }
    ip = text.data();
  }
  void get_local_ip_and_port(std::string&, int&) const override {}

  // The library asks only whether its own select() could wait for it.
  socket_t socket() const override { return 0; }

 private:
  bool fill() {
    const ssize_t n = recv(fd_, buffer_.data(), buffer_.size(), MSG_DONTWAIT);
    begin_ = 0;
    end_ = n > 0 ? static_cast<size_t>(n) : 0;
    return n > 0;
  }

  const int fd_;
  const HttpLimits& limits_;
  std::array<char, 16384> buffer_;
  size_t begin_ = 0;  // bytes that were received and not read
  size_t end_ = 0;
  ssize_t n_head_bytes_ = -1;  // of a head that is being read; else -1
  Clock::time_point read_until_;
  bool must_close_ = false;
};

namespace {

// The connection that this thread serves.
thread_local Connection* t_connection = nullptr;

HttpRequest request_of(const httplib::Request& from) {
  HttpRequest request;
  request.method = from.method;
  request.path = from.path;
  for (const auto& [name, value] : from.params) request.query.emplace_back(name, value);
  for (const auto& [name, value] : from.headers) request.headers.emplace_back(name, value);
  request.client_address = from.remote_addr;
  request.client = t_connection;
  return request;
}

// The length that a body says it has. Empty where there is none. -1: not a length, or said twice.
std::optional<int64_t> content_length(const httplib::Request& request) {
  const size_t n = request.get_header_value_count("Content-Length");
  if (n == 0) return std::nullopt;
  const std::string text = request.get_header_value("Content-Length");
  const bool is_number = !text.empty() && text.size() <= 18 &&
                         std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; });
  return n == 1 && is_number ? std::stoll(text) : -1;
}

}  // namespace

std::string HttpRequest::header(std::string_view name) const {
  const auto found = std::ranges::find_if(
      headers, [name](const auto& header) { return same_name(header.first, name); });
  return found != headers.end() ? found->second : "";
}

std::string HttpRequest::parameter(std::string_view name) const {
  const auto found =
      std::ranges::find_if(query, [&](const auto& one) { return one.first == name; });
  return found == query.end() ? "" : found->second;
}

Client::Wake NoClient::wait(int event_fd, Clock::time_point until) const {
  return poll_for(event_fd, POLLIN, until) ? Wake::kEvent : Wake::kTimeout;
}

class HttpServer::Listener final : public httplib::Server {
 public:
  explicit Listener(const HttpLimits& limits) : limits_(limits) {
    new_task_queue = [this] {
      return new ConnectionThreads(limits_.connections, connections_, is_full_);
    };
    set_tcp_nodelay(true);
    // Not SO_REUSEPORT, the library's default: with it a second server would share the port.
    set_socket_options([](socket_t fd) {
      const int on = 1;
      setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    });
    set_payload_max_length(limits_.body_bytes);
    // What the library tells clients of connections that it does not keep itself.
    set_keep_alive_timeout(std::chrono::ceil<std::chrono::seconds>(limits_.idle_time).count());
    set_keep_alive_max_count(1'000'000);
    set_pre_routing_handler([this](const httplib::Request& from, httplib::Response& to) {
      return on_head(from, to) ? HandlerResponse::Handled : HandlerResponse::Unhandled;
    });
    Post(".*", [this](const httplib::Request& from, httplib::Response& to,
                      const httplib::ContentReader& read) { on_post(from, to, read); });
    set_error_handler(HandlerWithResponse([this](const httplib::Request&, httplib::Response& to) {
      if (!to.body.empty()) return HandlerResponse::Unhandled;
      t_connection->close_after_answer();
      fill(to, handlers_.on_error(to.status));
      return HandlerResponse::Handled;
    }));
  }

  int open(const std::string& host, int port) {
    const int bound = port == 0 ? bind_to_any_port(host) : bind_to_port(host, port) ? port : -1;
    if (bound < 0) {
      throw Error(ExitCode::kUsage, "cannot listen on " + host + ", port " + std::to_string(port) +
                                        ": the port is in use, or the host is not of this machine; "
                                        "use another --port or --host");
    }
    ::listen(svr_sock_, kBacklog);
    return bound;
  }

  void run(HttpHandlers handlers) {
    handlers_ = std::move(handlers);
    {
      const std::lock_guard guard(run_mutex_);
      if (is_stopped_) return;
      has_begun_ = true;
    }
    listen_after_bind();
  }

  // The library's own does nothing where the loop is about to begin.
  void end() {
    {
      const std::lock_guard guard(run_mutex_);
      is_stopped_ = true;
      if (!has_begun_) return;
    }
    while (!is_running()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    stop();
  }

  void close_connections() { is_closing_ = true; }
  int connections() const { return connections_; }

 private:
  bool process_and_close_socket(socket_t fd) override {
    Connection connection(fd, limits_);
    t_connection = &connection;
    // An idle connection makes room for one that waits to be accepted.
    const auto must_end = [this] { return is_closing_ || is_full_; };
    try {
      while (connection.await_request(must_end)) {
        connection.begin_head();
        bool is_closed = false;
        const bool is_answered =
            process_request(connection, is_closing_, is_closed, [&](httplib::Request& request) {
              connection.end_head();
              request.ranges.clear();  // answers come whole
            });
        if (!is_answered || is_closed || connection.must_close() || is_closing_) break;
      }
    } catch (const std::exception& error) {
      log(LogLevel::kError, std::string("a connection ends: internal error: ") + error.what());
    }
    t_connection = nullptr;
    linger(fd);
    close(fd);
    return true;
  }

  // A client that still sends would be told of a reset before it reads its answer. So what comes is
  // read, for a moment.
  static void linger(int fd) {
    constexpr std::chrono::milliseconds kPatience{500};
    constexpr size_t kMostBytes = size_t{16} << 20;
    shutdown(fd, SHUT_WR);
    std::array<char, 16384> bytes;
    size_t n_bytes = 0;
    const auto until = Clock::now() + kPatience;
    while (n_bytes < kMostBytes) {
      pollfd source = {.fd = fd, .events = POLLIN, .revents = 0};
      if (poll(&source, 1, ms_until(until)) <= 0) return;
      const ssize_t n = recv(fd, bytes.data(), bytes.size(), MSG_DONTWAIT);
      if (n <= 0) return;
      n_bytes += static_cast<size_t>(n);
    }
  }

  // True where the request is answered.
  bool on_head(const httplib::Request& from, httplib::Response& to) {
    const auto began = Clock::now();
    HttpRequest request = request_of(from);
    const std::optional<int64_t> length = content_length(from);
    const bool is_chunked = from.has_header("Transfer-Encoding");
    const bool has_body = is_chunked || length.value_or(0) != 0;
    const auto refuse = [&](HttpResponse&& response) {
      if (has_body) t_connection->close_after_answer();
      answer(std::move(request), to, std::move(response), began);
      return true;
    };
    if (length == -1 || (is_chunked && length)) return refuse(handlers_.on_error(400));
    if (auto refusal = handlers_.on_head(request)) return refuse(std::move(*refusal));
    if (request.method != "POST") return refuse(handled(request));
    // A few bytes that unpack to many would pass every limit.
    const std::string encoding = request.header("Content-Encoding");
    if (!encoding.empty() && encoding != "identity") return refuse(handlers_.on_error(415));
    if (length.value_or(0) > static_cast<int64_t>(limits_.body_bytes)) {
      return refuse(handlers_.on_error(413));
    }
    if (!has_body) return refuse(handled(request));
    return false;
  }

  void on_post(const httplib::Request& from, httplib::Response& to,
               const httplib::ContentReader& read) {
    const auto began = Clock::now();
    HttpRequest request = request_of(from);
    bool is_too_long = false;
    const bool is_whole = read([&](const char* bytes, size_t n) {
      is_too_long = request.body.size() + n > limits_.body_bytes;
      if (!is_too_long) request.body.append(bytes, n);
      return !is_too_long;
    });
    if (is_whole) {
      HttpResponse response = handled(request);
      return answer(std::move(request), to, std::move(response), began);
    }
    t_connection->close_after_answer();
    const bool is_late = !is_too_long && t_connection->is_past_deadline();
    answer(std::move(request), to,
           handlers_.on_error(is_too_long ? 413
                              : is_late   ? 408
                                          : 400),
           began);
  }

  HttpResponse handled(const HttpRequest& request) {
    try {
      return handlers_.on_request(request);
    } catch (const std::exception& error) {
      log(LogLevel::kError, request.path + ": internal error: " + error.what());
      return handlers_.on_error(500);
    }
  }

  static void fill_head(httplib::Response& to, const HttpResponse& response) {
    to.status = response.status;
    for (const auto& [name, value] : response.headers) to.set_header(name, value);
    if (t_connection->must_close()) to.set_header("Connection", "close");
  }

  static void fill(httplib::Response& to, const HttpResponse& response) {
    fill_head(to, response);
    to.set_content(response.body, response.content_type);
  }

  void answer(HttpRequest request, httplib::Response& to, HttpResponse response,
              Clock::time_point began) const {
    request.body = {};
    request.client = nullptr;
    const auto report = [this, request, began](int status, size_t bytes) {
      if (handlers_.on_end) handlers_.on_end(request, status, bytes, Clock::now() - began);
    };
    if (!response.stream) {
      fill(to, response);
      return report(response.status, response.body.size());
    }
    fill_head(to, response);
    to.set_chunked_content_provider(response.content_type,
                                    [stream = std::move(response.stream), status = response.status,
                                     report](size_t, httplib::DataSink& sink) {
                                      size_t n_bytes = 0;
                                      bool is_open = true;
                                      stream([&](std::string_view bytes) {
                                        is_open = is_open && sink.write(bytes.data(), bytes.size());
                                        if (is_open) n_bytes += bytes.size();
                                        return is_open;
                                      });
                                      report(status, n_bytes);
                                      if (is_open) sink.done();
                                      return is_open;
                                    });
  }

  const HttpLimits limits_;
  HttpHandlers handlers_;
  std::atomic<int> connections_ = 0;
  std::atomic<bool> is_full_ = false;  // a connection waits for another one to end
  std::atomic<bool> is_closing_ = false;
  std::mutex run_mutex_;  // of the next two
  bool has_begun_ = false;
  bool is_stopped_ = false;
};

HttpServer::HttpServer(const HttpLimits& limits) : listener_(std::make_unique<Listener>(limits)) {}

HttpServer::~HttpServer() = default;

int HttpServer::bind(const std::string& host, int port) { return listener_->open(host, port); }
void HttpServer::run(HttpHandlers handlers) { listener_->run(std::move(handlers)); }
void HttpServer::stop() { listener_->end(); }
void HttpServer::close_connections() { listener_->close_connections(); }
int HttpServer::connections() const { return listener_->connections(); }

}  // namespace edgellm::serve

#ifdef __SANITIZE_THREAD__
// Debian's library is not compiled for the sanitizer, which so does not see that the library's
// static strings are made once, before other threads send them. The sanitizer's own library looks
// for this function, which must not be hidden from it.
extern "C" __attribute__((visibility("default"))) const char* __tsan_default_suppressions();
extern "C" const char* __tsan_default_suppressions() { return "called_from_lib:libcpp-httplib"; }
#endif
