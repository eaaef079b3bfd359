// GET requests of several threads, through cpp-httplib.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "apps/common/address.h"
#include "apps/hub/proxy.h"

namespace edgellm::hub {

// An absolute address with its query.
struct Url {
  Address server;      // without a path
  std::string target;  // "/path?query"
};

// Throws Error (kPeerUnavailable) for a Location that is no http or https address. A relative one
// is of the server that sent it.
Url parse_location(const std::string& location, const Url& from);

struct HttpRequest {
  std::string method = "GET";
  Url url;
  std::vector<std::pair<std::string, std::string>> headers;
  // Asked with an answer's head of status 200 or 206: false ends the request.
  std::function<bool(int status, const std::map<std::string, std::string>& headers)> on_head;
  // The body of such an answer, as it comes; false ends the request. Empty: into HttpAnswer::body,
  // as with every other status.
  std::function<bool(std::string_view)> on_data;
};

enum class HttpFailure {
  kNone,
  kNoConnection,  // no such host, refused, no network
  kTimeout,       // nobody answered in time
  kTls,           // no TLS that this machine trusts
  kCut,           // the answer is not whole
  kNoProxy,       // nobody answers at the proxy, or not in time
  kProxyRefuses,  // the proxy opens no way to the server: HttpAnswer::proxy_status
  kStopped,       // by a callback, or by Http::cancel()
};

struct HttpAnswer {
  HttpFailure failure = HttpFailure::kNone;
  int status = 0;                              // 0: there was no answer
  std::map<std::string, std::string> headers;  // names in small letters
  std::string body;                            // at most kMaxBodyBytes
  const Proxy* proxy = nullptr;                // that was asked
  int proxy_status = 0;

  std::string header(const std::string& name) const;
};

// Every request has a connection of its own. Redirects are not followed.
class Http {
 public:
  static constexpr size_t kMaxBodyBytes = size_t{64} << 20;

  explicit Http(Proxies proxies) : proxies_(std::move(proxies)) {}

  HttpAnswer send(const HttpRequest& request) const;

  // Ends all requests soon, and those to come at once. One that is just being connected hears it
  // when that is done.
  void cancel() { is_cancelled_ = true; }
  bool is_cancelled() const { return is_cancelled_; }

 private:
  const Proxies proxies_;
  std::atomic<bool> is_cancelled_ = false;
};

}  // namespace edgellm::hub
