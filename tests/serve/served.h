// A server with the demo model in the process of the test, and what asks it.
#pragma once

#include <httplib.h>

#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "apps/serve/api.h"
#include "apps/serve/http_server.h"
#include "apps/serve/models.h"

namespace edgellm::test {

struct ServedOptions {
  int sequences = 4;
  uint64_t kv_memory = 0;
  std::vector<std::string> models = {};  // paths; empty: the demo model
  int max_loaded = 0;
  serve::KeepAlive keep_alive = {};
  int queue = 256;
  std::string device = "cpu";
  std::string fault = {};  // as EDGELLM_FAIL_DEVICE has it
  serve::ApiOptions api = {};
  serve::HttpLimits limits = {};
  std::optional<Messages> messages = {};  // empty: nobody is told what models do
};

class Served {
 public:
  explicit Served(const ServedOptions& options = {});
  ~Served();
  Served(const Served&) = delete;
  Served& operator=(const Served&) = delete;

  int port() const { return port_; }
  serve::Models& models() { return models_; }
  serve::Api& api() { return api_; }
  serve::EngineState state() { return models_.status(models_.first()).state; }

  // Waits until nothing is live, for some seconds at most.
  bool becomes_idle();

  httplib::Client client() const;

 private:
  serve::HttpServer server_;
  int port_;
  serve::Models models_;
  serve::Api api_;
  std::thread thread_;
};

// Polls for some seconds.
bool becomes_true(const std::function<bool()>& condition);

// The JSON of an answer with this status.
nlohmann::json post(const Served& server, const std::string& path, const nlohmann::json& body,
                    int status = 200, const httplib::Headers& headers = {});
nlohmann::json get(const Served& server, const std::string& path, int status = 200,
                   const httplib::Headers& headers = {});

// What a stream of events brought: each event's JSON, without the last, which is [DONE].
std::vector<nlohmann::json> post_events(const Served& server, const std::string& path,
                                        nlohmann::json body);

// Lines of JSON.
std::vector<nlohmann::json> post_lines(const Served& server, const std::string& path,
                                       const nlohmann::json& body);

// A connection for bytes that are no good HTTP.
class RawConnection {
 public:
  explicit RawConnection(const Served& server);
  ~RawConnection();
  RawConnection(const RawConnection&) = delete;
  RawConnection& operator=(const RawConnection&) = delete;

  // False where the server has closed it.
  bool send(const std::string& bytes);
  // Until the server closes, or there is a whole head and `part` behind it; some seconds at most.
  std::string receive_until(const std::string& part);
  std::string receive() { return receive_until("\x01 never"); }
  bool is_closed_within(int ms);
  void close();
  void reset();  // the other side learns of it as of a cable that was cut: by an RST

 private:
  int fd_;
};

}  // namespace edgellm::test
