#include "apps/common/address.h"

#include <algorithm>
#include <charconv>
#include <optional>

#include "base/error.h"

namespace edgellm {
namespace {

[[noreturn]] void refuse(const AddressForm& form, std::string_view value,
                         const std::string& problem) {
  throw Error(ExitCode::kUsage,
              form.what + " \"" + std::string(value) + "\": " + problem + "; use " + form.expected);
}

std::optional<int> parse_port(std::string_view text) {
  int port = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, port);
  if (error != std::errc() || rest != end || port < 1 || port > 65535) return std::nullopt;
  return port;
}

// What follows "scheme://" in `value`.
Address parse_authority(std::string_view rest, bool tls, int default_port, std::string_view value,
                        const AddressForm& form) {
  Address address;
  address.tls = tls;
  const size_t slash = rest.find('/');
  std::string_view authority = rest.substr(0, slash);
  if (slash != std::string_view::npos) address.path = rest.substr(slash);
  while (address.path.ends_with('/')) address.path.pop_back();
  if (rest.find_first_of("?#") != std::string_view::npos) {
    refuse(form, value, "a query or fragment has no meaning here");
  }
  if (authority.find('@') != std::string_view::npos) {
    refuse(form, value, "user names and passwords are not supported");
  }
  const auto is_bad = [](char c) { return c <= ' ' || c == '"' || c == '\x7f' || c == '\\'; };
  if (std::any_of(rest.begin(), rest.end(), is_bad)) {
    refuse(form, value, "a character that an address cannot have");
  }

  std::string_view port;
  bool has_port = false;
  if (authority.starts_with('[')) {
    const size_t end = authority.find(']');
    if (end == std::string_view::npos) refuse(form, value, "a [ without its ]");
    address.host = authority.substr(1, end - 1);
    const std::string_view after = authority.substr(end + 1);
    has_port = after.starts_with(':');
    if (!after.empty() && !has_port) refuse(form, value, "text after the ]");
    if (has_port) port = after.substr(1);
  } else if (std::count(authority.begin(), authority.end(), ':') > 1) {
    address.host = authority;  // an IPv6 address without brackets has no room for a port
  } else {
    const size_t colon = authority.find(':');
    address.host = authority.substr(0, colon);
    has_port = colon != std::string_view::npos;
    if (has_port) port = authority.substr(colon + 1);
  }
  if (address.host.empty()) address.host = form.default_host;
  if (address.host.empty()) refuse(form, value, "no host");
  address.port = default_port;
  if (has_port) {
    const std::optional<int> number = parse_port(port);
    if (!number) refuse(form, value, "the port is not a number from 1 to 65535");
    address.port = *number;
  }
  return address;
}

std::string scheme_and_host(const Address& address) {
  const bool is_ipv6 = address.host.find(':') != std::string::npos;
  return (address.tls ? "https://" : "http://") +
         (is_ipv6 ? "[" + address.host + "]" : address.host);
}

}  // namespace

std::string Address::text() const {
  return scheme_and_host(*this) + ":" + std::to_string(port) + path;
}

std::string Address::short_text() const {
  return port == (tls ? 443 : 80) ? scheme_and_host(*this) + path : text();
}

bool Address::is_loopback() const {
  // 0.0.0.0 is what servers listen on; a client that connects to it stays at home.
  return host == "localhost" || host == "::1" || host == "0.0.0.0" || host == "::" ||
         (host.starts_with("127.") && host.find_first_not_of("0123456789.") == std::string::npos);
}

Address parse_address(std::string_view text, const AddressForm& form) {
  const size_t end_of_scheme = text.find("://");
  if (end_of_scheme == std::string_view::npos) {
    const int scheme_port = form.tls ? 443 : 80;
    return parse_authority(text, form.tls, form.default_port != 0 ? form.default_port : scheme_port,
                           text, form);
  }
  const std::string_view scheme = text.substr(0, end_of_scheme);
  const bool tls = scheme == "https";
  if (!tls && scheme != "http") {
    refuse(form, text, "a scheme that is neither http nor https");
  }
  return parse_authority(text.substr(end_of_scheme + 3), tls, tls ? 443 : 80, text, form);
}

}  // namespace edgellm
