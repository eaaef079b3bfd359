#include "apps/compare/clients/address.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <string_view>

#include "base/error.h"

namespace edgellm::peers {
namespace {

[[noreturn]] void refuse(const std::string& what, const std::string& value,
                         const std::string& problem, const std::string& expected) {
  throw Error(ExitCode::kUsage, what + " \"" + value + "\": " + problem + "; use " + expected);
}

std::optional<int> parse_port(std::string_view text) {
  int port = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, port);
  if (error != std::errc() || rest != end || port < 1 || port > 65535) return std::nullopt;
  return port;
}

constexpr std::string_view kSpaces = " \t\r\n";

std::string_view trim(std::string_view text, std::string_view what) {
  const size_t begin = text.find_first_not_of(what);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(what) - begin + 1);
}

// What follows "scheme://". `what`, `value` and `expected` are for messages.
Address parse_authority(std::string_view rest, bool tls, const std::string& default_host,
                        int default_port, const std::string& what, const std::string& value,
                        const std::string& expected) {
  Address address;
  address.tls = tls;
  const size_t slash = rest.find('/');
  std::string_view authority = rest.substr(0, slash);
  if (slash != std::string_view::npos) address.path = rest.substr(slash);
  while (address.path.ends_with('/')) address.path.pop_back();
  if (rest.find_first_of("?#") != std::string_view::npos) {
    refuse(what, value, "a query or fragment has no meaning here", expected);
  }
  if (authority.find('@') != std::string_view::npos) {
    refuse(what, value, "user names and passwords are not supported", expected);
  }
  const auto is_bad = [](char c) { return c <= ' ' || c == '"' || c == '\x7f' || c == '\\'; };
  if (std::any_of(rest.begin(), rest.end(), is_bad)) {
    refuse(what, value, "a character that an address cannot have", expected);
  }

  std::string_view port;
  bool has_port = false;
  if (authority.starts_with('[')) {
    const size_t end = authority.find(']');
    if (end == std::string_view::npos) refuse(what, value, "a [ without its ]", expected);
    address.host = authority.substr(1, end - 1);
    const std::string_view after = authority.substr(end + 1);
    has_port = after.starts_with(':');
    if (!after.empty() && !has_port) refuse(what, value, "text after the ]", expected);
    if (has_port) port = after.substr(1);
  } else if (std::count(authority.begin(), authority.end(), ':') > 1) {
    address.host = authority;  // an IPv6 address without brackets has no room for a port
  } else {
    const size_t colon = authority.find(':');
    address.host = authority.substr(0, colon);
    has_port = colon != std::string_view::npos;
    if (has_port) port = authority.substr(colon + 1);
  }
  if (address.host.empty()) address.host = default_host;
  if (address.host.empty()) refuse(what, value, "no host", expected);
  address.port = default_port;
  if (has_port) {
    const std::optional<int> number = parse_port(port);
    if (!number) refuse(what, value, "the port is not a number from 1 to 65535", expected);
    address.port = *number;
  }
  return address;
}

}  // namespace

std::string Address::text() const {
  const bool is_ipv6 = host.find(':') != std::string::npos;
  return (tls ? "https://" : "http://") + (is_ipv6 ? "[" + host + "]" : host) + ":" +
         std::to_string(port) + path;
}

bool Address::is_loopback() const {
  // 0.0.0.0 is what servers listen on; a client that connects to it stays at home.
  return host == "localhost" || host == "::1" || host == "0.0.0.0" || host == "::" ||
         host.starts_with("127.");
}

Address parse_url(const std::string& url) {
  const std::string expected = "http://HOST:PORT, as in http://127.0.0.1:8080";
  const size_t end_of_scheme = url.find("://");
  const std::string scheme =
      end_of_scheme == std::string::npos ? "http" : url.substr(0, end_of_scheme);
  const bool tls = scheme == "https";
  if (!tls && scheme != "http") {
    refuse("--url", url, "a scheme that is neither http nor https", expected);
  }
  const size_t begin = end_of_scheme == std::string::npos ? 0 : end_of_scheme + 3;
  Address address = parse_authority(std::string_view(url).substr(begin), tls, "", tls ? 443 : 80,
                                    "--url", url, expected);
  if (address.path.ends_with("/v1")) address.path.resize(address.path.size() - 3);
  return address;
}

Address parse_ollama_host(const std::string& value) {
  const std::string expected = "HOST, HOST:PORT, :PORT or http://HOST:PORT";
  std::string_view rest = trim(trim(trim(value, kSpaces), "\"'"), kSpaces);
  bool tls = false;
  int default_port = 11434;
  if (const size_t at = rest.find("://"); at != std::string_view::npos) {
    const std::string_view scheme = rest.substr(0, at);
    tls = scheme == "https";
    if (!tls && scheme != "http") {
      refuse("OLLAMA_HOST", value, "a scheme that is neither http nor https", expected);
    }
    default_port = tls ? 443 : 80;
    rest.remove_prefix(at + 3);
  }
  return parse_authority(rest, tls, "127.0.0.1", default_port, "OLLAMA_HOST", value, expected);
}

}  // namespace edgellm::peers
