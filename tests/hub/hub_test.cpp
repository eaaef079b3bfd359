// The parts of the Hub's client that need no server; pull_test.py has the rest.
#include <catch2/catch.hpp>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "apps/hub/digest.h"
#include "apps/hub/http.h"
#include "apps/hub/proxy.h"
#include "apps/hub/reference.h"
#include "apps/pull/transfer_progress.h"
#include "base/error.h"
#include "tests/support/environment.h"

namespace edgellm::hub {
namespace {

std::string hex(ContentHash::Kind kind, const std::string& text) {
  Digest digest(kind, text.size());
  // In two pieces, as a network would bring them.
  digest.update(text.data(), text.size() / 2);
  digest.update(text.data() + text.size() / 2, text.size() - text.size() / 2);
  return digest.hex();
}

TEST_CASE("contents are named as git and sha256sum name them") {
  // sha256sum; git hash-object.
  CHECK(hex(ContentHash::Kind::kSha256, "abc") ==
        "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  CHECK(hex(ContentHash::Kind::kGitBlob, "what is up, doc?") ==
        "bd9dbf5aae1a3862dd1526723246b20206e5fc37");
  CHECK(hex(ContentHash::Kind::kGitBlob, "") == "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391");
  CHECK(hex(ContentHash::Kind::kNone, "abc").empty());
}

TEST_CASE("the kind of a hash shows in its length") {
  CHECK(ContentHash::parse(std::string(64, 'A')).hex == std::string(64, 'a'));
  CHECK(ContentHash::parse(std::string(64, 'a')).kind == ContentHash::Kind::kSha256);
  CHECK(ContentHash::parse(std::string(40, '0')).kind == ContentHash::Kind::kGitBlob);
  CHECK(ContentHash::parse(std::string(41, '0')).kind == ContentHash::Kind::kNone);
  CHECK(ContentHash::parse(std::string(40, 'g')).kind == ContentHash::Kind::kNone);
}

TEST_CASE("names of models on the Hub") {
  const Reference plain = parse_reference("hf:microsoft/bitnet-b1.58-2B-4T");
  CHECK(plain.id() == "microsoft/bitnet-b1.58-2B-4T");
  CHECK(plain.revision.empty());
  CHECK(plain.stored_name() == plain.id());
  const Reference revised = parse_reference("hf:a/b@refs/pr/1");
  CHECK(revised.revision == "refs/pr/1");
  CHECK(revised.text() == "hf:a/b@refs/pr/1");
  CHECK(revised.stored_name() == "a/b@refs-pr-1");
  for (const std::string bad :
       {"", "hf:", "a/b", "hf:a", "hf:a/", "hf:/b", "hf:../b", "hf:a/..", "hf:a/.b", "hf:a/b/c",
        "hf:a b/c", "hf:a/b@", "hf:a/b@../x", "hf:a/b@/x", "hf:a/b@x y", "hf:a/b\n", "hf:a/b%2F"}) {
    INFO(bad);
    CHECK_THROWS_AS(parse_reference(bad), Error);
  }
  CHECK_THROWS_AS(parse_reference("hf:a/" + std::string(97, 'a')), Error);
}

// All variables of proxies, as of this list; others are empty.
class ProxyVariables {
 public:
  explicit ProxyVariables(const std::map<std::string, std::string>& values) {
    for (const char* name : {"https_proxy", "HTTPS_PROXY", "http_proxy", "HTTP_PROXY", "all_proxy",
                             "ALL_PROXY", "no_proxy", "NO_PROXY"}) {
      const auto found = values.find(name);
      variables_.push_back(
          std::make_unique<test::WithVariable>(name, found != values.end() ? found->second : ""));
    }
  }

