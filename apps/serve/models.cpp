#include "apps/serve/models.h"

#include <algorithm>
#include <utility>

#include "apps/common/terminal.h"
#include "apps/serve/api_error.h"
#include "base/error.h"
#include "base/text.h"

namespace edgellm::serve {

struct Models::Entry {
  std::unique_ptr<ServedModel> model;
  std::unique_ptr<LoadedModel> loaded;
  int uses = 0;
  int n_waiting = 0;        // clients that wait until it can be used, that which loads it as well
  bool is_leaving = false;  // nobody may begin to use it
  Clock::time_point last_used;
  KeepAlive keep_alive;
  bool is_replaced = false;  // by a newer one of the same name
  EngineState past;          // counts of engines that have ended
};

namespace {

[[noreturn]] void throw_busy() {
  ApiError error(503, "models_busy",
                 "the memory holds no further model, and those that are loaded are in use; try "
                 "again");
  error.retry_after_seconds = 1;
  throw error;
}

// Nobody reads it but an access log. The status is the one that nginx made a custom.
[[noreturn]] void throw_gone() {
  throw ApiError(499, "client_gone", "the client has closed the connection");
}

// One more in a number, as long as it lives.
class Counted {
 public:
  explicit Counted(int& number) : number_(number) { ++number_; }
  ~Counted() { --number_; }
  Counted(const Counted&) = delete;
  Counted& operator=(const Counted&) = delete;

