#include "apps/hub/http.h"

#include <httplib.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>

#include "apps/hub/socket.h"
#include "base/error.h"
#include "base/text.h"

namespace edgellm::hub {
namespace {

constexpr int kProxyWantsPassword = 407;

HttpFailure failure_of(httplib::Error error) {
  switch (error) {
    case httplib::Error::Success:
      return HttpFailure::kNone;
    case httplib::Error::Connection:
    case httplib::Error::BindIPAddress:
      return HttpFailure::kNoConnection;
    case httplib::Error::ConnectionTimeout:
      return HttpFailure::kTimeout;
    case httplib::Error::SSLConnection:
    case httplib::Error::SSLLoadingCerts:
    case httplib::Error::SSLServerVerification:
      return HttpFailure::kTls;
    case httplib::Error::Canceled:
      return HttpFailure::kStopped;
    default:
      return HttpFailure::kCut;
  }
}

// A connection as the library wants it, and why it is not the library's own: that gives header
// values with %XX decoded (0.11), and the signed address in a Location is another one then. Here
// the head of the answer can be read as it came. Waiting ends when `is_cancelled` becomes true
// or a signal comes.
class RecordingStream final : public httplib::Stream {
 public:
  RecordingStream(socket_t fd, SSL* ssl, const std::atomic<bool>& is_cancelled, std::string& head)
      : fd_(fd), ssl_(ssl), is_cancelled_(is_cancelled), head_(head) {
    // What arrives may be no data, a session's ticket for one: SSL_read must come back and not wait
    // for the next bytes by itself.
    if (ssl_ != nullptr) SSL_clear_mode(ssl_, SSL_MODE_AUTO_RETRY);
  }

  bool is_readable() const override {
    return (ssl_ != nullptr && SSL_pending(ssl_) > 0) || wait_for(POLLIN);
  }
  bool is_writable() const override { return wait_for(POLLOUT); }

  ssize_t read(char* to, size_t n_bytes) override {
    ssize_t n = -1;
    bool waits_for_more = true;
    while (waits_for_more && is_readable()) {
      n = ssl_ != nullptr ? SSL_read(ssl_, to, at_most_int(n_bytes)) : recv(fd_, to, n_bytes, 0);
      waits_for_more = ssl_ != nullptr && n <= 0 &&
                       SSL_get_error(ssl_, static_cast<int>(n)) == SSL_ERROR_WANT_READ;
    }
    if (n > 0 && !head_.ends_with(kEndOfHead)) record({to, static_cast<size_t>(n)});
    return n;
  }

  ssize_t write(const char* from, size_t n_bytes) override {
    if (!is_writable()) return -1;
    return ssl_ != nullptr ? SSL_write(ssl_, from, at_most_int(n_bytes))
                           : ::send(fd_, from, n_bytes, MSG_NOSIGNAL);
  }

  void get_remote_ip_and_port(std::string&, int&) const override {}
  void get_local_ip_and_port(std::string&, int&) const override {}
  socket_t socket() const override { return fd_; }

 private:
  static constexpr std::string_view kEndOfHead = "\r\n\r\n";

  static int at_most_int(size_t n) { return static_cast<int>(std::min<size_t>(n, INT32_MAX)); }

  void record(std::string_view data) {
    constexpr size_t kMaxHeadBytes = size_t{256} << 10;
    const size_t before = head_.size();
    head_ += data.substr(0, kMaxHeadBytes - std::min(kMaxHeadBytes, before));
    const size_t end = head_.find(kEndOfHead, before < 3 ? 0 : before - 3);
    if (end != std::string::npos) head_.resize(end + kEndOfHead.size());
  }

  bool wait_for(short event) const {
    return hub::wait_for(fd_, event, kReadTimeout, is_cancelled_);
  }

