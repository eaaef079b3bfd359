#include "apps/bench/read_bandwidth.h"

#include <algorithm>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "apps/common/statistics.h"
#include "apps/session/machine.h"
#include "base/clock.h"
#include "base/error.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/pool.h"
#include "kernels/cpu/primitives.h"

namespace edgellm::bench {
namespace {

constexpr int64_t kMeasuredNs = 1'000'000'000;
constexpr size_t kBlockWords = size_t{1} << 16;  // 512 kB, which a thread takes at a time

// Four sums, so that no addition waits for the one before it.
uint64_t sum_words(const uint64_t* words, size_t n) {
  uint64_t a = 0, b = 0, c = 0, d = 0;
  for (size_t i = 0; i + 32 <= n; i += 32) {
    for (size_t k = 0; k < 8; ++k) {
      a += words[i + k];
      b += words[i + 8 + k];
      c += words[i + 16 + k];
      d += words[i + 24 + k];
    }
  }
  return a + b + c + d;
}

size_t buffer_bytes() {
  const Machine machine = read_machine();
  size_t bytes = size_t{512} << 20;
  if (machine.last_level_cache_bytes) {
    bytes = std::max<size_t>(bytes, 4 * *machine.last_level_cache_bytes);
  }
  if (machine.memory_bytes) bytes = std::min<size_t>(bytes, *machine.memory_bytes / 4);
  constexpr size_t kBlockBytes = kBlockWords * sizeof(uint64_t);
  return std::max(bytes / kBlockBytes, size_t{1}) * kBlockBytes;
}

}  // namespace

ReadBandwidth cpu_read_bandwidth(int threads, const std::function<void()>& poll) {
  ReadBandwidth result;
  result.threads = threads;
  result.buffer_bytes = buffer_bytes();
  const size_t n_words = result.buffer_bytes / sizeof(uint64_t);
  const std::unique_ptr<uint64_t[]> words(new (std::nothrow) uint64_t[n_words]);
  if (words == nullptr) {
    throw Error(ExitCode::kRuntime,
                "no memory for the " + std::to_string(result.buffer_bytes >> 20) +
                    " MiB that measuring the memory's speed takes; end other programs");
  }
  cpu::Pool pool(threads, cpu::primitives());
  const auto blocks = static_cast<int>(n_words / kBlockWords);
  // The threads write it, so that on a NUMA machine it lies near its readers.
  pool.for_each(blocks, 1, [&](int begin, int end, int) {
    std::fill(&words[static_cast<size_t>(begin) * kBlockWords],
              &words[static_cast<size_t>(end) * kBlockWords - 1] + 1, uint64_t{1});
  });
  std::vector<uint64_t> sums(static_cast<size_t>(threads));
  std::vector<double> rates;
  for (const int64_t begin = now_ns(); rates.size() < 5 || now_ns() - begin < kMeasuredNs;) {
    poll();
    std::fill(sums.begin(), sums.end(), 0);
    const int64_t start = now_ns();
    pool.for_each(blocks, 1, [&](int first, int last, int thread) {
      sums[static_cast<size_t>(thread)] +=
          sum_words(&words[static_cast<size_t>(first) * kBlockWords],
                    static_cast<size_t>(last - first) * kBlockWords);
    });
    const int64_t ns = now_ns() - start;
    uint64_t total = 0;
    for (const uint64_t sum : sums) total += sum;
    require(total == n_words, "every word was read once");
    rates.push_back(static_cast<double>(result.buffer_bytes) / static_cast<double>(ns));
  }
  const Summary summary = summarise(rates);
  result.gb_s = summary.max;
  result.median_gb_s = summary.median;
  result.passes = static_cast<int>(summary.n);
  return result;
}

nlohmann::ordered_json to_json(const ReadBandwidth& bandwidth) {
  return {{"gb_s", bandwidth.gb_s},
          {"median_gb_s", bandwidth.median_gb_s},
          {"passes", bandwidth.passes},
          {"buffer_bytes", bandwidth.buffer_bytes},
          {"threads", bandwidth.threads}};
}

}  // namespace edgellm::bench
