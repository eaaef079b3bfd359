#include "engine/cpu/head_copy.h"

#include <new>
#include <string>

#include "base/error.h"
#include "kernels/cpu/cpu.h"

namespace edgellm {

namespace {
constexpr std::align_val_t kCacheLine{64};
}

void HeadCopy::Free::operator()(std::byte* p) const { ::operator delete(p, kCacheLine); }

const CompressedHead* HeadCopy::next_step(int rows, cpu::Pool& pool) {
  if (!wanted_) return nullptr;
  if (built()) return &copy_;
  rows_ += rows;
  if (rows_ <= kRowsBefore) return nullptr;
  const size_t bytes = codes_bytes() + bounds_bytes();
  memory_.reset(static_cast<std::byte*>(::operator new(bytes, kCacheLine, std::nothrow)));
  if (memory_ == nullptr) {
    throw Error(ExitCode::kRuntime, "no memory for the int8 copy of the head, " +
                                        std::to_string(bytes >> 20) +
                                        " MiB; --full-head does without it");
  }
  int8_t* codes = reinterpret_cast<int8_t*>(memory_.get());
  CompressedRow* row_bounds = reinterpret_cast<CompressedRow*>(memory_.get() + codes_bytes());
  cpu::compress_head(w_, codes, row_bounds, pool);
  copy_ = {codes, row_bounds, w_.rows, w_.cols};
  return &copy_;
}

}  // namespace edgellm
