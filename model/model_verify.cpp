// ModelFile::verify_contents: one pass over the file, its sections divided among a few threads.
// Each block is hashed and, while it is still in the cache, its values are checked.

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <exception>
#include <system_error>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "base/files.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/number_format.h"
#include "base/text.h"
#include "model/layout.h"
#include "model/model_file_impl.h"

namespace edgellm {

using namespace model_io;

namespace {

// Small enough for a core's second-level cache, large enough to make calls cheap.
constexpr size_t kHashedBytes = size_t{256} << 10;

bool all_zero(const std::byte* data, size_t bytes) {
  return std::all_of(data, data + bytes, [](std::byte b) { return b == std::byte{0}; });
}

// Whether a code 10 is among these: a high bit set whose low bit is not.
bool has_invalid_code(const std::byte* data, size_t bytes) {
  constexpr uint64_t kLowBits = 0x5555555555555555;
  uint64_t invalid = 0;
  size_t i = 0;
  for (; i + 8 <= bytes; i += 8) {
    uint64_t word = 0;
    std::memcpy(&word, data + i, 8);
    invalid |= (word >> 1) & ~word & kLowBits;
  }
  for (; i < bytes; ++i) {
    const auto byte = std::to_integer<uint64_t>(data[i]);
    invalid |= (byte >> 1) & ~byte & kLowBits;
  }
  return invalid != 0;
}

// An exponent of all ones is infinity or NaN, in each of the formats.
template <typename Word>
bool holds_finite(const std::byte* data, size_t bytes, Word exponent) {
  bool finite = true;
  for (size_t i = 0; i < bytes; i += sizeof(Word)) {
    Word word = 0;
    std::memcpy(&word, data + i, sizeof(Word));
    finite &= (word & exponent) != exponent;
  }
  return finite;
}

bool holds_finite(DType dtype, const std::byte* data, size_t bytes) {
  switch (dtype) {
    case DType::kF32:
      return holds_finite<uint32_t>(data, bytes, 0x7F800000);
    case DType::kF16:
      return holds_finite<uint16_t>(data, bytes, 0x7C00);
    case DType::kBF16:
      return holds_finite<uint16_t>(data, bytes, 0x7F80);
    case DType::kT2:
    case DType::kI8:
    case DType::kU8:
      return true;
  }
  return true;
}

// A scale is a magnitude; its sign bit is the last bit of each value.
bool any_negative(DType dtype, const std::byte* data, size_t bytes) {
  const size_t step = dtype == DType::kF32 ? 4 : 2;
  for (size_t i = step - 1; i < bytes; i += step) {
    if ((data[i] & std::byte{0x80}) != std::byte{0}) return true;
  }
  return false;
}

// A row that does not fill its last byte ends with zero codes.
bool row_padding_is_zero(const Section& section, const std::byte* data) {
  const auto rest = static_cast<unsigned>(section.shape[1] % 4);
  if (rest == 0) return true;
  const size_t row_bytes =
      static_cast<size_t>(section.bytes) / static_cast<size_t>(section.shape[0]);
  const auto mask = static_cast<std::byte>(0xFF << (2 * rest));
  for (size_t end = row_bytes; end <= section.bytes; end += row_bytes) {
    if ((data[end - 1] & mask) != std::byte{0}) return false;
  }
  return true;
}

class Verifier {
 public:
  Verifier(const OpenedModel& impl, const Progress& progress) : impl_(impl), progress_(progress) {}

  // Throws what is wrong with the first faulty section, however many threads there were.
  void run() {
    for (const Section& section : impl_.metadata.sections) order_.push_back(&section);
    std::sort(order_.begin(), order_.end(),
              [](const Section* a, const Section* b) { return a->offset < b->offset; });
    faults_.resize(order_.size());
    {
      std::vector<std::jthread> helpers;
      const size_t threads =
          std::min<size_t>({kThreads, std::thread::hardware_concurrency(), order_.size()});
      try {
        for (size_t t = 1; t < threads; ++t) {
          helpers.emplace_back([this] { check_sections(/*reports=*/false); });
        }
      } catch (const std::system_error&) {
        // The system gives no more threads (ulimit -u): those that are there do all of it.
      }
      check_sections(/*reports=*/true);
    }
    for (const std::exception_ptr& fault : faults_) {
      if (fault) std::rethrow_exception(fault);
    }
  }