  socket_t fd_;
  SSL* ssl_;
  const std::atomic<bool>& is_cancelled_;
  std::string& head_;
};

// ClientImpl or SSLClient. The library's own way through a proxy is not taken: it (0.11) takes any
// answer of a proxy but 407 for a tunnel, and sends the proxy's password to the server as well.
template <class Base>
class Client final : public Base {
 public:
  Client(const Address& server, const Proxy* proxy, const std::atomic<bool>& is_cancelled,
         std::string& head)
      : Base(server.host, server.port),
        server_(server),
        proxy_(proxy),
        is_cancelled_(is_cancelled),
        head_(head) {
    this->set_connection_timeout(kConnectTimeout);
    this->set_tcp_nodelay(true);
    this->set_url_encode(false);  // targets are encoded already
  }

  const Tunnel& tunnel() const { return tunnel_; }

 private:
  using Socket = httplib::ClientImpl::Socket;

  bool create_and_connect_socket(Socket& socket, httplib::Error& error) override {
    if (!this->is_valid()) return false;
    if (proxy_ == nullptr) return httplib::ClientImpl::create_and_connect_socket(socket, error);
    tunnel_ = server_.tls ? open_tunnel(*proxy_, server_, is_cancelled_) : reach_proxy();
    if (tunnel_.failure != TunnelFailure::kNone) {
      error = httplib::Error::Connection;
      return false;
    }
    socket.sock = tunnel_.fd.release();  // the library closes it
    return true;
  }

  // A proxy is asked for the pages of a server of http itself.
  Tunnel reach_proxy() const {
    Connection connection = connect_to(proxy_->address, is_cancelled_);
    const bool is_there = connection.failure == ConnectFailure::kNone;
    return {std::move(connection.fd), is_there ? TunnelFailure::kNone : TunnelFailure::kNoProxy};
  }

  bool process_socket(const Socket& socket,
                      std::function<bool(httplib::Stream&)> callback) override {
    RecordingStream stream(socket.sock, socket.ssl, is_cancelled_, head_);
    return callback(stream);
  }

