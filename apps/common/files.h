// Reading what the user names. A signal ends the wait. For writing see base/output_file.h.
#pragma once

#include <cstddef>
#include <string>

namespace edgellm {

// All bytes of a file or, for "-", of standard input. Throws Error (kUsage).
std::string read_input(const std::string& path);

// All bytes of standard input. Throws Interrupted when a signal ends the wait.
std::string read_stdin();

// The first bytes of a file, for telling formats of models apart; fewer where the file is short.
// Throws Error (kModelFile).
std::string read_head(const std::string& path, size_t n_bytes);

}  // namespace edgellm
