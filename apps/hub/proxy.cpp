#include "apps/hub/proxy.h"

#include <arpa/inet.h>
#include <openssl/evp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <string_view>
#include <utility>

#include "apps/common/environment.h"
#include "apps/hub/socket.h"
#include "base/error.h"
#include "base/text.h"

namespace edgellm::hub {
namespace {

std::string base64(const std::string& text) {
  std::string encoded((text.size() + 2) / 3 * 4 + 1, '\0');  // and a terminator
  const int n = EVP_EncodeBlock(reinterpret_cast<unsigned char*>(encoded.data()),
                                reinterpret_cast<const unsigned char*>(text.data()),
                                static_cast<int>(text.size()));
  encoded.resize(static_cast<size_t>(n));
  return encoded;
}

// %XX; anything else stays as it is.
std::string percent_decoded(std::string_view text) {
  std::string decoded;
  for (size_t i = 0; i < text.size(); ++i) {
    unsigned char byte = 0;
    const char* const digits = text.data() + i + 1;
    if (text[i] == '%' && i + 2 < text.size() &&
        std::from_chars(digits, digits + 2, byte, 16).ptr == digits + 2) {
      decoded += static_cast<char>(byte);
      i += 2;
    } else {
      decoded += text[i];
    }
  }
  return decoded;
}

// No message holds the value: there may be a password in it.
Proxy parse_proxy(const NamedValue& named) {
  const std::string expected = "http://[USER:PASSWORD@]HOST[:PORT]";
  const std::string& text = named.value;
  const size_t scheme_end = text.find("://");
  const std::string scheme =
      scheme_end == std::string::npos ? "http" : lower_ascii(text.substr(0, scheme_end));
  if (scheme != "http") {
    throw Error(ExitCode::kUsage,
                named.name + " names a proxy of another kind than http://, expected " + expected +
                    " (through which the connection to an https server is encrypted all the same)");
  }
  const size_t begin = scheme_end == std::string::npos ? 0 : scheme_end + 3;
  std::string_view rest = std::string_view(text).substr(begin);
  Proxy proxy;
  proxy.variable = named.name;
  const size_t at = rest.rfind('@');  // all before it is secret, whatever it looks like
  if (at != std::string_view::npos) {
    proxy.authorization = "Basic " + base64(percent_decoded(rest.substr(0, at)));
    rest.remove_prefix(at + 1);
  }
  rest = rest.substr(0, rest.find_first_of("/?#"));
  proxy.address =
      parse_address("http://" + std::string(rest), {.what = named.name, .expected = expected});
  return proxy;
}

std::vector<std::string> parse_exempt(const std::string& text) {
  std::vector<std::string> entries;
  size_t begin = 0;
  while (begin < text.size()) {
    const size_t end = std::min(text.find_first_of(", \t", begin), text.size());
    if (end > begin) entries.push_back(lower_ascii(text.substr(begin, end - begin)));
    begin = end + 1;
  }
  return entries;
}

// The bytes of an IP address: 4, 16, or none where the text is a name.
std::vector<unsigned char> ip_bytes(const std::string& text) {
  std::array<unsigned char, 16> bytes{};
  for (const auto& [family, n] : {std::pair{AF_INET, 4}, std::pair{AF_INET6, 16}}) {
    if (inet_pton(family, text.c_str(), bytes.data()) == 1) {
      return {bytes.begin(), bytes.begin() + n};
    }
  }
  return {};
}

// "10.0.0.0/8" holds the address.
bool is_in_network(const std::string& entry, const std::string& host) {
  const size_t slash = entry.find('/');
  if (slash == std::string::npos) return false;
  const std::vector<unsigned char> network = ip_bytes(entry.substr(0, slash));
  const std::vector<unsigned char> address = ip_bytes(host);
  size_t bits = 0;
  const char* const end = entry.data() + entry.size();
  const auto [rest, error] = std::from_chars(entry.data() + slash + 1, end, bits);
  if (error != std::errc() || rest != end || network.empty() || network.size() != address.size() ||
      bits > 8 * network.size()) {
    return false;
  }
  for (size_t bit = 0; bit < bits; ++bit) {
    const int shift = 7 - static_cast<int>(bit % 8);
    if (((network[bit / 8] ^ address[bit / 8]) >> shift & 1) != 0) return false;
  }
  return true;
}

// An entry of NO_PROXY: "*", a host, a domain with all that is below it, a network; a port may
// follow a host.
bool is_exempt(std::string entry, const Address& server) {
  const std::string host = lower_ascii(server.host);
  if (entry == "*" || is_in_network(entry, host)) return true;
  const size_t bracket = entry.find(']');
  const size_t colon = entry.rfind(':');
  const bool has_port = colon != std::string::npos &&
                        (entry.starts_with('[') ? bracket + 1 == colon : entry.find(':') == colon);
  if (has_port) {
    if (entry.substr(colon + 1) != std::to_string(server.port)) return false;
    entry.resize(colon);
  }
  if (entry.starts_with('[') && entry.ends_with(']')) entry = entry.substr(1, entry.size() - 2);
  if (entry.starts_with("*.")) entry.erase(0, 1);
  if (entry.starts_with('.')) entry.erase(0, 1);
  return !entry.empty() && (host == entry || host.ends_with("." + entry));
}

std::string host_and_port(const Address& server) {
  const bool is_ipv6 = server.host.find(':') != std::string::npos;
  return (is_ipv6 ? "[" + server.host + "]" : server.host) + ":" + std::to_string(server.port);
}

// The status of "HTTP/1.1 200 ...", 0 where it is none.
int status_of(std::string_view head) {
  constexpr std::string_view kVersion = "HTTP/1.";
  int status = 0;
  if (head.starts_with(kVersion) && head.size() > kVersion.size() + 5) {
    const char* const digits = head.data() + kVersion.size() + 2;
    std::from_chars(digits, digits + 3, status);
  }
  return status;
}

}  // namespace

std::string Proxy::text() const { return address.short_text() + " of " + variable; }

Proxies Proxies::of_environment() {
  const auto proxy_of = [](const NamedValue& first, const NamedValue& second) {
    const NamedValue& named = first.value.empty() ? second : first;
    return named.value.empty() ? std::optional<Proxy>{} : parse_proxy(named);
  };
  const NamedValue all = either_case_variable("ALL_PROXY");
  Proxies proxies;
  proxies.for_https_ = proxy_of(either_case_variable("HTTPS_PROXY"), all);
  proxies.for_http_ = proxy_of(either_case_variable("HTTP_PROXY"), all);
  proxies.exempt_ = parse_exempt(either_case_variable("NO_PROXY").value);
  return proxies;
}

const Proxy* Proxies::find(const Address& server) const {
  const std::optional<Proxy>& proxy = server.tls ? for_https_ : for_http_;
  const bool is_direct = std::any_of(exempt_.begin(), exempt_.end(),
                                     [&](const auto& entry) { return is_exempt(entry, server); });
  return proxy && !is_direct ? &*proxy : nullptr;
}

Tunnel open_tunnel(const Proxy& proxy, const Address& server,
                   const std::atomic<bool>& is_cancelled) {
  Connection connection = connect_to(proxy.address, is_cancelled);
  if (connection.failure != ConnectFailure::kNone) {
    return {FileDescriptor(), connection.failure == ConnectFailure::kTimeout
                                  ? TunnelFailure::kTimeout
                                  : TunnelFailure::kNoProxy};
  }
  const int fd = connection.fd.get();
  const std::string place = host_and_port(server);
  std::string request =
      "CONNECT " + place + " HTTP/1.1\r\nHost: " + place + "\r\nUser-Agent: edgellm\r\n";
  if (!proxy.authorization.empty()) {
    request += "Proxy-Authorization: " + proxy.authorization + "\r\n";
  }
  request += "\r\n";
  // Fits a socket's buffer.
  if (::send(fd, request.data(), request.size(), MSG_NOSIGNAL) !=
      static_cast<ssize_t>(request.size())) {
    return {FileDescriptor(), TunnelFailure::kCut};
  }
  // Byte by byte: what follows the head belongs to the server.
  constexpr size_t kMaxHeadBytes = size_t{64} << 10;
  std::string head;
  while (!head.ends_with("\r\n\r\n")) {
    if (!wait_for(fd, POLLIN, kReadTimeout, is_cancelled)) {
      return {FileDescriptor(), TunnelFailure::kTimeout};
    }
    char byte = 0;
    if (recv(fd, &byte, 1, 0) != 1 || head.size() >= kMaxHeadBytes) {
      return {FileDescriptor(), TunnelFailure::kCut};
    }
    head += byte;
  }
  const int status = status_of(head);
  if (status == 0) return {FileDescriptor(), TunnelFailure::kCut};
  if (status / 100 != 2) return {FileDescriptor(), TunnelFailure::kRefused, status};
  return {std::move(connection.fd)};
}

}  // namespace edgellm::hub
