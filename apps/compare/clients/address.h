// Where a server is.
#pragma once

#include <string>

namespace edgellm::peers {

struct Address {
  bool tls = false;
  std::string host;  // a name, an IPv4 address, or an IPv6 address without brackets
  int port = 0;
  std::string path;  // put before every request's path: "" or "/api", without a slash at its end

  std::string text() const;  // "http://127.0.0.1:11434", "https://[::1]:8443/llm"
  bool is_loopback() const;
};

// "http://HOST[:PORT][/PATH]" or https. An ending "/v1" is dropped: it belongs to the requests.
// Throws Error (kUsage) with what is wrong.
Address parse_url(const std::string& url);

// OLLAMA_HOST as Ollama reads it: HOST, HOST:PORT, :PORT, SCHEME://HOST[:PORT][/PATH], with spaces
// or quotes around it; missing parts are http, 127.0.0.1 and 11434 (80 or 443 after a scheme).
// Empty: the defaults. Unlike Ollama, which takes the default port in place of one it cannot read,
// throws Error (kUsage).
// Source: ollama, envconfig/config.go, Host().
Address parse_ollama_host(const std::string& value);

}  // namespace edgellm::peers
