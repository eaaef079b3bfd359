#include "apps/compare/clients/http_client.h"

#include <httplib.h>

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>

#include "apps/compare/clients/json.h"
#include "base/error.h"

namespace edgellm::peers {
namespace {

constexpr std::chrono::seconds kConnectTimeout{5};
// Of an answer that is read as a whole: the longest, /api/show, is a few hundred kilobytes.
constexpr size_t kMaxBodyBytes = size_t{16} << 20;

// Closes the client's connection at the time limit or at Ctrl-C: cpp-httplib's own time limit is
// of one read, and a server that drips bytes never meets it.
class Watch {
 public:
  Watch(httplib::ClientImpl& client, const HttpOptions& options)
      : thread_([this, &client, &options](const std::stop_token& done) {
          const auto deadline = std::chrono::steady_clock::now() + options.timeout;
          std::unique_lock lock(mutex_);
          while (!done.stop_requested()) {
            if (options.interrupted()) interrupted_ = true;
            if (std::chrono::steady_clock::now() >= deadline) timed_out_ = true;
            if (interrupted_ || timed_out_) client.stop();
            wake_.wait_for(lock, done, kPoll, [] { return false; });
          }
        }) {}

  bool interrupted() const { return interrupted_; }
  bool timed_out() const { return timed_out_; }

 private:
  static constexpr std::chrono::milliseconds kPoll{20};

