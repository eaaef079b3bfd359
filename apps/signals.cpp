#include "apps/signals.h"

#include <unistd.h>

#include <csignal>

namespace edgellm {
namespace {

volatile std::sig_atomic_t g_signal = 0;

volatile std::sig_atomic_t g_interrupt_ends_answers = 0;

void remember(int signal) {
  if (g_signal == 0 || (g_interrupt_ends_answers != 0 && g_signal == SIGINT)) {
    g_signal = signal;
  } else if (signal != SIGHUP && !(g_interrupt_ends_answers != 0 && signal == SIGINT)) {
    _exit(128 + signal);
  }
}

}  // namespace

void install_signal_handlers() {
  struct sigaction action = {};
  action.sa_handler = remember;
  // No SA_RESTART: a read() that waits for standard input must return.
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  struct sigaction inherited = {};
  sigaction(SIGHUP, nullptr, &inherited);
  if (inherited.sa_handler != SIG_IGN) sigaction(SIGHUP, &action, nullptr);
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
}

int received_signal() { return g_signal; }

void let_interrupt_end_answers() { g_interrupt_ends_answers = 1; }

bool take_interrupt() {
  if (g_signal != SIGINT) return false;
  g_signal = 0;
  return true;
}

void throw_if_interrupted() {
  if (g_signal != 0) throw Interrupted{g_signal};
}

}  // namespace edgellm
