#include "apps/batch/run.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <deque>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "apps/batch/defaults.h"
#include "apps/batch/ids.h"
#include "apps/batch/input.h"
#include "apps/batch/journal.h"
#include "apps/batch/record_writer.h"
#include "apps/batch/records.h"
#include "apps/batch/report.h"
#include "apps/common/signals.h"
#include "apps/common/terminal.h"
#include "apps/common/text_format.h"
#include "apps/common/version.h"
#include "apps/requests/many_sequences.h"
#include "apps/requests/prompts.h"
#include "apps/requests/sequence.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/output_file.h"
#include "base/text.h"
#include "engine/dispatcher.h"

namespace edgellm {
namespace {

// Writes the records of a stream in the order of their requests. Early records wait.
class InOrder {
 public:
  // Requests that are let in behind one that takes long: bounds the records that wait in memory.
  static constexpr size_t kWindow = 4096;

  void expect(int64_t line) { waiting_.push_back({line, {}}); }
  bool is_full() const { return waiting_.size() >= kWindow; }

  void add(int64_t line, std::string record, RecordWriter& writer) {
    const auto place =
        std::lower_bound(waiting_.begin(), waiting_.end(), line,
                         [](const Waiting& entry, int64_t wanted) { return entry.line < wanted; });
    require(place != waiting_.end() && place->line == line, "a record nobody waits for");
    place->record = std::move(record);
    for (; !waiting_.empty() && !waiting_.front().record.empty(); waiting_.pop_front()) {
      writer.append(waiting_.front().record);
    }
  }

 private:
  struct Waiting {
    int64_t line;
    std::string record;
  };
  std::deque<Waiting> waiting_;  // in the order of the lines
};

// The longest run of passes. One that ends costs a GPU a quarter of a millisecond; whoever has
// something for an engine ends it sooner.
constexpr int64_t kRunNs = 200'000'000;

// What the engines' threads hand to the thread that writes records.
template <class T>
class Mailbox {
 public:
  // Wakes the reader for the first item alone: whoever looks takes all that there are by then.
  void add(T item) {
    bool is_first = false;
    {
      const std::lock_guard guard(mutex_);
      is_first = items_.empty();
      items_.push_back(std::move(item));
    }
    if (is_first) changed_.notify_one();
  }

  bool has_any() const {
    const std::lock_guard guard(mutex_);
    return !items_.empty();
  }

  // What has come, in place of `items`; waits for something, a moment at most: signals are polled.
  // The writers get the memory of `items`, so that they need not allocate.
  void take(std::vector<T>& items) {
    items.clear();
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::milliseconds(20), [this] { return !items_.empty(); });
    items.swap(items_);
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<T> items_;  // guarded by mutex_
};

class BatchRun {
 public:
  BatchRun(const BatchFlags& flags, Session& session)
      : flags_(flags),
        session_(session),
        model_(session.model()),
        tokenizer_(session.tokenizer()),
        prompts_(model_, tokenizer_, flags.chat_options.parse_special),
        defaults_(batch_defaults(flags, model_)),
        shard_(flags.shard.value_or(Shard{})),
        input_(flags.input, flags.is_text) {
    if (flags.chat || flags.chat_options.system) prompts_.chat();
    manifest_.version = build_info().version;
    manifest_.model_path = model_.path();
    manifest_.model_id = model_.id();
    manifest_.input_path = flags.input;
    manifest_.shard = shard_;
    manifest_.flags = batch_answer_flags(flags, defaults_, session.engine_options().context);
  }

  int run() {
    open_output();
    if (!is_complete_) answer_all();
    return finish();
  }

 private:
  struct Live;
  // An answer that has ended.
  struct Ended {
    std::shared_ptr<Live> live;
    size_t choice = 0;
    SequenceResult result;
  };

  bool is_stream() const { return journal_ == std::nullopt; }

  // ---- What an earlier run left ---------------------------------------------------------------

  void open_output() {
    if (flags_.output == "-" || is_device_or_pipe(flags_.output)) {
      if (flags_.output == "-") {
        stream_fd_ = STDOUT_FILENO;
      } else {
        stream_ = FileDescriptor(open(flags_.output.c_str(), O_WRONLY | O_CLOEXEC));
        stream_fd_ = stream_.get();
        if (stream_fd_ < 0) fail_to_write(flags_.output, errno);
      }
      if (input_.is_file()) manifest_.input = input_.scan();
      return;
    }
    journal_.emplace(flags_.output);
    if (journal_->is_empty()) {
      if (input_.is_file()) manifest_.input = input_.scan();
      return;
    }
    if (!read_manifest_or_refuse()) {
      throw Error(ExitCode::kUsage, flags_.output + " exists, but is no output of edgellm batch (" +
                                        manifest_path(flags_.output) +
                                        " is missing); name another file, or remove it");
    }
    if (flags_.restart) {
      if (input_.is_file()) manifest_.input = input_.scan();
      journal_->clear();
      return;
    }
    resume_from(*before_);
  }

