// HTTP proxies: which one the environment names for a server, and the way through it.
#pragma once

#include <atomic>
#include <optional>
#include <string>
#include <vector>

#include "apps/common/address.h"
#include "base/files.h"

namespace edgellm::hub {

struct Proxy {
  Address address;            // of http://
  std::string authorization;  // value of Proxy-Authorization; empty: none. In no message.
  std::string variable;       // that names it

  std::string text() const;  // "http://proxy:3128 of HTTPS_PROXY"
};

// The proxies of the environment: HTTPS_PROXY for servers of https, HTTP_PROXY for those of http,
// else ALL_PROXY; none for the servers of NO_PROXY. Each also in small letters, which count first.
class Proxies {
 public:
  // Throws Error (kUsage) for what is no http://[USER:PASSWORD@]HOST[:PORT].
  static Proxies of_environment();

  // For connections to this server; null: none.
  const Proxy* find(const Address& server) const;

 private:
  std::optional<Proxy> for_https_;
  std::optional<Proxy> for_http_;
  std::vector<std::string> exempt_;  // entries of NO_PROXY, in small letters
};

enum class TunnelFailure {
  kNone,
  kNoProxy,  // nobody answers there
  kTimeout,  // nor in time; or stopped
  kCut,      // what answers is no proxy, or ends in the middle
  kRefused,  // with a status
};
struct Tunnel {
  FileDescriptor fd;
  TunnelFailure failure = TunnelFailure::kNone;
  int status = 0;  // of kRefused
};

// A connection to the proxy that leads to `server` (CONNECT). The name of the server is resolved by
// the proxy.
Tunnel open_tunnel(const Proxy& proxy, const Address& server,
                   const std::atomic<bool>& is_cancelled);

}  // namespace edgellm::hub