  const Address server_;
  const Proxy* const proxy_;
  Tunnel tunnel_;
  const std::atomic<bool>& is_cancelled_;
  std::string& head_;
};

HttpFailure failure_of(TunnelFailure failure) {
  switch (failure) {
    case TunnelFailure::kNone:
      return HttpFailure::kNone;
    case TunnelFailure::kNoProxy:
    case TunnelFailure::kTimeout:
      return HttpFailure::kNoProxy;
    case TunnelFailure::kCut:
    case TunnelFailure::kRefused:
      return HttpFailure::kProxyRefuses;
  }
  throw ContractViolation("unknown failure of a tunnel");
}

std::map<std::string, std::string> parse_headers(std::string_view head) {
  std::map<std::string, std::string> headers;
  while (true) {
    const size_t end = head.find("\r\n");
    if (end == std::string_view::npos) return headers;
    const std::string_view line = head.substr(0, end);
    head.remove_prefix(end + 2);
    const size_t colon = line.find(':');
    if (colon == std::string_view::npos) continue;  // the status line, the empty one at the end
    const size_t begin = line.find_first_not_of(" \t", colon + 1);
    if (begin == std::string_view::npos) continue;
    const size_t last = line.find_last_not_of(" \t");
    headers[lower_ascii(std::string(line.substr(0, colon)))] = line.substr(begin, last - begin + 1);
  }
}

}  // namespace

HttpAnswer Http::send(const HttpRequest& wanted) const {
  HttpAnswer answer;
  std::string head_as_sent;
  bool is_stopped = false;

  httplib::Request request;
  request.method = wanted.method;
  request.path = wanted.url.target;
  request.set_header("Accept", "*/*");
  request.set_header("Accept-Encoding", "identity");  // sizes and hashes are of the plain bytes
  request.set_header("User-Agent", "edgellm");
  for (const auto& [name, value] : wanted.headers) request.set_header(name.c_str(), value);
  request.response_handler = [&](const httplib::Response& head) {
    answer.status = head.status;
    answer.headers = parse_headers(head_as_sent);
    const bool is_content = head.status == 200 || head.status == 206;
    if (is_content && wanted.on_head) is_stopped = !wanted.on_head(head.status, answer.headers);
    return !is_stopped;
  };
  request.content_receiver = [&](const char* data, size_t n_bytes, uint64_t, uint64_t) {
    if (is_cancelled_) return false;
    const bool is_content = answer.status == 200 || answer.status == 206;
    if (is_content && wanted.on_data) {
      is_stopped = !wanted.on_data({data, n_bytes});
      return !is_stopped;
    }
    answer.body.append(data, n_bytes);
    return answer.body.size() <= kMaxBodyBytes;
  };

  const Address& server = wanted.url.server;
  answer.proxy = proxies_.find(server);
  if (answer.proxy != nullptr && !server.tls) {
    request.path = server.short_text() + request.path;
    if (!answer.proxy->authorization.empty()) {
      request.set_header("Proxy-Authorization", answer.proxy->authorization);
    }
  }
  httplib::Response response;
  httplib::Error error = httplib::Error::Success;
  bool is_sent = false;
  HttpFailure of_proxy = HttpFailure::kNone;
  const auto send_by = [&](auto client) {
    is_sent = !is_cancelled_ && client.send(request, response, error);
    of_proxy = failure_of(client.tunnel().failure);
    answer.proxy_status = client.tunnel().status;
  };
  if (server.tls) {
    send_by(Client<httplib::SSLClient>(server, answer.proxy, is_cancelled_, head_as_sent));
  } else {
    send_by(Client<httplib::ClientImpl>(server, answer.proxy, is_cancelled_, head_as_sent));
  }
  if (is_sent) {  // no handler is called for HEAD
    answer.status = response.status;
    answer.headers = parse_headers(head_as_sent);
  }
  if (is_stopped || is_cancelled_) {
    answer.failure = HttpFailure::kStopped;
  } else if (of_proxy != HttpFailure::kNone) {
    answer.failure = of_proxy;
  } else if (answer.proxy != nullptr && answer.status == kProxyWantsPassword) {
    answer.failure = HttpFailure::kProxyRefuses;
    answer.proxy_status = answer.status;
  } else if (!is_sent) {
    answer.failure = failure_of(error);
    if (answer.failure == HttpFailure::kNone || answer.failure == HttpFailure::kStopped) {
      answer.failure = HttpFailure::kCut;
    }
  }
  return answer;
}

std::string HttpAnswer::header(const std::string& name) const {
  const auto found = headers.find(name);
  return found != headers.end() ? found->second : "";
}

Url parse_location(const std::string& location, const Url& from) {
  const auto is_bad = [](char c) { return c <= ' ' || c >= '\x7f'; };
  const auto refuse = [&]() {
    throw Error(ExitCode::kPeerUnavailable,
                "the server at " + from.server.short_text() +
                    " redirects to what is no http or https address: '" + printable(location, 60) +
                    "'; is HF_ENDPOINT a Hugging Face Hub?");
  };
  if (location.empty() || std::any_of(location.begin(), location.end(), is_bad)) refuse();
  if (location.front() == '/' && !location.starts_with("//")) return {from.server, location};
  const size_t scheme = location.find("://");
  if (scheme == std::string::npos) refuse();
  const size_t target = location.find_first_of("/?#", scheme + 3);
  Url url;
  try {
    url.server = parse_address(location.substr(0, target), {.what = "Location", .expected = ""});
  } catch (const Error&) {
    refuse();
  }
  if (target != std::string::npos) url.target = location.substr(target);
  url.target.resize(std::min(url.target.size(), url.target.find('#')));
  if (!url.target.starts_with('/')) url.target.insert(0, "/");
  return url;
}

}  // namespace edgellm::hub