  bool read_manifest_or_refuse() {
    if (flags_.restart) return path_exists(manifest_path(flags_.output));
    before_ = read_manifest(flags_.output);
    return before_.has_value();
  }

  // `--seed random` draws once: a run that resumes keeps the seed.
  void keep_drawn_seed(const BatchManifest& before) {
    const nlohmann::json::json_pointer place("/sampling/seed");
    if (!before.flags.contains(place) || !before.flags[place].is_number_unsigned()) return;
    defaults_.sampling.seed = before.flags[place].get<uint64_t>();
    manifest_.flags[place] = defaults_.sampling.seed;
  }

  void resume_from(const BatchManifest& before) {
    if (flags_.sampling.random_seed) keep_drawn_seed(before);
    if (!input_.is_file()) {
      print_note(
          "reading standard input to its end, to find the requests that are answered already");
      input_.spool();
    }
    manifest_.input = input_.scan();
    const bool same_input = before.input && input_.continues(*before.input);
    std::vector<std::string> differences = manifest_differences(before, manifest_);
    if (before.input && !same_input) {
      differences.push_back("the input was " + before.input_path + " of " +
                            std::to_string(before.input->bytes) + " bytes, now " + input_.name() +
                            " does not begin with the same");
    }
    std::optional<std::unordered_map<Digest, int64_t, DigestHash>> wanted;
    if (!same_input) wanted = requests_of_input();
    if (!before.input && has_foreign_answers(*wanted)) {
      differences.emplace_back("the output has answers to requests that this input lacks");
    }
    if (!differences.empty() && !flags_.keep_answers) {
      throw Error(ExitCode::kUsage,
                  flags_.output + " is of another run: " + join(differences, "; ") +
                      ". Use --restart to start over, or --keep-answers to resume and keep what is "
                      "there, or name another output");
    }
    if (before.version != manifest_.version) {
      print_warning("the answers in the output are of edgellm " + before.version + ", this is " +
                    manifest_.version);
    }
    if (before.is_complete && before.failed == 0 && differences.empty() && same_input &&
        before.input == manifest_.input) {
      is_complete_ = true;
      manifest_ = before;
      for (int64_t i = 0; i < before.succeeded; ++i) report_.answered_before();
      return;
    }
    clean(wanted);
  }

  std::unordered_map<Digest, int64_t, DigestHash> requests_of_input() {
    std::unordered_map<Digest, int64_t, DigestHash> lines;
    BatchInput::Request request;
    while (input_.next(request) == LineReader::Status::kLine) {
      throw_if_interrupted();
      lines.emplace(request.digest, request.line);
    }
    input_.rewind();
    return lines;
  }

  bool has_foreign_answers(const std::unordered_map<Digest, int64_t, DigestHash>& wanted) {
    bool found = false;
    for_each_record(journal_->fd(), flags_.output,
                    [&](const std::optional<RecordInfo>& info, const auto&, const auto&) {
                      found =
                          found || (info && info->succeeded && !wanted.contains(info->head.digest));
                    });
    return found;
  }

  // What failed is tried again, so its record is dropped. Records that this input does not ask for
  // are dropped as well.
  void clean(const std::optional<std::unordered_map<Digest, int64_t, DigestHash>>& wanted) {
    const auto judge = [&](const RecordInfo& info) {
      if (!info.succeeded || !is_of_shard(info.head.custom_id)) return BatchJournal::kDrop;
      int64_t line = info.head.line;
      if (wanted) {
        const auto place = wanted->find(info.head.digest);
        if (place == wanted->end()) return BatchJournal::kDrop;
        line = place->second;
      }
      if (!done_.insert(info.head.digest).second) return BatchJournal::kDrop;
      return line == info.head.line ? BatchJournal::kKeep : line;
    };
    const BatchJournal::Cleaned cleaned = journal_->clean(judge);
    if (cleaned.damaged > 0) {
      print_warning(flags_.output + ": dropped " + std::to_string(cleaned.damaged) +
                    (cleaned.damaged == 1 ? " line that was" : " lines that were") +
                    " not whole; the requests are answered again");
    }
  }

