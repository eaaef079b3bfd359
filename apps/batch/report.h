// Batch progress: a line on a terminal, a note every half minute elsewhere, and the summary at the
// end.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "apps/batch/records.h"
#include "apps/common/latency_histogram.h"
#include "apps/common/terminal.h"
#include "apps/common/timings.h"
#include "engine/dispatcher.h"

namespace edgellm {

class BatchReport {
 public:
  // `n_total`: requests that are to be answered, 0 where that is not known; `sequences`: at a time.
  void begin(int64_t n_total, int sequences);

  void answered_before() { ++answered_before_; }
  // The request's answers, one or `n`: its first token is that of the earliest, its end that of the
  // last.
  void answered(const RequestAnswer& answer);
  void failed(const RequestError& error);
  void ended(const std::vector<EngineStatus>& engines);

  // Batch progress, from time to time. `n_safe`: records that are written for good.
  void look(const Dispatcher& dispatcher, int64_t n_safe);

  int64_t n_answered_before() const { return answered_before_; }
  int64_t n_answered() const { return answered_; }
  int64_t n_failed() const { return failed_; }
  // A device failed, and others took over.
  bool has_failed_device() const;

  // Lines for stderr, the object of --summary. `with_failure`: the first one's message as well.
  void print(const std::string& output_name, bool with_failure) const;
  nlohmann::ordered_json json() const;

 private:
  std::string state(const std::vector<EngineStatus>& engines, int64_t n_safe) const;
  SchedulerCounters counters() const;
  double busy(int64_t elapsed_ns) const;
  nlohmann::ordered_json devices_json(int64_t elapsed_ns) const;

  int64_t total_ = 0;
  int sequences_ = 0;
  int64_t began_at_ = now_ns();
  int64_t ended_at_ = 0;
  int64_t next_look_ = 0;
  int64_t next_note_ = 0;
  std::optional<ProgressLine> line_;  // while the requests are answered

  int64_t answered_before_ = 0;
  int64_t answered_ = 0;
  int64_t failed_ = 0;
  std::map<std::string, int64_t> failures_;  // by code
  std::string first_failure_;
  std::vector<int64_t> ttft_ns_, latency_ns_, queued_ns_;
  LatencyHistogram inter_token_ns_;
  std::vector<EngineStatus> engines_;  // at the end
};

}  // namespace edgellm
