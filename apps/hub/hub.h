// The Hugging Face Hub, or a server that speaks as it does: which files a model has, and their
// bytes. https://huggingface.co/docs/hub/api
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "apps/common/address.h"
#include "apps/hub/digest.h"
#include "apps/hub/http.h"
#include "apps/hub/reference.h"

namespace edgellm::hub {

struct HubOptions {
  Address endpoint;
  std::string token;  // empty: none is sent
  Proxies proxies;
  int retries = 5;                            // in a row without a byte between them
  std::chrono::milliseconds first_wait{500};  // before the first retry; doubled for each
};

// Of HF_ENDPOINT, HF_TOKEN and the variables that name proxies. Throws Error (kUsage) for values
// that cannot be meant.
HubOptions hub_options();

struct HubFile {
  std::string path;  // in the repository. From the server: not to be used as a path here.
  std::optional<uint64_t> bytes;
  ContentHash hash;
};

struct HubModel {
  std::string commit;  // what the revision means now, 40 hex digits
  std::vector<HubFile> files;

  const HubFile* find(const std::string& path) const;
};

// Thrown by requests that Hub::cancel() has ended.
struct Cancelled {};

// One model. Requests may come from several threads. Every fault of server or network is Error
// (kPeerUnavailable), one line that says what to type next. The token goes to the endpoint's host
// and port and nowhere else, redirects included, and is in no message.
class Hub {
 public:
  Hub(Reference reference, HubOptions options);

  HubModel list();

  // Asks for the size and the hash of a file that the list came without.
  void complete(const HubModel& model, HubFile& file);

  struct Answer {
    HttpAnswer http;
    bool is_elsewhere = false;  // of a server that the endpoint redirected to
    std::string server;         // that gave it, for messages
  };

  // One attempt to get a file, or a part of it. The callbacks are those of HttpRequest.
  Answer get(const HubModel& model, const HubFile& file,
             const std::vector<std::pair<std::string, std::string>>& headers,
             const std::function<bool(int, const std::map<std::string, std::string>&)>& on_head,
             const std::function<bool(std::string_view)>& on_data);

  // Returns after the pause that the answer of a failed attempt asks for. Throws the answer's
  // Error where no other attempt can help, or `failures` in a row are more than the options allow.
  void wait_to_retry(const Answer& answer, int failures, const std::string& file = "") const;

  void cancel() { http_.cancel(); }
  const Reference& reference() const { return reference_; }

  // "hf:ORG/NAME: WHAT", kPeerUnavailable.
  [[noreturn]] void fail(const std::string& what) const;

 private:
  struct Redirects {
    bool to_other_servers = true;
  };
  Answer follow(HttpRequest request, Redirects redirects);
  Url file_url(const HubModel& model, const HubFile& file) const;
  [[noreturn]] void fail_status(const Answer& answer, const std::string& file) const;
  [[noreturn]] void fail_connection(const Answer& answer) const;
  [[noreturn]] void fail_proxy(const Answer& answer) const;

  Reference reference_;
  HubOptions options_;
  Address server_;  // the endpoint without its path
  Http http_;
};

}  // namespace edgellm::hub