  std::mutex mutex_;
  std::condition_variable_any wake_;
  std::atomic<bool> interrupted_ = false;
  std::atomic<bool> timed_out_ = false;
  std::jthread thread_;  // the last: it ends before what it uses
};

std::unique_ptr<httplib::ClientImpl> make_client(const Address& address,
                                                 const HttpOptions& options) {
  std::unique_ptr<httplib::ClientImpl> client;
  if (address.tls) {
    client = std::make_unique<httplib::SSLClient>(address.host, address.port);
  } else {
    client = std::make_unique<httplib::ClientImpl>(address.host, address.port);
  }
  client->set_connection_timeout(kConnectTimeout);
  client->set_read_timeout(options.timeout + kConnectTimeout);  // the watch is first
  client->set_tcp_nodelay(true);
  if (!options.bearer_token.empty()) client->set_bearer_token_auth(options.bearer_token);
  return client;
}

std::string seconds_text(std::chrono::milliseconds time) {
  std::string text = nlohmann::json(static_cast<double>(time.count()) / 1000).dump();
  if (text.ends_with(".0")) text.resize(text.size() - 2);
  return text + " s";
}

}  // namespace

struct HttpClient::Call {
  std::string method;
  std::string path;
  std::string body;
  std::function<bool(std::string_view)> on_data;  // empty: into HttpResponse::body
  std::function<std::string()> received;          // as on_data
};

HttpClient::HttpClient(Address address, HttpOptions options)
    : address_(std::move(address)), options_(std::move(options)) {}

HttpResponse HttpClient::get(const std::string& path) const {
  return send({.method = "GET", .path = path, .body = "", .on_data = {}, .received = {}});
}

HttpResponse HttpClient::post(const std::string& path, const nlohmann::json& body) const {
  return send({.method = "POST", .path = path, .body = body.dump(), .on_data = {}, .received = {}});
}

HttpResponse HttpClient::post_streaming(const std::string& path, const nlohmann::json& body,
                                        const std::function<bool(std::string_view)>& on_data,
                                        const std::function<std::string()>& received) const {
  return send({.method = "POST",
               .path = path,
               .body = body.dump(),
               .on_data = on_data,
               .received = received});
}

HttpResponse HttpClient::send(const Call& call) const {
  const auto client = make_client(address_, options_);
  HttpResponse response;
  bool answered = false;
  bool enough = false;
  bool too_large = false;

  httplib::Request request;
  request.method = call.method;
  request.path = address_.path + call.path;
  request.set_header("Accept", "*/*");
  request.set_header("Accept-Encoding", "identity");  // who compresses a stream holds it back
  request.set_header("User-Agent", "edgellm");
  if (call.method == "POST") {
    request.set_header("Content-Type", "application/json");
    request.body = call.body;
  }
  request.response_handler = [&](const httplib::Response& head) {
    answered = true;
    response.status = head.status;
    response.content_type = head.get_header_value("Content-Type");
    response.location = head.get_header_value("Location");
    return true;
  };
  request.content_receiver = [&](const char* data, size_t n_bytes, uint64_t, uint64_t) {
    if (response.ok() && call.on_data) {
      enough = !call.on_data({data, n_bytes});
      return !enough;
    }
    response.body.append(data, n_bytes);
    too_large = response.body.size() > kMaxBodyBytes;
    return !too_large;
  };

  httplib::Response ignored;
  httplib::Error error = httplib::Error::Success;
  bool sent = false;
  bool interrupted = false;
  bool timed_out = false;
  {
    const Watch watch(*client, options_);
    sent = client->send(request, ignored, error);
    interrupted = watch.interrupted();
    timed_out = watch.timed_out();
  }
  if (sent || enough) return response;
  if (interrupted) options_.raise_interrupt();

  const std::string server = "the server at " + address_.text();
  const std::string so_far = answered && call.received ? " after " + call.received() : "";
  std::string problem;
  if (too_large) {
    problem = server + " answers " + call.path + " with more than 16 MiB";
  } else if (timed_out) {
    problem = server + " did not finish its answer to " + call.path + " within " +
              seconds_text(options_.timeout) + so_far + "; use a longer --timeout or a smaller -n";
  } else if (error == httplib::Error::Connection || error == httplib::Error::ConnectionTimeout) {
    problem =
        "no server answers at " + address_.text() +
        (error == httplib::Error::ConnectionTimeout ? " within " + seconds_text(kConnectTimeout)
                                                    : std::string(" (refused, or no such host)")) +
        "; " + options_.start_hint;
  } else if (error == httplib::Error::SSLConnection || error == httplib::Error::SSLLoadingCerts ||
             error == httplib::Error::SSLServerVerification) {
    problem = server + " does not speak TLS that this machine trusts (" +
              httplib::to_string(error) + "); for a server without TLS use http://";
  } else if (answered) {
    problem = server + " cut its answer to " + call.path + so_far +
              "; see the server's log, and if it has ended, " + options_.start_hint;
  } else {
    problem = server + " closed the connection without an answer to " + call.path +
              "; see the server's log, and if it has ended, " + options_.start_hint;
  }
  throw Error(ExitCode::kPeerUnavailable, problem);
}

void HttpClient::fail(const HttpResponse& response, const std::string& path,
                      const std::string& hint) const {
  std::string said;
  if (const auto body = parse_json(response.body)) said = error_message(*body);
  std::string message = "the server at " + address_.text() + " answers " + path + " with ";
  if (!response.ok()) message += "status " + std::to_string(response.status);
  if (!said.empty()) {
    message += ": " + said.substr(0, 300);
  } else if (response.ok() || !response.body.empty()) {
    message += std::string(response.ok() ? "" : " and ") + "what is not the JSON of its API";
    if (!response.content_type.empty()) message += " (" + response.content_type + ")";
  }
  if (!hint.empty()) {
    message += "; " + hint;
  } else if (!response.location.empty()) {
    message += "; it redirects to " + response.location + ": use that address";
  } else if (response.status == 401 || response.status == 403) {
    message += "; put its API key into EDGELLM_API_KEY";
  } else if (said.empty()) {
    message += "; is this the address of the server, and not of a proxy or a web page?";
  } else {
    message += "; see the server's log";
  }
  throw Error(ExitCode::kPeerUnavailable, message);
}

std::string error_message(const nlohmann::json& body) {
  if (!body.is_object()) return "";
  if (const auto error = body.find("error"); error != body.end()) {
    if (error->is_string()) return error->get<std::string>();
    if (error->is_object()) return text_of(*error, "message").value_or(error->dump());
    return "";
  }
  for (const char* name : {"message", "detail"}) {
    if (const auto text = text_of(body, name)) return *text;
  }
  return "";
}

}  // namespace edgellm::peers
