// TCP connections whose waits end with a signal.
#pragma once

#include <atomic>
#include <chrono>

#include "apps/common/address.h"
#include "base/files.h"

namespace edgellm::hub {

inline constexpr std::chrono::seconds kConnectTimeout{15};
// Without a byte: longer than a busy server takes, shorter than a person's patience.
inline constexpr std::chrono::seconds kReadTimeout{30};

// True once `event` of poll() has come. False after `at_most`, and soon after a signal or after
// `is_cancelled` has become true.
bool wait_for(int fd, short event, std::chrono::milliseconds at_most,
              const std::atomic<bool>& is_cancelled);

enum class ConnectFailure {
  kNone,
  kNobody,   // no such host, refused, no network
  kTimeout,  // or stopped
};
struct Connection {
  FileDescriptor fd;
  ConnectFailure failure = ConnectFailure::kNone;
};

// A socket that blocks, for TLS or none.
Connection connect_to(const Address& address, const std::atomic<bool>& is_cancelled);

}  // namespace edgellm::hub
