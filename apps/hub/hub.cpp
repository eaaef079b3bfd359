#include "apps/hub/hub.h"

#include <algorithm>
#include <charconv>
#include <thread>
#include <utility>

#include "apps/common/environment.h"
#include "apps/common/signals.h"
#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "base/number_format.h"
#include "base/text.h"

namespace edgellm::hub {
namespace {

constexpr const char* kDefaultEndpoint = "https://huggingface.co";
// A longer pause than that a person should decide on.
constexpr int kMaxRetryAfterSeconds = 120;

std::string percent_encoded(std::string_view text, std::string_view safe) {
  constexpr char kDigits[] = "0123456789ABCDEF";
  std::string encoded;
  for (const char c : text) {
    const bool is_plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                          (c >= '0' && c <= '9') ||
                          std::string_view("-._~").find(c) != std::string_view::npos ||
                          safe.find(c) != std::string_view::npos;
    if (is_plain) {
      encoded += c;
    } else {
      const auto byte = static_cast<unsigned char>(c);
      encoded += '%';
      encoded += kDigits[byte >> 4];
      encoded += kDigits[byte & 15];
    }
  }
  return encoded;
}

std::optional<uint64_t> number(const std::string& text) {
  uint64_t value = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || rest != end || text.empty()) return std::nullopt;
  return value;
}

std::string trimmed(const std::string& text) {
  const size_t begin = text.find_first_not_of(" \t\r\n");
  if (begin == std::string::npos) return "";
  return text.substr(begin, text.find_last_not_of(" \t\r\n") - begin + 1);
}

// Without the quotes, and without what says that it is of an equivalent file.
std::string plain_etag(std::string etag) {
  if (etag.starts_with("W/")) etag.erase(0, 2);
  if (etag.size() >= 2 && etag.front() == '"' && etag.back() == '"') {
    etag = etag.substr(1, etag.size() - 2);
  }
  return etag;
}

bool is_redirect(int status) {
  return status == 301 || status == 302 || status == 303 || status == 307 || status == 308;
}

// Another attempt may get what this one did not.
bool is_temporary(const Hub::Answer& answer) {
  const HttpAnswer& http = answer.http;
  if (http.failure == HttpFailure::kTls) return false;
  // A proxy that cannot reach the server now, or its own master.
  if (http.failure == HttpFailure::kProxyRefuses) {
    return http.proxy_status == 0 || http.proxy_status >= 502;
  }
  if (http.failure != HttpFailure::kNone) return true;
  switch (http.status) {
    case 200:  // less than was asked for
    case 206:
    case 408:
    case 416:
    case 425:
    case 429:
    case 500:
    case 502:
    case 503:
    case 504:
      return true;
    case 401:
    case 403:  // the address of a file elsewhere is signed for a time, and is made anew
      return answer.is_elsewhere;
    default:
      return false;
  }
}

// The API's answer: {"sha": "...", "siblings": [{"rfilename": "...",
// "size": 1, "blobId": "...", "lfs": {"sha256": "...", "size": 1}}]}
HubModel parse_model(const std::string& text, const std::string& server) {
  const JsonSource source{server, "its list of files", ExitCode::kPeerUnavailable};
  const Json json = parse_json_object(text, source, [](int depth, const std::string& key) {
    return depth > 1 || key == "sha" || key == "siblings";
  });
  const Fields fields(json, source);
  HubModel model;
  model.commit = fields.text("sha");
  if (ContentHash::parse(model.commit).kind != ContentHash::Kind::kGitBlob) {
    fields.fail("sha is " + value_text(fields.get("sha")) + ", expected a commit of 40 hex digits");
  }
  const size_t n = fields.array("siblings").size();
  for (size_t i = 0; i < n; ++i) {
    const Fields entry = fields.entry("siblings", i);
    HubFile file;
    file.path = entry.text("rfilename");
    if (entry.has("size")) file.bytes = static_cast<uint64_t>(entry.integer("size", 0, INT64_MAX));
    if (entry.has("blobId")) file.hash = ContentHash::parse(entry.text("blobId"));
    if (entry.has("lfs")) {
      const Fields lfs = entry.object("lfs");
      file.hash = ContentHash::parse(lfs.text(lfs.has("sha256") ? "sha256" : "oid"));
      if (lfs.has("size")) file.bytes = static_cast<uint64_t>(lfs.integer("size", 0, INT64_MAX));
    }
    model.files.push_back(std::move(file));
  }
  return model;
}

}  // namespace

