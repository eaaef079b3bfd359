// Addresses, as people type them and as OLLAMA_HOST holds them.
#include "apps/compare/clients/address.h"

#include <catch2/catch.hpp>

#include "base/error.h"

namespace edgellm::peers {
namespace {

TEST_CASE("OLLAMA_HOST in all of Ollama's forms") {
  // As Host() in Ollama's envconfig/config.go gives them.
  const auto text = [](const std::string& value) { return parse_ollama_host(value).text(); };
  CHECK(text("") == "http://127.0.0.1:11434");
  CHECK(text("1.2.3.4") == "http://1.2.3.4:11434");
  CHECK(text("1.2.3.4:1234") == "http://1.2.3.4:1234");
  CHECK(text(":1234") == "http://127.0.0.1:1234");
  CHECK(text("example.com") == "http://example.com:11434");
  CHECK(text("example.com:1234") == "http://example.com:1234");
  CHECK(text("http://1.2.3.4") == "http://1.2.3.4:80");
  CHECK(text("https://1.2.3.4") == "https://1.2.3.4:443");
  CHECK(text("https://1.2.3.4:4321") == "https://1.2.3.4:4321");
  CHECK(text("[::1]") == "http://[::1]:11434");
  CHECK(text("::1") == "http://[::1]:11434");
  CHECK(text("[2001:db8::ff]:1337") == "http://[2001:db8::ff]:1337");
  CHECK(text(" 1.2.3.4 ") == "http://1.2.3.4:11434");
  CHECK(text("\"1.2.3.4\"") == "http://1.2.3.4:11434");
  CHECK(text(" ' 1.2.3.4:5 ' ") == "http://1.2.3.4:5");
  CHECK(text("https://example.com/ollama/") == "https://example.com:443/ollama");
  CHECK(text("example.com:80/ollama") == "http://example.com:80/ollama");
}

TEST_CASE("addresses in the form of --url") {
  const auto text = [](const std::string& value) { return parse_url(value).text(); };
  CHECK(text("http://localhost:8080") == "http://localhost:8080");
  CHECK(text("http://localhost:8080/") == "http://localhost:8080");
  CHECK(text("http://localhost:8080/v1") == "http://localhost:8080");
  CHECK(text("http://localhost:8080/v1/") == "http://localhost:8080");
  CHECK(text("https://gateway/llm/v1") == "https://gateway:443/llm");
  CHECK(text("http://[::1]") == "http://[::1]:80");
  CHECK(text("127.0.0.1:8080") == "http://127.0.0.1:8080");
  CHECK(text("localhost:8080/v1") == "http://localhost:8080");
}

TEST_CASE("addresses that are none are refused with what is wrong") {
  const auto refused = [](auto parse, const std::string& value, const std::string& part) {
    INFO(value);
    try {
      parse(value);
      FAIL("not refused");
    } catch (const Error& error) {
      CHECK(error.code() == ExitCode::kUsage);
      CHECK_THAT(error.what(), Catch::Contains(part));
    }
  };
  refused(parse_url, "ftp://x", "a scheme that is neither http nor https");
  refused(parse_url, "HTTP:/x", "the port");
  refused(parse_url, "", "no host");
  refused(parse_url, "http://", "no host");
  refused(parse_url, "http://:80", "no host");
  refused(parse_url, "http://x:", "the port");
  refused(parse_url, "http://x:0", "the port");
  refused(parse_url, "http://x:65536", "the port");
  refused(parse_url, "http://x:80a", "the port");
  refused(parse_url, "http://[::1", "a [ without its ]");
  refused(parse_url, "http://[::1]80", "text after the ]");
  refused(parse_url, "http://me:secret@x", "user names");
  refused(parse_url, "http://x/?key=1", "a query");
  refused(parse_url, "http://x/a b", "a character");
  refused(parse_url, "http://x\r\nHost: y", "a character");
  refused(parse_ollama_host, "unix:///run/ollama", "a scheme");
  refused(parse_ollama_host, ":port", "the port");
  refused(parse_ollama_host, "1.2.3.4:99999", "the port");
}

TEST_CASE("what is on this machine") {
  for (const char* host : {"localhost", "127.0.0.1", "127.3.4.5", "0.0.0.0", "[::1]"}) {
    CHECK(parse_ollama_host(host).is_loopback());
  }
  for (const char* host : {"10.0.0.1", "example.com", "[2001:db8::1]"}) {
    CHECK_FALSE(parse_ollama_host(host).is_loopback());
  }
}

}  // namespace
}  // namespace edgellm::peers
