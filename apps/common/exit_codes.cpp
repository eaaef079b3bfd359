#include "apps/common/exit_codes.h"

namespace edgellm {

const char* exit_code_name(ExitCode code) {
  switch (code) {
    case ExitCode::kSuccess:
    case ExitCode::kRuntime:
      break;
    case ExitCode::kUsage:
      return "usage";
    case ExitCode::kModelFile:
      return "model_file";
    case ExitCode::kUnsupported:
      return "unsupported";
    case ExitCode::kDevice:
      return "device";
    case ExitCode::kPromptDoesNotFit:
      return "prompt_does_not_fit";
    case ExitCode::kBatchFailed:
      return "batch_failed";
    case ExitCode::kVerification:
      return "verification";
    case ExitCode::kPeerUnavailable:
      return "peer_unavailable";
  }
  return "runtime";
}

}  // namespace edgellm
