// Two kinds of failure, used by every folder.
//
// The world is wrong (a file, a flag, memory, a driver): throw Error with the exit code that the
// program should end with. What ends the program is caught in apps/main.cpp and printed as one line
// that says what was wrong, what was expected and what to type next.
//
// We are wrong (a shape contract between our own functions): require(). Always on, except that
// inner loops do not call it.
#pragma once

#include <stdexcept>
#include <string>

namespace edgellm {

// Exit codes of the program. Scripts depend on the numbers: never reuse one.
enum class ExitCode : int {
  kSuccess = 0,
  kRuntime = 1,           // runtime failure: I/O, a non-finite value, an internal error
  kUsage = 2,             // wrong command line
  kModelFile = 3,         // model file missing, corrupt or unreadable
  kUnsupported = 4,       // recognised, but not supported
  kDevice = 5,            // no device memory, or no usable GPU where one was demanded
  kPromptDoesNotFit = 6,  // the prompt is longer than the context
  kBatchFailed = 7,       // some requests of a batch failed
  kVerification = 8,      // verification failed
  kPeerUnavailable = 9,   // the server to compare with is not there
};

class Error : public std::runtime_error {
 public:
  Error(ExitCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ExitCode code() const { return code_; }

 private:
  ExitCode code_;
};

// A broken promise between two of our own functions.
class ContractViolation : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

inline void require(bool condition, const char* what) {
  if (!condition) throw ContractViolation(what);
}

}  // namespace edgellm
