// How an exit code is called in JSON.
#pragma once

#include "base/error.h"

namespace edgellm {

// "usage", "model_file", ...
const char* exit_code_name(ExitCode code);

}  // namespace edgellm