 private:
  int& number_;
};

ModelsOptions shared(ModelsOptions options, size_t n_models) {
  const int n = static_cast<int>(n_models);
  options.model.sequences.sharers = options.max_loaded > 0 ? std::min(options.max_loaded, n) : n;
  return options;
}

}  // namespace

Models::Models(const std::vector<ModelChoice>& choices, const ModelsOptions& options,
               const Messages& messages)
    : options_(shared(options, choices.size())),
      messages_(messages),
      devices_(choose_devices(options.session.device, messages.note)) {
  require(!choices.empty(), "a server has a model at least");
  for (const ModelChoice& choice : choices) {
    auto entry = make_entry(choice);
    if (const Entry* other = find_entry(entry->model->name())) {
      throw Error(ExitCode::kUsage, printable_path(other->model->file().path()) + " and " +
                                        printable_path(entry->model->file().path()) +
                                        " are both called " + printable(entry->model->name()) +
                                        "; give one of the files another name");
    }
    entries_.push_back(std::move(entry));
  }
}

Models::~Models() = default;

std::unique_ptr<Models::Entry> Models::make_entry(const ModelChoice& choice) const {
  auto entry = std::make_unique<Entry>();
  entry->model = std::make_unique<ServedModel>(choice, options_.session, options_.model, messages_);
  entry->keep_alive = options_.keep_alive;
  return entry;
}

void Models::add(const std::string& path) {
  auto entry = make_entry({.name = path});
  const std::lock_guard guard(mutex_);
  if (Entry* old = find_entry(entry->model->name())) {
    if (old->model->file().id() == entry->model->file().id()) return;
    if (old->model->file().path() != entry->model->file().path()) {
      throw Error(ExitCode::kUsage, "the server has another model that is called " +
                                        printable(entry->model->name()) + ", " +
                                        printable_path(old->model->file().path()));
    }
    old->is_replaced = true;
    // In its place, so that the first model stays the first.
    entries_.insert(std::ranges::find(entries_, old, &std::unique_ptr<Entry>::get),
                    std::move(entry));
    return;
  }
  entries_.push_back(std::move(entry));
}

std::vector<ServedModel*> Models::all() const {
  const std::lock_guard guard(mutex_);
  std::vector<ServedModel*> models;
  for (const auto& entry : entries_) {
    if (!entry->is_replaced) models.push_back(entry->model.get());
  }
  return models;
}

ServedModel& Models::first() const { return *all().front(); }

ServedModel* Models::find(const std::string& name) const {
  const std::lock_guard guard(mutex_);
  const Entry* entry = find_entry(name);
  return entry == nullptr ? nullptr : entry->model.get();
}

Models::Entry* Models::find_entry(const std::string& name) const {
  const auto found = std::ranges::find_if(entries_, [&](const auto& entry) {
    return !entry->is_replaced && entry->model->is_called(name);
  });
  return found == entries_.end() ? nullptr : found->get();
}

Models::Entry& Models::entry_of(const ServedModel& model) const {
  const auto found = std::ranges::find_if(
      entries_, [&](const auto& entry) { return entry->model.get() == &model; });
  require(found != entries_.end(), "a model is one of the server's");
  return **found;
}

// ---- Use ------------------------------------------------------------------------------------

std::shared_ptr<LoadedModel> Models::use(ServedModel& model, const Client& client,
                                         Clock::time_point until) {
  return use(model, client, until, options_.keep_alive);
}

std::shared_ptr<LoadedModel> Models::use(ServedModel& model, const Client& client,
                                         Clock::time_point until, const KeepAlive& keep_alive) {
  std::unique_lock lock(mutex_);
  Entry& entry = entry_of(model);
  if (!is_ready(entry)) await_loaded(lock, {entry, client, until});
  ++entry.uses;
  entry.keep_alive = keep_alive;
  return {entry.loaded.get(), [this, &entry](LoadedModel*) { end_use(entry); }};
}

void Models::end_use(Entry& entry) {
  const std::lock_guard guard(mutex_);
  --entry.uses;
  entry.last_used = Clock::now();
  report_change();
}

// ---- Waiting --------------------------------------------------------------------------------

void Models::await_loaded(std::unique_lock<std::mutex>& lock, const Wanted& wanted) {
  Entry& entry = wanted.entry;
  const Counted counted(entry.n_waiting);
  while (!is_ready(entry)) {
    if (is_loading_) {
      await_change(lock, wanted);
    } else {
      load(lock, wanted);
    }
  }
  // Others may have waited for the same model.
  if (wanted.client.has_gone()) throw_gone();
}

void Models::await_change(std::unique_lock<std::mutex>& lock, const Wanted& wanted) {
  const Event event;
  waiting_.push_back(&event);
  lock.unlock();
  const Client::Wake wake = wanted.client.wait(event.fd(), wanted.until);
  lock.lock();
  std::erase(waiting_, &event);
  if (wake == Client::Wake::kGone) throw_gone();
  if (wake == Client::Wake::kTimeout && Clock::now() >= wanted.until) throw_busy();
}

// mutex_ is held.
void Models::report_change() const {
  for (const Event* event : waiting_) event->set();
}

// ---- Loading and unloading ------------------------------------------------------------------

// The lock is not held while the weights are read. Others who want a model that is not loaded wait
// until it is done.
void Models::load(std::unique_lock<std::mutex>& lock, const Wanted& wanted) {
  Entry& entry = wanted.entry;
  is_loading_ = true;
  loading_for_ = &wanted;
  try {
    Session session(entry.model->shared_file(), options_.session, devices_, loading_messages());
    make_room(lock, session, wanted);
    lock.unlock();
    auto loaded = std::make_unique<LoadedModel>(*entry.model, std::move(session), options_.model);
    lock.lock();
    entry.loaded = std::move(loaded);
    entry.last_used = Clock::now();
  } catch (...) {
    if (!lock.owns_lock()) lock.lock();
    end_load();
    throw;
  }
  end_load();
}

void Models::end_load() {
  is_loading_ = false;
  loading_for_ = nullptr;
  report_change();
}

// As messages_, but a load whose clients have all gone ends with its next report of progress.
Messages Models::loading_messages() const {
  return {.note = messages_.note, .with_progress = [this](const auto& work) {
            messages_.with_progress([&](const Progress& progress) {
              work([&](std::string_view what, uint64_t done, uint64_t total) {
                if (progress) progress(what, done, total);
                check_wanted();
              });
            });
          }};
}

// Of the thread that loads. A client that waits besides leaves by itself when it has gone.
void Models::check_wanted() const {
  const std::lock_guard guard(mutex_);
  if (loading_for_ == nullptr || loading_for_->entry.n_waiting > 1) return;
  if (loading_for_->client.has_gone()) throw_gone();
}

// Unloads models until the session's has room, or is alone.
void Models::make_room(std::unique_lock<std::mutex>& lock, const Session& session,
                       const Wanted& wanted) {
  while (Entry* const oldest = least_recently_used()) {
    const auto n_loaded =
        std::ranges::count_if(entries_, [](const auto& entry) { return entry->loaded != nullptr; });
    const bool may_be_more = options_.max_loaded == 0 || n_loaded < options_.max_loaded;
    if (may_be_more && has_room_for_sequences(session, options_.model.sequences)) return;
    await_unused(lock, *oldest, wanted);
    unload(lock, *oldest);
  }
}

// Nobody begins to use it meanwhile.
void Models::await_unused(std::unique_lock<std::mutex>& lock, Entry& entry, const Wanted& wanted) {
  entry.is_leaving = true;
  try {
    while (entry.uses > 0) await_change(lock, wanted);
  } catch (...) {
    entry.is_leaving = false;
    throw;
  }
}

// One that nobody uses, where there is one. Null where none is loaded.
Models::Entry* Models::least_recently_used() const {
  Entry* oldest = nullptr;
  for (const auto& entry : entries_) {
    if (!entry->loaded) continue;
    const auto rank = [](const Entry& one) { return std::pair(one.uses > 0, one.last_used); };
    if (oldest == nullptr || rank(*entry) < rank(*oldest)) oldest = entry.get();
  }
  return oldest;
}

// Nobody uses it. The lock is not held while memory is given back. The engine's counts are always
// there: counters of /metrics never fall.
void Models::unload(std::unique_lock<std::mutex>& lock, Entry& entry) {
  entry.is_leaving = true;
  lock.unlock();
  entry.loaded->engine().stop();
  lock.lock();
  entry.past.add_counts(entry.loaded->engine().state());
  std::unique_ptr<LoadedModel> gone = std::move(entry.loaded);
  lock.unlock();
  gone.reset();
  messages_.note("unloaded " + entry.model->name());
  lock.lock();
  entry.is_leaving = false;
}

void Models::expire(const ServedModel& model) {
  const std::lock_guard guard(mutex_);
  entry_of(model).keep_alive = std::chrono::milliseconds(0);
}

bool Models::is_ready(const Entry& entry) { return entry.loaded && !entry.is_leaving; }

bool Models::is_expired(const Entry& entry) {
  if (!entry.loaded || entry.uses > 0) return false;
  if (entry.is_replaced) return true;
  return entry.keep_alive && Clock::now() >= entry.last_used + *entry.keep_alive;
}

void Models::unload_expired() {
  std::unique_lock lock(mutex_);
  if (is_loading_) return;
  is_loading_ = true;
  // Models may be added while one is unloaded: each is looked for anew.
  for (;;) {
    const auto expired =
        std::ranges::find_if(entries_, [](const auto& entry) { return is_expired(*entry); });
    if (expired == entries_.end()) break;
    unload(lock, **expired);
  }
  end_load();
}

// ---- What is there --------------------------------------------------------------------------

Models::Status Models::status_of(const Entry& entry) const {
  Status status;
  status.model = entry.model.get();
  if (entry.loaded) {
    const BackendInfo& info = entry.loaded->info();
    status.is_loaded = true;
    status.is_gpu = info.is_gpu;
    status.sequences = entry.loaded->engine().sequences();
    status.state = entry.loaded->engine().state();
    for (const EngineStatus& device : status.state.devices) {
      status.device += (status.device.empty() ? "" : ", ") + device.device;
    }
    if (entry.keep_alive) {
      status.expires_at = (entry.uses > 0 ? Clock::now() : entry.last_used) + *entry.keep_alive;
    }
  }
  status.state.add_counts(entry.past);
  return status;
}

// With what older ones of the same name have counted, whose answers may not have ended yet.
Models::Status Models::whole_status_of(const Entry& entry) const {
  Status status = status_of(entry);
  for (const auto& other : entries_) {
    if (!other->is_replaced || other.get() == &entry) continue;
    if (other->model->name() == entry.model->name()) {
      status.state.add_counts(status_of(*other).state);
    }
  }
  return status;
}

std::vector<Models::Status> Models::status() const {
  const std::lock_guard guard(mutex_);
  std::vector<Status> all;
  for (const auto& entry : entries_) {
    if (!entry->is_replaced) all.push_back(whole_status_of(*entry));
  }
  return all;
}

Models::Status Models::status(const ServedModel& model) const {
  const std::lock_guard guard(mutex_);
  const Entry& entry = entry_of(model);
  return entry.is_replaced ? status_of(entry) : whole_status_of(entry);
}

int Models::live() const {
  const std::lock_guard guard(mutex_);
  int live = 0;
  for (const auto& entry : entries_) {
    if (entry->loaded) live += entry->loaded->engine().live();
  }
  return live;
}

std::string Models::failure() const {
  const std::lock_guard guard(mutex_);
  for (const auto& entry : entries_) {
    if (!entry->loaded) continue;
    if (std::string failure = entry->loaded->engine().failure(); !failure.empty()) return failure;
  }
  return "";
}

bool Models::has_failed_device() const {
  const std::lock_guard guard(mutex_);
  return std::ranges::any_of(entries_, [](const auto& entry) {
    const EngineState state = entry->loaded ? entry->loaded->engine().state() : EngineState();
    return entry->past.failed_devices + state.failed_devices > 0;
  });
}

}  // namespace edgellm::serve
