// Whether this build runs under a sanitizer: for tests whose other half cannot, and for limits on
// memory and time that would not hold.
#pragma once

namespace edgellm::test {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

}  // namespace edgellm::test
