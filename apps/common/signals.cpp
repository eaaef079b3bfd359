#include "apps/common/signals.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <string_view>

#include "base/error.h"
#include "base/linux.h"

namespace edgellm {
namespace {

// Without a lock, so that a handler may use it. Other threads read it.
std::atomic<int> g_signal = 0;
static_assert(std::atomic<int>::is_always_lock_free);

volatile std::sig_atomic_t g_interrupt_ends_answers = 0;

// A pipe that holds a byte once a signal has come: {read end, write end}.
std::array<int, 2> g_wake = {-1, -1};

void remember(int signal) {
  const int error = errno;
  (void)!write(g_wake[1], "", 1);
  errno = error;
  if (g_signal == 0 || (g_interrupt_ends_answers != 0 && g_signal == SIGINT)) {
    g_signal = signal;
  } else if (signal != SIGHUP && !(g_interrupt_ends_answers != 0 && signal == SIGINT)) {
    _exit(128 + signal);
  }
}

// The message as a literal: a signal handler may neither allocate nor format.
#define EDGELLM_FILE_SHRANK                                                                  \
  "the model file became shorter while it was in use (replaced in place, truncated, or its " \
  "disk failed); copy it again, then type: edgellm verify FILE"
constexpr std::string_view kShrankLine = "edgellm: " EDGELLM_FILE_SHRANK "\n";
constexpr std::string_view kShrankJson =
    "{\"error\":{\"code\":\"model_file\",\"exit_code\":3,\"message\":\"" EDGELLM_FILE_SHRANK
    "\"}}\n";
#undef EDGELLM_FILE_SHRANK

volatile std::sig_atomic_t g_json = 0;

void end_by_lost_page(int, siginfo_t* info, void*) {
  // This is not about a page of a file. With the default action the fault comes again and ends the
  // process.
  if (info->si_code != BUS_ADRERR) {
    std::signal(SIGBUS, SIG_DFL);
    return;
  }
  static std::atomic_flag is_written;
  while (is_written.test_and_set()) pause();  // another thread is about to end the process
  (void)!write(STDERR_FILENO, kShrankLine.data(), kShrankLine.size());
  if (g_json != 0) (void)!write(STDOUT_FILENO, kShrankJson.data(), kShrankJson.size());
  _exit(static_cast<int>(ExitCode::kModelFile));
}

}  // namespace

void install_signal_handlers(bool json) {
  // Without it (no descriptors left) a read() may miss a signal that comes just before it.
  if (g_wake[0] < 0 && !open_pipe(g_wake)) g_wake = {-1, -1};
  struct sigaction action = {};
  action.sa_handler = remember;
  // No SA_RESTART: a read() that waits for standard input must return.
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  struct sigaction inherited = {};
  sigaction(SIGHUP, nullptr, &inherited);
  if (inherited.sa_handler != SIG_IGN) sigaction(SIGHUP, &action, nullptr);
  g_json = json ? 1 : 0;
  struct sigaction lost_page = {};
  lost_page.sa_sigaction = end_by_lost_page;
  lost_page.sa_flags = SA_SIGINFO;
  sigemptyset(&lost_page.sa_mask);
  sigaction(SIGBUS, &lost_page, nullptr);
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
}

int received_signal() { return g_signal; }

void let_interrupt_end_answers() { g_interrupt_ends_answers = 1; }

bool take_interrupt() {
  if (g_signal != SIGINT) return false;
  g_signal = 0;
  std::array<char, 16> bytes;
  while (read(g_wake[0], bytes.data(), bytes.size()) > 0) {
  }
  return true;
}

void throw_if_interrupted() {
  if (g_signal != 0) throw Interrupted{g_signal};
}

void wait_for_input(int fd) {
  // poll() leaves out what has a negative descriptor.
  std::array<pollfd, 2> sources = {pollfd{.fd = fd, .events = POLLIN, .revents = 0},
                                   pollfd{.fd = g_wake[0], .events = POLLIN, .revents = 0}};
  while (g_signal == 0 && poll(sources.data(), sources.size(), -1) < 0 && errno == EINTR) {
  }
}

void await_input(int fd, bool may_wait) {
  if (may_wait) wait_for_input(fd);
  throw_if_interrupted();
}

}  // namespace edgellm