  bool is_of_shard(const std::string& id) const {
    return shard_.count == 1 || shard_of(id, shard_.count) == shard_.index;
  }

  // ---- Answering ------------------------------------------------------------------------------

  void answer_all() {
    session_.check_contents();
    const std::vector<Dispatcher::Engine> engines =
        start_many_sequences(session_, flags_.sequences);
    if (journal_) {
      write_manifest(flags_.output, manifest_);
      journal_->keep();
    }
    writer_.emplace(is_stream() ? stream_fd_ : journal_->fd(), /*sync=*/!is_stream(),
                    flags_.output == "-" ? "standard output" : flags_.output);
    for (const Dispatcher::Engine& engine : engines) {
      n_sequences_ += static_cast<size_t>(engine.backend->info().sequences);
      devices_.push_back(engine.backend->info().device);
    }
    Dispatcher dispatcher(
        engines, {.max_batch_tokens = flags_.sequences.max_batch_tokens, .run_ns = kRunNs});
    // Shards have about the same number of requests. The exact number is known at the end.
    const int64_t n_total = manifest_.input ? manifest_.input->requests / shard_.count : 0;
    report_.begin(n_total, static_cast<int>(n_sequences_));
    while (!must_stop()) {
      const bool input_ended = admit(dispatcher);
      if (must_stop()) break;
      if (input_ended && n_live_ == 0) {
        has_ended_ = true;
        break;
      }
      take_ended(dispatcher);
    }
    if (!has_ended_ && received_signal() == SIGTERM) finish_active(dispatcher);
    writer_->flush();
    dispatcher.stop();
    report_.ended(dispatcher.status());
  }

  bool must_stop() const { return received_signal() != 0 || is_in_vain(); }

  // Nobody reads the answers, or the first failure was to be the end.
  bool is_in_vain() const {
    return writer_->reader_gone() || (flags_.strict && report_.n_failed() > 0);
  }

  // A cluster that takes a machine away says so some time before (docs/batch.md). What is being
  // answered would be lost.
  void finish_active(Dispatcher& dispatcher) {
    dispatcher.drop_waiting();
    if (dispatcher.live() == 0 || flags_.grace_s == 0) return;
    print_note("SIGTERM: finishing " + counted(static_cast<int64_t>(dispatcher.live()), "answer") +
               ", for " + std::to_string(flags_.grace_s) + " s at most; a second one ends at once");
    const int64_t until = now_ns() + int64_t{flags_.grace_s} * 1'000'000'000;
    while ((dispatcher.live() > 0 || ended_.has_any()) && !is_in_vain() && now_ns() < until) {
      take_ended(dispatcher);
    }
  }

  // Writes what has ended; waits a moment for something. Throws Error where no engine works any
  // more: what has not been answered is answered when the batch is resumed.
  void take_ended(Dispatcher& dispatcher) {
    ended_.take(taken_);
    for (Ended& one : taken_) {
      if (one.result.failure) throw_if_all_failed(dispatcher);
      end_choice(*one.live, one.choice, std::move(one.result));
    }
    throw_if_all_failed(dispatcher);
    report_.look(dispatcher, writer_->n_safe());
  }

  static void throw_if_all_failed(const Dispatcher& dispatcher) {
    if (const auto failure = dispatcher.failure()) throw Error(failure->code, failure->message);
  }

  // Submits requests until as many wait as can be active, so that no sequence waits for a line.
  // True at the input's end. Engines may be faster than lines are read: answers that have ended
  // must not pile up meanwhile.
  bool admit(Dispatcher& dispatcher) {
    BatchInput::Request request;
    while (!must_stop() && dispatcher.waiting() < n_sequences_ && n_live_ < 4 * n_sequences_ &&
           !(is_held_in_order() && in_order_.is_full())) {
      const bool is_idle = n_live_ == 0;
      const LineReader::Status status = input_.next(request, /*may_wait=*/is_idle);
      if (status == LineReader::Status::kNotYet) return false;
      if (status == LineReader::Status::kEnd) {
        input_.require_unchanged();
        return true;
      }
      take(request, dispatcher);
    }
    return false;
  }

  void take(const BatchInput::Request& request, Dispatcher& dispatcher) {
    if (!is_of_shard(request.id)) return;
    if (done_.contains(request.digest)) {
      report_.answered_before();
      return;
    }
    const RecordHead head{request.digest, request.id, request.line};
    if (is_held_in_order()) in_order_.expect(head.line);
    if (!request.problem.empty()) {
      return fail(head, {.code = request.is_duplicate ? "duplicate_id" : "invalid_request",
                         .message = request.problem});
    }
    try {
      submit(head, request, dispatcher);
    } catch (const Error& error) {
      fail(head, request_error(error.code(), about(head, error.what())));
    }
  }