HubOptions hub_options() {
  HubOptions options;
  const std::string endpoint = trimmed(environment_variable("HF_ENDPOINT"));
  options.endpoint = parse_address(endpoint.empty() ? kDefaultEndpoint : endpoint,
                                   {.what = "HF_ENDPOINT",
                                    .expected = "https://HOST[:PORT], as in https://huggingface.co",
                                    .tls = true});
  options.token = trimmed(environment_variable("HF_TOKEN"));
  const auto is_bad = [](char c) { return c <= ' ' || c >= '\x7f'; };
  if (std::any_of(options.token.begin(), options.token.end(), is_bad)) {
    throw Error(ExitCode::kUsage,
                "HF_TOKEN holds a character that no token has; copy it again from " +
                    options.endpoint.short_text() + "/settings/tokens");
  }
  if (!options.token.empty() && !options.endpoint.tls && !options.endpoint.is_loopback()) {
    throw Error(ExitCode::kUsage,
                "HF_TOKEN would go to " + options.endpoint.short_text() +
                    " without encryption; use an HF_ENDPOINT of https://, or unset HF_TOKEN");
  }
  options.proxies = Proxies::of_environment();
  return options;
}

const HubFile* HubModel::find(const std::string& path) const {
  const auto found = std::find_if(files.begin(), files.end(),
                                  [&](const HubFile& file) { return file.path == path; });
  return found != files.end() ? &*found : nullptr;
}

Hub::Hub(Reference reference, HubOptions options)
    : reference_(std::move(reference)),
      options_(std::move(options)),
      server_(options_.endpoint),
      http_(options_.proxies) {
  server_.path.clear();
}

void Hub::fail(const std::string& what) const {
  throw Error(ExitCode::kPeerUnavailable, reference_.text() + ": " + what);
}

HubModel Hub::list() {
  const std::string revision = reference_.revision.empty() ? "main" : reference_.revision;
  HttpRequest request;
  request.url = {server_, options_.endpoint.path + "/api/models/" + reference_.id() + "/revision/" +
                              percent_encoded(revision, "") + "?blobs=true"};
  for (int failures = 1;; ++failures) {
    const Answer answer = follow(request, {});
    if (answer.http.failure == HttpFailure::kNone && answer.http.status == 200) {
      return parse_model(answer.http.body, answer.server);
    }
    // Whoever has no network hears of it at once.
    if (answer.http.failure == HttpFailure::kNoConnection ||
        answer.http.failure == HttpFailure::kNoProxy) {
      fail_connection(answer);
    }
    wait_to_retry(answer, failures);
  }
}

Url Hub::file_url(const HubModel& model, const HubFile& file) const {
  return {server_, options_.endpoint.path + "/" + reference_.id() + "/resolve/" + model.commit +
                       "/" + percent_encoded(file.path, "/")};
}

void Hub::complete(const HubModel& model, HubFile& file) {
  HttpRequest request;
  request.method = "HEAD";
  request.url = file_url(model, file);
  for (int failures = 1;; ++failures) {
    const Answer answer = follow(request, {.to_other_servers = false});
    const HttpAnswer& http = answer.http;
    if (http.failure == HttpFailure::kNone && (http.status == 200 || is_redirect(http.status))) {
      const bool is_linked = !http.header("x-linked-size").empty();
      file.bytes = number(http.header(is_linked ? "x-linked-size" : "content-length"));
      if (!file.bytes)
        fail("the server at " + answer.server + " gives no size for " + printable(file.path) +
             "; is HF_ENDPOINT a Hugging Face Hub?");
      const std::string linked = http.header("x-linked-etag");
      file.hash = ContentHash::parse(plain_etag(linked.empty() ? http.header("etag") : linked));
      return;
    }
    wait_to_retry(answer, failures, file.path);
  }
}

