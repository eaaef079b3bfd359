#include "base/linux.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

namespace edgellm {

int open_event() { return eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK); }

int open_socket(int family, int type, int protocol) {
  return socket(family, type | SOCK_CLOEXEC | SOCK_NONBLOCK, protocol);
}

bool open_pipe(std::array<int, 2>& ends) { return pipe2(ends.data(), O_CLOEXEC | O_NONBLOCK) == 0; }

short peer_ended() { return POLLRDHUP; }

}  // namespace edgellm
