#include "apps/pull/transfer_progress.h"

#include <cmath>

#include "base/number_format.h"

namespace edgellm {
namespace {

constexpr int64_t kSecondNs = 1'000'000'000;
// Long enough that the figure is calm, short enough to follow a network that changes.
constexpr int64_t kWindowNs = 10 * kSecondNs;

}  // namespace

std::string TransferProgress::text(const hub::DownloadState& state, int64_t at_ns) {
  samples_.push_back({at_ns, state.fetched});
  while (samples_.front().at_ns < at_ns - kWindowNs) samples_.pop_front();
  const Sample& first = samples_.front();
  const int64_t time_ns = at_ns - first.at_ns;
  std::string text = human_bytes(state.done) + " of " + human_bytes(state.total);
  if (time_ns >= kSecondNs && state.fetched > first.fetched) {
    const double rate =
        static_cast<double>(state.fetched - first.fetched) * 1e9 / static_cast<double>(time_ns);
    const double left_s = std::ceil(static_cast<double>(state.total - state.done) / rate);
    text += ", " + human_bytes(static_cast<uint64_t>(rate)) + "/s, " +
            clock_text(static_cast<uint64_t>(left_s)) + " left";
  }
  if (!state.file.empty()) text += ", " + state.file;
  if (state.files_left > 1) text += " and " + std::to_string(state.files_left - 1) + " more";
  return text;
}

std::string clock_text(uint64_t seconds) {
  const auto two_digits = [](uint64_t n) { return (n < 10 ? "0" : "") + std::to_string(n); };
  const uint64_t hours = seconds / 3600;
  const uint64_t minutes = seconds / 60 % 60;
  return (hours > 0 ? std::to_string(hours) + ":" + two_digits(minutes) : std::to_string(minutes)) +
         ":" + two_digits(seconds % 60);
}

}  // namespace edgellm
