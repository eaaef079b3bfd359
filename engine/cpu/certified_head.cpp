#include "engine/cpu/certified_head.h"

#include <new>
#include <string>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/number_format.h"
#include "kernels/cpu/cpu.h"

namespace edgellm {

namespace {
constexpr std::align_val_t kCacheLine{64};
}

void LazyCertifiedHead::Free::operator()(std::byte* p) const { ::operator delete(p, kCacheLine); }

const CertifiedHead* LazyCertifiedHead::next_step(int rows, cpu::Pool& pool) {
  if (!wanted_) return nullptr;
  if (built()) return &head_;
  rows_ += rows;
  if (rows_ <= kRowsBefore) return nullptr;
  const int64_t start_ns = now_ns();
  const size_t bytes = codes_bytes() + bounds_bytes();
  memory_.reset(static_cast<std::byte*>(::operator new(bytes, kCacheLine, std::nothrow)));
  if (memory_ == nullptr) {
    throw Error(ExitCode::kRuntime, "no memory for the 6-bit copy of the head, " +
                                        std::to_string(bytes >> 20) +
                                        " MiB; --full-head does without it");
  }
  uint8_t* codes = reinterpret_cast<uint8_t*>(memory_.get());
  CertifiedRow* row_bounds = reinterpret_cast<CertifiedRow*>(memory_.get() + codes_bytes());
  cpu::build_certified_head(w_, codes, row_bounds, pool);
  head_ = {codes, row_bounds, w_.rows, w_.cols};
  if (log_enabled(LogLevel::kDebug)) {
    log(LogLevel::kDebug, "built the certified head, " + human_bytes(bytes) + ", in " +
                              human_ms(now_ns() - start_ns));
  }
  return &head_;
}

}  // namespace edgellm
