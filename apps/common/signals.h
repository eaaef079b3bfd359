// Ctrl-C and its relatives, turned into something the program can ask about.
//
// SIGINT, SIGTERM and SIGHUP are remembered. Long work polls for them and ends in good order: the
// current token is finished, temporary files are removed. A second signal ends the process at once,
// except for SIGHUP, because a terminal that closes sends several. A SIGHUP that was ignored before
// (nohup) stays ignored. SIGPIPE and SIGXFSZ are ignored: a closed pipe is seen as EPIPE, a file
// beyond `ulimit -f` as EFBIG where it is written to.
//
// SIGBUS means that a mapped model file has become shorter: a page that was there when the file was
// opened is gone, and nothing can be read in its place. That ends the process with one line and
// exit code 3.
#pragma once

namespace edgellm {

// Thrown by throw_if_interrupted() and caught in main, which exits with 128 + signal.
struct Interrupted {
  int signal;
};

// `json`: the reader of standard output expects the error there as well.
void install_signal_handlers(bool json);

// The first of those signals once one has come, else 0.
int received_signal();

// From here on SIGINT ends an answer and not the program. take_interrupt() clears it, a second one
// changes nothing, and a signal of another kind takes its place.
void let_interrupt_end_answers();

// True, once, where the signal that came is SIGINT.
bool take_interrupt();

void throw_if_interrupted();

// Returns when something can be read from `fd` (its end and errors count), or when one of the
// signals above has come. A bare read() would miss a signal that came a moment before the call, or
// to another thread.
void wait_for_input(int fd);

// The same, then throws where a signal came. Does not wait where `may_wait` is false.
void await_input(int fd, bool may_wait = true);

}  // namespace edgellm