  // The message with the line that it is about, once.
  static std::string about(const RecordHead& head, const std::string& message) {
    const std::string where = "line " + std::to_string(head.line);
    return message.starts_with(where) ? message : where + ": " + message;
  }

  void submit(const RecordHead& head, const BatchInput::Request& line, Dispatcher& dispatcher);
  void submit_choice(const std::shared_ptr<Live>& live, size_t choice, const AnswerRequest& wanted,
                     Dispatcher& dispatcher);
  void end_choice(Live& live, size_t choice, SequenceResult&& result);

  void fail(const RecordHead& head, const RequestError& error) {
    if (flags_.strict && report_.n_failed() == 0) {
      strict_end_ = error.message + " (--strict: the first failure ends the run)";
    }
    report_.failed(error);
    write(head, error_record(head, error));
  }

  void write(const RecordHead& head, std::string record) {
    if (is_held_in_order()) {
      in_order_.add(head.line, std::move(record), *writer_);
    } else {
      writer_->append(record);
    }
  }

  // A file is sorted when it is complete, so that finished records need not wait in memory.
  bool is_held_in_order() const { return flags_.ordered && is_stream(); }

  // ---- The end --------------------------------------------------------------------------------

  int finish() {
    if (journal_ && has_ended_) {
      manifest_.input = input_.read_so_far();
      manifest_.is_complete = true;
      manifest_.succeeded = report_.n_answered_before() + report_.n_answered();
      manifest_.failed = report_.n_failed();
    }
    if (journal_ && (has_ended_ || is_complete_)) {
      writer_.reset();
      if (flags_.ordered) journal_->sort();
      if (has_ended_) write_manifest(flags_.output, manifest_);
    }
    const bool reader_is_gone = writer_ && writer_->reader_gone();
    if (!strict_end_.empty()) print_error(strict_end_);
    if (!reader_is_gone) report_.print(is_stream() ? "" : flags_.output, strict_end_.empty());
    const int signal = has_ended_ ? 0 : received_signal();
    if (signal != 0 && journal_) print_note("interrupted; type the same command again to resume");
    if (!flags_.summary.empty()) write_summary(signal != 0);
    if (signal != 0) return 128 + signal;
    if (report_.n_failed() > 0) return static_cast<int>(ExitCode::kBatchFailed);
    return static_cast<int>(report_.has_failed_device() ? ExitCode::kDevice : ExitCode::kSuccess);
  }

  void write_summary(bool interrupted) const {
    nlohmann::ordered_json json = {{"schema", "edgellm.batch_summary/1"},
                                   {"version", build_info().version},
                                   {"model", {{"path", model_.path()}, {"id", hex64(model_.id())}}},
                                   {"input", flags_.input},
                                   {"output", flags_.output},
                                   {"shard", to_string(shard_)},
                                   {"complete", has_ended_ || is_complete_},
                                   {"interrupted", interrupted}};
    if (!devices_.empty()) json["device"] = join(devices_, ", ");
    json.update(report_.json());
    const std::string text =
        json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
    write_file(flags_.summary, text);
  }

  const BatchFlags& flags_;
  Session& session_;
  const ModelFile& model_;
  const Tokenizer* tokenizer_;
  RequestPrompts prompts_;
  BatchDefaults defaults_;
  const Shard shard_;
  BatchInput input_;
  BatchManifest manifest_;
  std::optional<BatchManifest> before_;
  std::optional<BatchJournal> journal_;  // of an output that is a file
  FileDescriptor stream_;                // of one that is a device or a pipe
  int stream_fd_ = -1;
  std::unordered_set<Digest, DigestHash> done_;  // answered by an earlier run
  bool is_complete_ = false;                     // by an earlier run
  std::string strict_end_;                       // the failure that ended the run, if one did
  bool has_ended_ = false;                       // every request of the input has its record
  size_t n_sequences_ = 0;                       // of all engines together
  std::vector<std::string> devices_;             // of the engines, once they have started
  std::optional<RecordWriter> writer_;
  InOrder in_order_;
  BatchReport report_;
  Mailbox<Ended> ended_;
  std::vector<Ended> taken_;  // of ended_, its memory is used again
  size_t n_live_ = 0;         // answers that are submitted and not taken
};

// A request that is being answered, once or `n` times. An engine's thread touches what belongs to
// its choice, until that has ended.
//
// An engine's thread makes the text only where a stop string may end it. Else the text is made
// when the answer has ended, by the thread that writes it: engines have better things to do.
struct BatchRun::Live {
  RecordHead head;
  RequestAnswer answer;
  std::vector<std::optional<AnswerText>> texts;  // of the choices; none without a tokenizer
  bool has_stop_strings = false;
  size_t n_unfinished = 0;
  bool has_failed = false;

