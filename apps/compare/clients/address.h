// Addresses as people give them to `compare`.
#pragma once

#include <string>

#include "apps/common/address.h"

namespace edgellm::peers {

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
