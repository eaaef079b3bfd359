#include "apps/hub/socket.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <string>

#include "apps/common/signals.h"
#include "base/linux.h"

namespace edgellm::hub {
namespace {

// Connected, or a failure. The address is one of those that the host has.
Connection connect_to(const addrinfo& place, const std::atomic<bool>& is_cancelled) {
  FileDescriptor fd(open_socket(place.ai_family, place.ai_socktype, place.ai_protocol));
  if (fd.get() < 0) return {FileDescriptor(), ConnectFailure::kNobody};
  if (connect(fd.get(), place.ai_addr, place.ai_addrlen) != 0) {
    if (errno != EINPROGRESS) return {FileDescriptor(), ConnectFailure::kNobody};
    if (!wait_for(fd.get(), POLLOUT, kConnectTimeout, is_cancelled)) {
      return {FileDescriptor(), ConnectFailure::kTimeout};
    }
    int error = 0;
    socklen_t size = sizeof(error);
    getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &size);
    if (error != 0) return {FileDescriptor(), ConnectFailure::kNobody};
  }
  const int on = 1;
  setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  fcntl(fd.get(), F_SETFL, fcntl(fd.get(), F_GETFL) & ~O_NONBLOCK);
  return {std::move(fd), ConnectFailure::kNone};
}

}  // namespace

bool wait_for(int fd, short event, std::chrono::milliseconds at_most,
              const std::atomic<bool>& is_cancelled) {
  constexpr int kPollMs = 50;
  const auto deadline = std::chrono::steady_clock::now() + at_most;
  while (!is_cancelled && received_signal() == 0 && std::chrono::steady_clock::now() < deadline) {
    pollfd waiting = {.fd = fd, .events = event, .revents = 0};
    if (poll(&waiting, 1, kPollMs) > 0) return true;
  }
  return false;
}

Connection connect_to(const Address& address, const std::atomic<bool>& is_cancelled) {
  addrinfo hints = {};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const std::string port = std::to_string(address.port);
  if (getaddrinfo(address.host.c_str(), port.c_str(), &hints, &found) != 0) {
    return {FileDescriptor(), ConnectFailure::kNobody};
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> places(found, freeaddrinfo);
  Connection connection{FileDescriptor(), ConnectFailure::kNobody};
  for (const addrinfo* place = found; place != nullptr; place = place->ai_next) {
    connection = connect_to(*place, is_cancelled);
    if (connection.failure == ConnectFailure::kNone || is_cancelled || received_signal() != 0)
      break;
  }
  return connection;
}

}  // namespace edgellm::hub