  // False when a stop string has come.
  bool push(size_t choice, int32_t id) {
    if (!texts[choice]) return true;
    *answer.choices[choice].text += texts[choice]->push(id);
    return !texts[choice]->stopped();
  }
};

void BatchRun::submit(const RecordHead& head, const BatchInput::Request& line,
                      Dispatcher& dispatcher) {
  AnswerRequest wanted = line.json ? read_batch_request(*line.json, defaults_, line.where())
                                   : text_request(line.text, defaults_, line.where());
  const auto live = std::make_shared<Live>();
  live->head = head;
  live->answer.is_chat = wanted.is_chat;
  live->answer.with_token_ids = wanted.return_token_ids || tokenizer_ == nullptr;
  live->answer.with_logprobs = wanted.top_logprobs.has_value();
  live->answer.prompts = prompts_.ids(wanted);
  live->n_unfinished = static_cast<size_t>(wanted.n);
  live->answer.choices.resize(live->n_unfinished);
  live->texts.resize(live->n_unfinished);
  live->has_stop_strings = !wanted.stop.empty();
  if (!wanted.has_own_seed) wanted.sampling.seed = seed_of(head.custom_id, wanted.sampling.seed);
  for (size_t choice = 0; choice < live->texts.size(); ++choice) {
    submit_choice(live, choice, wanted, dispatcher);
  }
}

void BatchRun::submit_choice(const std::shared_ptr<Live>& live, size_t choice,
                             const AnswerRequest& wanted, Dispatcher& dispatcher) {
  const std::vector<int32_t>& prompt_ids = live->answer.prompts.front();
  AnswerChoice& to = live->answer.choices[choice];
  if (tokenizer_ != nullptr) {
    to.text.emplace();
    live->texts[choice].emplace(*tokenizer_, wanted, prompt_ids);
  }
  SequenceRequest request = sequence_request(wanted, prompt_ids, static_cast<int>(choice), model_);
  if (wanted.sampling.temperature > 0) to.seed = request.sampling.seed;
  if (wanted.top_logprobs) {
    request.on_logprobs = [this, &to](int32_t id, const TokenLogprobs& logprobs) {
      if (!is_stop_id(model_, id)) to.logprobs.push_back({id, logprobs});
    };
  }
  if (live->has_stop_strings) {
    request.on_token = [this, live, choice](int32_t id) {
      return is_stop_id(model_, id) || live->push(choice, id);
    };
  }
  request.on_end = [this, live, choice](SequenceResult&& result) {
    ended_.add({live, choice, std::move(result)});
  };
  ++n_live_;
  dispatcher.submit(std::move(request));
}

void BatchRun::end_choice(Live& live, size_t choice, SequenceResult&& result) {
  --n_live_;
  --live.n_unfinished;
  if (result.failure) {
    if (std::exchange(live.has_failed, true)) return;  // one record is enough
    return fail(live.head,
                request_error(result.failure->code, about(live.head, result.failure->message)));
  }
  AnswerChoice& to = live.answer.choices[choice];
  if (live.texts[choice]) {
    for (const int32_t id : result.token_ids) {
      if (!live.has_stop_strings && !is_stop_id(model_, id)) live.push(choice, id);
    }
    *to.text += live.texts[choice]->finish();
  }
  to.result = std::move(result);
  if (live.n_unfinished > 0 || live.has_failed) return;
  report_.answered(live.answer);
  write(live.head, answer_record(live.head, live.answer, model_, tokenizer_));
}

}  // namespace

int run_batch(const BatchFlags& flags) {
  check_answer(flags.answer);
  // A seed is of use in a greedy run as well: requests may name a temperature of their own.
  SamplingChoice without_seed = flags.sampling;
  without_seed.seed.reset();
  without_seed.random_seed = false;
  check_sampling(without_seed);
  Session session(flags.model, flags.engine);
  session.tokenizer();
  if (!flags.summary.empty() && !is_device_or_pipe(flags.summary)) require_writable(flags.summary);
  return BatchRun(flags, session).run();
}

}  // namespace edgellm
