#include "apps/compare/clients/address.h"

#include <string_view>

namespace edgellm::peers {
namespace {

constexpr std::string_view kSpaces = " \t\r\n";

std::string_view trim(std::string_view text, std::string_view what) {
  const size_t begin = text.find_first_not_of(what);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(what) - begin + 1);
}

}  // namespace

Address parse_url(const std::string& url) {
  Address address = parse_address(
      url, {.what = "--url", .expected = "http://HOST:PORT, as in http://127.0.0.1:8080"});
  if (address.path.ends_with("/v1")) address.path.resize(address.path.size() - 3);
  return address;
}

Address parse_ollama_host(const std::string& value) {
  return parse_address(trim(trim(trim(value, kSpaces), "\"'"), kSpaces),
                       {.what = "OLLAMA_HOST",
                        .expected = "HOST, HOST:PORT, :PORT or http://HOST:PORT",
                        .default_host = "127.0.0.1",
                        .default_port = 11434});
}

}  // namespace edgellm::peers
