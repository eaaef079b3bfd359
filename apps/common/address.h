// Where a server is.
#pragma once

#include <string>
#include <string_view>

namespace edgellm {

struct Address {
  bool tls = false;
  std::string host;  // a name, an IPv4 address, or an IPv6 address without brackets
  int port = 0;
  std::string path;  // put before every request's path: "" or "/api", without a slash at its end

  std::string text() const;        // "http://127.0.0.1:11434", "https://[::1]:8443/llm"
  std::string short_text() const;  // without a port that the scheme implies
  bool is_loopback() const;
  bool operator==(const Address&) const = default;
};

// How an address is written, and what an Error says of one that is not written so.
struct AddressForm {
  std::string what = {};          // "--url"
  std::string expected = {};      // "http://HOST:PORT"
  bool tls = false;               // where there is no scheme
  std::string default_host = {};  // empty: there must be one
  int default_port = 0;           // where there is no scheme; 0: that of the scheme
};

// "[SCHEME://]HOST[:PORT][/PATH]", the scheme http or https. Throws Error (kUsage).
Address parse_address(std::string_view text, const AddressForm& form);

}  // namespace edgellm