 private:
  std::vector<std::unique_ptr<test::WithVariable>> variables_;
};

// The proxy's address for a server, "" for none.
std::string proxy_for(const std::map<std::string, std::string>& variables,
                      const std::string& server) {
  const ProxyVariables set(variables);
  const Proxies proxies = Proxies::of_environment();
  const Proxy* proxy =
      proxies.find(parse_address(server, {.what = "test", .expected = "an address"}));
  return proxy == nullptr ? "" : proxy->text();
}

TEST_CASE("which proxy the environment names for a server") {
  const std::string hub = "https://huggingface.co";
  CHECK(proxy_for({}, hub).empty());
  CHECK(proxy_for({{"HTTPS_PROXY", "http://p:3128"}}, hub) == "http://p:3128 of HTTPS_PROXY");
  CHECK(proxy_for({{"HTTPS_PROXY", "http://p:3128"}}, "http://mirror").empty());
  CHECK(proxy_for({{"HTTP_PROXY", "HTTP://p/"}}, "http://mirror") == "http://p of HTTP_PROXY");
  CHECK(proxy_for({{"HTTP_PROXY", "http://p"}}, hub).empty());
  CHECK(proxy_for({{"https_proxy", "a:1"}, {"HTTPS_PROXY", "b:2"}}, hub) ==
        "http://a:1 of https_proxy");
  CHECK(proxy_for({{"ALL_PROXY", "[::1]:8080"}}, hub) == "http://[::1]:8080 of ALL_PROXY");
  CHECK(proxy_for({{"all_proxy", "a"}, {"HTTPS_PROXY", "b"}}, hub) == "http://b of HTTPS_PROXY");
  CHECK(proxy_for({{"all_proxy", "a"}, {"HTTPS_PROXY", "b"}}, "http://mirror") ==
        "http://a of all_proxy");
}

TEST_CASE("which servers NO_PROXY exempts") {
  const auto is_exempt = [](const std::string& entries, const std::string& server) {
    return proxy_for({{"ALL_PROXY", "p"}, {"NO_PROXY", entries}}, server).empty();
  };
  for (const char* entries :
       {"huggingface.co", ".huggingface.co", "*.huggingface.co", "HuggingFace.co:443", "*",
        "other, huggingface.co", "other\thuggingface.co"}) {
    INFO(entries);
    CHECK(is_exempt(entries, "https://huggingface.co"));
  }
  CHECK(is_exempt("hf.co", "https://cdn-lfs.hf.co"));
  for (const char* entries : {"", ",", ".", "face.co", "huggingface.co:80", "huggingface", "co.*",
                              "cdn.huggingface.co", "10.0.0.0/0"}) {
    INFO(entries);
    CHECK_FALSE(is_exempt(entries, "https://huggingface.co"));
  }
  CHECK(is_exempt("10.1.2.3", "https://10.1.2.3"));
  CHECK(is_exempt("10.0.0.0/8", "https://10.1.2.3:8443"));
  CHECK(is_exempt("10.1.2.0/23", "https://10.1.3.3"));
  CHECK_FALSE(is_exempt("10.1.2.0/24", "https://10.1.3.3"));
  CHECK_FALSE(is_exempt("10.0.0.0/33", "https://10.1.2.3"));
  CHECK_FALSE(is_exempt("10.0.0.0/", "https://10.1.2.3"));
  CHECK(is_exempt("fd00::/8", "https://[fd12::1]"));
  CHECK_FALSE(is_exempt("fd00::/8", "https://10.1.2.3"));
  CHECK(is_exempt("::1", "https://[::1]:8443"));
  CHECK(is_exempt("[::1]:8443", "https://[::1]:8443"));
  CHECK_FALSE(is_exempt("[::1]:8444", "https://[::1]:8443"));
}

TEST_CASE("users and passwords of proxies are kept, and in no message") {
  const auto authorization_of = [](const std::string& value) {
    const ProxyVariables set({{"HTTPS_PROXY", value}});
    return Proxies::of_environment()
        .find({.tls = true, .host = "x", .port = 443, .path = ""})
        ->authorization;
  };
  CHECK(authorization_of("http://p:1").empty());
  // base64 of Aladdin:open sesame, from RFC 7617.
  CHECK(authorization_of("http://Aladdin:open%20sesame@p:1") ==
        "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==");
  CHECK(authorization_of("Aladdin:open sesame@p") == "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==");
  for (const std::string value :
       {"socks5://u:secret@p:1", "https://u:secret@p", "http://u:secret@p:port",
        "http://u:sec/secret@p:0", "http://u:secret@", "u:secret@:x"}) {
    INFO(value);
    const ProxyVariables set({{"HTTPS_PROXY", value}});
    CHECK_THROWS_WITH(Proxies::of_environment(), Catch::StartsWith("HTTPS_PROXY") &&
                                                     Catch::Contains("http://[USER") &&
                                                     !Catch::Contains("secret"));
  }
}

TEST_CASE("names of files that may stand in a folder") {
  for (const char* good : {"model.safetensors", "model-00001-of-00002.safetensors", "A_b.gguf"}) {
    CHECK(is_plain_file_name(good));
  }
  for (const std::string bad :
       {"", ".", "..", ".hidden", "a/b", "-rf", "a b", "a\nb", "\xC3\xA4", "a..b", "a\\b"}) {
    INFO(bad);
    CHECK_FALSE(is_plain_file_name(bad));
  }
  CHECK_FALSE(is_plain_file_name(std::string("a\0b", 3)));
  CHECK_FALSE(is_plain_file_name(std::string(201, 'a')));
}

TEST_CASE("where a redirect leads") {
  const Url from = {{.tls = true, .host = "hub", .port = 8443, .path = ""}, "/a/b?c"};
  const auto target = [&](const std::string& location) {
    const Url url = parse_location(location, from);
    return url.server.text() + " " + url.target;
  };
  CHECK(target("https://cdn/x?s=a%2Fb%3D&t=%20") == "https://cdn:443 /x?s=a%2Fb%3D&t=%20");
  CHECK(target("https://[::1]:9/x#part") == "https://[::1]:9 /x");
  CHECK(target("https://cdn?x") == "https://cdn:443 /?x");
  CHECK(target("https://cdn") == "https://cdn:443 /");
  CHECK(target("/api/x?y") == "https://hub:8443 /api/x?y");
  for (const char* bad :
       {"", "x", "//cdn/x", "ftp://cdn/x", "https://", "https://a b/", "https://a:0/",
        "https://me@cdn/", "https://cdn/\x7f", "https://cdn/\xC3\xA4"}) {
    INFO(bad);
    CHECK_THROWS_AS(parse_location(bad, from), Error);
  }
}

TEST_CASE("progress says how fast and how long") {
  constexpr int64_t kSecond = 1'000'000'000;
  TransferProgress progress;
  DownloadState state = {.done = 500'000'000,
                         .total = 1'000'000'000,
                         .fetched = 0,
                         .files_left = 3,
                         .file = "model.safetensors"};
  CHECK(progress.text(state, 0) == "500.0 MB of 1.0 GB, model.safetensors and 2 more");
  state.done += 20'000'000;
  state.fetched += 20'000'000;
  state.files_left = 1;
  CHECK(progress.text(state, 2 * kSecond) ==
        "520.0 MB of 1.0 GB, 10.0 MB/s, 0:48 left, model.safetensors");
  // The speed is of the last ten seconds.
  state.done += 1'000'000;
  state.fetched += 1'000'000;
  CHECK(progress.text(state, 12 * kSecond) ==
        "521.0 MB of 1.0 GB, 100.0 kB/s, 1:19:50 left, model.safetensors");
  // Without a byte in that time nobody knows how long it takes.
  CHECK(progress.text(state, 30 * kSecond) == "521.0 MB of 1.0 GB, model.safetensors");
  CHECK(clock_text(0) == "0:00");
  CHECK(clock_text(754) == "12:34");
  CHECK(clock_text(3723) == "1:02:03");
}

}  // namespace
}  // namespace edgellm::hub
