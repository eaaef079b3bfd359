// System calls that only Linux has, for the layers above the kernels (theirs are in
// kernels/cpu/machine.h). Where another system needs another way, it belongs here.
#pragma once

#include <array>

namespace edgellm {

// These return descriptors that programs we start do not inherit, and calls on which never block.
// On failure they return -1, or false, with errno.
int open_event();  // an eventfd: a counter of 8 bytes, which can be read while it is not 0
int open_socket(int family, int type, int protocol);
bool open_pipe(std::array<int, 2>& ends);  // the end to read, then the one to write

// The event of poll() that says that the peer of a socket sends no more, though there may be bytes
// left to read.
short peer_ended();

}  // namespace edgellm
