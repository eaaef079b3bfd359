// The models that a server offers. Weights are loaded when a request needs them, and the least
// recently used are unloaded where the memory does not hold all, or when nobody has asked for them
// for a while.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "apps/serve/event.h"
#include "apps/serve/http_server.h"
#include "apps/serve/keep_alive.h"
#include "apps/serve/metrics.h"
#include "apps/serve/served_model.h"
#include "apps/session/device.h"

namespace edgellm::serve {

struct ModelsOptions {
  SessionOptions session;
  ModelOptions model;
  int max_loaded = 0;  // 0: as many as there is memory for
  KeepAlive keep_alive;
};

// All of it may be called by any thread.
class Models {
 public:
  // The first is that of requests which name none. Chooses the device, opens the files and loads no
  // weights. Throws Error: for files that are no models, kUsage for two of the same name.
  Models(const std::vector<ModelChoice>& choices, const ModelsOptions& options,
         const Messages& messages = messages_to_stderr());
  ~Models();
  Models(const Models&) = delete;
  Models& operator=(const Models&) = delete;

  // Serves a `.tmac2` file as well, or anew. Throws Error as the constructor does.
  void add(const std::string& path);

  // References hold as long as the object, those to models that were replaced as well.
  std::vector<ServedModel*> all() const;
  ServedModel& first() const;
  ServedModel* find(const std::string& name) const;  // null where there is none

  // Loads the model where it is not, and keeps it loaded as long as the result lives. `keep_alive`
  // holds from then on. Throws Error where it cannot be loaded, and ApiError where that takes
  // longer than `until`, because other models are in use, or the client goes away. What is loaded
  // for clients that have all gone is given up.
  std::shared_ptr<LoadedModel> use(ServedModel& model, const Client& client,
                                   Clock::time_point until);
  std::shared_ptr<LoadedModel> use(ServedModel& model, const Client& client,
                                   Clock::time_point until, const KeepAlive& keep_alive);

  // The model is to be unloaded as soon as nobody uses it.
  void expire(const ServedModel& model);

  // Unloads what has not been used for as long as it was to be kept. Somebody calls it again and
  // again.
  void unload_expired();

  struct Status {
    const ServedModel* model = nullptr;
    bool is_loaded = false;
    bool is_gpu = false;
    std::string device;
    int sequences = 0;
    std::optional<Clock::time_point> expires_at;  // of a loaded one; empty: it does not
    EngineState state;  // counts include earlier loads, and files that this one has replaced
  };
  std::vector<Status> status() const;  // in the order of all()
  Status status(const ServedModel& model) const;

  // Answers that have not ended.
  int live() const;
  // Why an engine cannot go on; empty where all can.
  std::string failure() const;
  // One of several devices failed since the server began, and the others took over.
  bool has_failed_device() const;
  const std::vector<Device>& devices() const { return devices_; }
  const KeepAlive& keep_alive() const { return options_.keep_alive; }
  const std::string& kv_type() const { return options_.session.kv_type; }

 private:
  struct Entry;
  // Who wants a model that is not there yet.
  struct Wanted {
    Entry& entry;
    const Client& client;
    Clock::time_point until;
  };

  std::unique_ptr<Entry> make_entry(const ModelChoice& choice) const;
  Entry* find_entry(const std::string& name) const;
  Entry& entry_of(const ServedModel& model) const;
  Status status_of(const Entry& entry) const;
  Status whole_status_of(const Entry& entry) const;
  void await_loaded(std::unique_lock<std::mutex>& lock, const Wanted& wanted);
  void load(std::unique_lock<std::mutex>& lock, const Wanted& wanted);
  void end_load();
  Messages loading_messages() const;
  void check_wanted() const;
  void make_room(std::unique_lock<std::mutex>& lock, const Session& session, const Wanted& wanted);
  void await_unused(std::unique_lock<std::mutex>& lock, Entry& entry, const Wanted& wanted);
  void await_change(std::unique_lock<std::mutex>& lock, const Wanted& wanted);
  void report_change() const;
  Entry* least_recently_used() const;
  static bool is_ready(const Entry& entry);
  static bool is_expired(const Entry& entry);
  void unload(std::unique_lock<std::mutex>& lock, Entry& entry);
  void end_use(Entry& entry);

  const ModelsOptions options_;
  const Messages messages_;
  const std::vector<Device> devices_;
  mutable std::mutex mutex_;
  // Guarded by mutex_, like what entries hold but their models.
  std::vector<std::unique_ptr<Entry>> entries_;
  bool is_loading_ = false;              // somebody loads or unloads
  const Wanted* loading_for_ = nullptr;  // where a model is loaded
  std::vector<const Event*> waiting_;    // set when one of the above or a number of uses changes
};

}  // namespace edgellm::serve