Hub::Answer Hub::get(
    const HubModel& model, const HubFile& file,
    const std::vector<std::pair<std::string, std::string>>& headers,
    const std::function<bool(int, const std::map<std::string, std::string>&)>& on_head,
    const std::function<bool(std::string_view)>& on_data) {
  HttpRequest request;
  request.url = file_url(model, file);
  request.headers = headers;
  request.on_head = on_head;
  request.on_data = on_data;
  return follow(std::move(request), {});
}

Hub::Answer Hub::follow(HttpRequest request, Redirects redirects) {
  constexpr int kMaxRedirects = 8;
  const auto headers = request.headers;
  Answer answer;
  for (int i = 0; i <= kMaxRedirects; ++i) {
    const Url& url = request.url;
    answer.is_elsewhere = url.server != server_;
    answer.server = url.server.short_text();
    request.headers = headers;
    if (!answer.is_elsewhere && !options_.token.empty()) {
      request.headers.emplace_back("Authorization", "Bearer " + options_.token);
    }
    answer.http = http_.send(request);
    if (http_.is_cancelled()) throw Cancelled();
    throw_if_interrupted();
    log(LogLevel::kDebug,
        request.method + " " + url.server.short_text() +
            printable(url.target.substr(0, url.target.find('?'))) +
            (answer.http.proxy != nullptr ? " through " + answer.http.proxy->text() : "") + ": " +
            (answer.http.status != 0 ? std::to_string(answer.http.status) : "no answer"));
    if (answer.http.failure != HttpFailure::kNone || !is_redirect(answer.http.status)) {
      return answer;
    }
    Url next = parse_location(answer.http.header("location"), url);
    if (!redirects.to_other_servers && next.server != server_) return answer;
    if (url.server.tls && !next.server.tls) {
      fail("the server at " + answer.server +
           " redirects from https to http, where anybody could change the file; is HF_ENDPOINT a "
           "Hugging Face Hub?");
    }
    request.url = std::move(next);
  }
  fail("the server at " + answer.server +
       " redirects in a circle; is HF_ENDPOINT a Hugging Face "
       "Hub?");
}

void Hub::wait_to_retry(const Answer& answer, int failures, const std::string& file) const {
  const HttpAnswer& http = answer.http;
  const bool is_over = failures > options_.retries || !is_temporary(answer);
  // A date instead of seconds is rare; the doubled pauses serve for it.
  const std::optional<uint64_t> asked = number(http.header("retry-after"));
  if (is_over || (asked && *asked > kMaxRetryAfterSeconds)) {
    if (http.failure != HttpFailure::kNone) fail_connection(answer);
    fail_status(answer, file);
  }
  constexpr int kMaxDoublings = 6;
  std::chrono::milliseconds pause =
      options_.first_wait * (1 << std::min(failures - 1, kMaxDoublings));
  if (asked) pause = std::max(pause, std::chrono::milliseconds(*asked * 1000));
  log(LogLevel::kDebug, "retry " + std::to_string(failures) + " of " +
                            std::to_string(options_.retries) + " in " +
                            std::to_string(pause.count()) + " ms");
  const auto end = std::chrono::steady_clock::now() + pause;
  while (std::chrono::steady_clock::now() < end) {
    if (http_.is_cancelled()) throw Cancelled();
    throw_if_interrupted();
    std::this_thread::sleep_for(std::min(pause, std::chrono::milliseconds(20)));
  }
}

