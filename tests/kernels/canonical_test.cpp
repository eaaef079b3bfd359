// The scalar pieces of the canonical arithmetic, and the vector copies of them, against things we
// did not write: libm, the compiler's _Float16.
#include "kernels/canonical.h"

#include <catch2/catch.hpp>
#include <cmath>

#include "kernels/cpu/isa.h"
#include "kernels/cpu/primitives.h"
#include "tests/support/random.h"

namespace edgellm {
namespace {

// Every 251st bit pattern: 17 million floats of both signs and all exponents.
constexpr uint32_t kStep = 251;

TEST_CASE("exp is within 2 ulp, never falls, and is exact at its edges") {
  REQUIRE(canonical_exp(0.0f) == 1.0f);
  REQUIRE(canonical_exp(-0.0f) == 1.0f);
  REQUIRE(std::isinf(canonical_exp(88.73f)));
  REQUIRE(std::isfinite(canonical_exp(88.72f)));
  REQUIRE(canonical_exp(-87.31f) == 0.0f);
  REQUIRE(canonical_exp(-87.3f) > 0.0f);
  REQUIRE(canonical_exp(-std::numeric_limits<float>::infinity()) == 0.0f);
  REQUIRE(std::isinf(canonical_exp(std::numeric_limits<float>::infinity())));
  REQUIRE(std::isnan(canonical_exp(std::numeric_limits<float>::quiet_NaN())));
  double worst = 0;
  float worst_x = 0;
  for (uint64_t bits = 0; bits < 0x100000000ull; bits += kStep) {
    const float x = bits_to_float(static_cast<uint32_t>(bits));
    if (!(x >= -87.3f && x <= 88.72f)) continue;
    const double exact = std::exp(static_cast<double>(x));
    const float rounded = static_cast<float>(exact);
    // Filters of sampling look for their border by powers, in the order of the logits.
    REQUIRE(canonical_exp(std::nextafter(x, -INFINITY)) <= canonical_exp(x));
    const double ulp =
        static_cast<double>(std::nextafter(rounded, INFINITY)) - static_cast<double>(rounded);
    const double error = std::fabs(static_cast<double>(canonical_exp(x)) - exact) / ulp;
    if (error > worst) {
      worst = error;
      worst_x = x;
    }
  }
  INFO("worst at " << worst_x);
  REQUIRE(worst <= 1.1);
}

TEST_CASE("every instruction set computes SwiGLU, and so exp, with the bits of canonical_exp") {
  constexpr size_t kBatch = 1 << 16;
  std::vector<float> g(kBatch);
  std::vector<float> u(kBatch, 1.0f);
  std::vector<float> out(kBatch);
  for (const cpu::Primitives* isa : cpu::usable_isas()) {
    uint64_t bits = 0;
    while (bits < 0x100000000ull) {
      size_t n = 0;
      for (; n < kBatch && bits < 0x100000000ull; bits += kStep, ++n) {
        g[n] = bits_to_float(static_cast<uint32_t>(bits));
      }
      isa->gate(GateActivation::kSilu, g.data(), u.data(), static_cast<int>(n), out.data());
      for (size_t i = 0; i < n; ++i) {
        const float expected = (g[i] / (1.0f + canonical_exp(-g[i]))) * 1.0f;
        const bool same = std::isnan(expected) ? std::isnan(out[i])
                                               : float_to_bits(expected) == float_to_bits(out[i]);
        if (!same) {
          INFO(isa->name << " at " << g[i] << ": " << out[i] << ", expected " << expected);
          REQUIRE(same);
        }
      }
    }
  }
}

#if defined(__aarch64__)
using Half = __fp16;  // GCC 12 knows no _Float16 in C++ for ARM
#else
using Half = _Float16;
#endif

TEST_CASE("half precision converts as the compiler's own does, clamped to 65504") {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    Half half;
    const uint16_t half_bits = static_cast<uint16_t>(bits);
    std::memcpy(&half, &half_bits, 2);
    const float expected = static_cast<float>(half);
    const float actual = from_half(half_bits);
    if (std::isnan(expected)) {
      REQUIRE(std::isnan(actual));
    } else {
      REQUIRE(float_to_bits(actual) == float_to_bits(expected));
    }
  }
  for (uint64_t bits = 0; bits < 0x100000000ull; bits += kStep) {
    const float value = bits_to_float(static_cast<uint32_t>(bits));
    if (std::isnan(value)) continue;
    const float clamped = std::fmin(std::fmax(value, -65504.0f), 65504.0f);
    const Half half = static_cast<Half>(clamped);
    uint16_t expected;
    std::memcpy(&expected, &half, 2);
    if (to_half(value) != expected) {
      INFO(value);
      REQUIRE(to_half(value) == expected);
    }
  }
}

}  // namespace
}  // namespace edgellm