 private:
  // One thread reads mapped pages at 3 to 5 GB/s; more than a few of them meet the memory's limit.
  static constexpr size_t kThreads = 4;

  // Takes sections in the file's order until there are none, or one was faulty. Those before a
  // faulty one have all been taken by then, and are checked to their end.
  void check_sections(bool reports) {
    while (!failed_) {
      const size_t i = next_++;
      if (i >= order_.size()) return;
      try {
        check_padding_before(i);
        check(*order_[i], reports);
      } catch (...) {
        faults_[i] = std::current_exception();
        failed_ = true;
      }
    }
  }

  void check_padding_before(size_t i) const {
    const uint64_t end = i == 0 ? impl_.metadata_end : order_[i - 1]->offset + order_[i - 1]->bytes;
    const Section& section = *order_[i];
    if (!all_zero(impl_.mapping.data() + end, static_cast<size_t>(section.offset - end))) {
      fail_file(impl_.path, "is damaged: the padding before section '" + printable(section.name) +
                                "' is not zero");
    }
  }

  // `reports`: progress, which only the calling thread may do.
  void check(const Section& section, bool reports) {
    const std::byte* data = impl_.mapping.data() + section.offset;
    Hasher hasher;
    const char* fault = nullptr;
    for (uint64_t at = 0; at < section.bytes; at += kHashedBytes) {
      const auto bytes = static_cast<size_t>(std::min<uint64_t>(kHashedBytes, section.bytes - at));
      hasher.update(data + at, bytes);
      if (section.dtype == DType::kT2 && has_invalid_code(data + at, bytes)) {
        fault = "holds the code 10, which is no ternary value";
      }
      if (!holds_finite(section.dtype, data + at, bytes))
        fault = "holds a value that is not finite";
      const uint64_t done = done_ += bytes;
      // Ten megabytes between reports: often enough for an eye, too rare to cost anything.
      if (reports && progress_ && at % (40 * kHashedBytes) == 0) {
        progress_("verifying " + printable(section.name), done, impl_.mapping.bytes());
      }
    }
    // The hash first: where it differs, the values are damaged and not wrongly made.
    if (hasher.digest() != section.xxh3) {
      fail_file(impl_.path, "is damaged: the hash of section '" + printable(section.name) +
                                "' is " + hex64(hasher.digest()) + ", expected " +
                                hex64(section.xxh3) + "; copy or convert it again");
    }
    if (fault == nullptr && section.dtype == DType::kT2 && !row_padding_is_zero(section, data)) {
      fault = "has row padding that is not zero";
    }
    if (fault == nullptr && section.name.ends_with(".scale") &&
        (section.dtype == DType::kF32 || section.dtype == DType::kF16) &&
        any_negative(section.dtype, data, static_cast<size_t>(section.bytes))) {
      fault = "holds a negative scale";
    }
    if (fault != nullptr) {
      fail_in_file(impl_.path, "section '" + printable(section.name) + "' " + fault +
                                   ": the program that made this file is wrong; convert it again");
    }
  }

  const OpenedModel& impl_;
  const Progress& progress_;
  std::vector<const Section*> order_;
  std::vector<std::exception_ptr> faults_;  // by place in order_
  std::atomic<size_t> next_{0};
  std::atomic<uint64_t> done_{0};  // bytes
  std::atomic<bool> failed_{false};
};

}  // namespace

void ModelFile::verify_contents(const Progress& progress) const {
  const int64_t start_ns = now_ns();
  Verifier(*impl_, progress).run();
  if (log_enabled(LogLevel::kDebug)) {
    log(LogLevel::kDebug, "checked " + human_bytes(impl_->mapping.bytes()) + " of " + impl_->path +
                              " in " + human_ms(now_ns() - start_ns));
  }
  if (progress) progress("verified", impl_->mapping.bytes(), impl_->mapping.bytes());
}

}  // namespace edgellm