void Hub::fail_connection(const Answer& answer) const {
  constexpr const char* kResume = "; the same command resumes the download";
  switch (answer.http.failure) {
    case HttpFailure::kTls:
      fail("the server at " + answer.server +
           " shows no certificate that this machine trusts; for a certificate authority of your "
           "own name its file in SSL_CERT_FILE, else see that the package ca-certificates is "
           "installed and the clock is right");
    case HttpFailure::kNoConnection:
    case HttpFailure::kTimeout:
      fail("nobody answers at " + answer.server +
           (answer.http.failure == HttpFailure::kTimeout ? " in time"
                                                         : " (refused, or no such host)") +
           "; see that this machine has a network, or name a mirror with HF_ENDPOINT");
    case HttpFailure::kNoProxy:
      fail("nobody answers at the proxy " + answer.http.proxy->text() +
           " (refused, no such host, or not in time); correct that variable, or put " +
           "the server's host into NO_PROXY");
    case HttpFailure::kProxyRefuses:
      fail_proxy(answer);
    default:
      fail("the server at " + answer.server + " cut " + counted(options_.retries + 1, "answer") +
           " in a row" + kResume);
  }
}

void Hub::fail_proxy(const Answer& answer) const {
  const Proxy& proxy = *answer.http.proxy;
  const int status = answer.http.proxy_status;
  if (status == 0) {
    fail("what answers at the proxy " + proxy.text() +
         " is no HTTP proxy, or ends in the middle; correct that variable");
  }
  const std::string says = "the proxy " + proxy.text() + " says " + std::to_string(status);
  if (status == 407) {
    fail(says + (proxy.authorization.empty()
                     ? ": it wants a user name and a password; write " + proxy.variable +
                           "=http://USER:PASSWORD@HOST:PORT"
                     : ": it does not accept the user name and the password of " + proxy.variable));
  }
  fail(says + " to a connection to " + answer.server +
       "; ask whoever runs it to allow that, or put the host into NO_PROXY if it can be reached "
       "without");
}

void Hub::fail_status(const Answer& answer, const std::string& file) const {
  const int status = answer.http.status;
  const std::string endpoint = options_.endpoint.short_text();
  const std::string page = endpoint + "/" + reference_.id();
  const std::string says = "the server at " + answer.server + " says " + std::to_string(status);
  const std::string code = answer.http.header("x-error-code");
  const std::string put_token = "put a token from " + endpoint + "/settings/tokens into HF_TOKEN";
  if (answer.is_elsewhere) {
    fail(says + " where the Hub redirects to; the same command resumes the download");
  }
  if (status == 401) {
    fail(options_.token.empty()
             ? says +
                   ": no public model has this name; check it, or if the model is private or "
                   "gated " +
                   put_token
             : says +
                   ": HF_TOKEN is not accepted for this model; check its name, or make a new "
                   "token at " +
                   endpoint + "/settings/tokens");
  }
  if (status == 403) {
    fail(says + ": access is restricted; accept the model's terms at " + page +
         (options_.token.empty() ? ", then " + put_token
                                 : " with the account of HF_TOKEN, and let the token read it"));
  }
  if (status == 404) {
    if (code == "RevisionNotFound" || (code.empty() && !reference_.revision.empty())) {
      fail(says + ": no revision '" + (reference_.revision.empty() ? "main" : reference_.revision) +
           "'; see the branches and tags at " + page + "/tree/main");
    }
    if (!file.empty()) fail(says + ": no file " + printable(file) + "; see " + page + "/tree/main");
    fail(says + ": no such model; look for its name at " + endpoint + "/models");
  }
  if (status == 429) {
    const std::string after = answer.http.header("retry-after");
    fail(says + ": too many requests; type the command again " +
         (number(after) ? "in " + std::to_string(*number(after)) + " s" : "later") +
         (options_.token.empty() ? ", or " + put_token : ""));
  }
  if (status >= 500) {
    fail(says + ", a fault of its own" +
         (options_.retries > 0 ? ", also in " + counted(options_.retries, "more attempt") : "") +
         "; type the command again later, the download resumes");
  }
  fail(says + ", which no Hugging Face Hub should; is HF_ENDPOINT right?");
}

}  // namespace edgellm::hub
