// What writes the program's messages to stderr: a sink for base/log.h, made of spdlog.
//
// A note, a warning or an error is "edgellm: MESSAGE", always one line:
// control characters become \xNN. Lines of the levels debug and trace, which are off by default,
// begin with time and level instead: "2026-01-31 12:34:56.789 [debug] MESSAGE".
//
// Every line is one write to stderr, in order with what others write there. No escape bytes.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace edgellm {

// The level is info, or what the environment variable EDGELLM_LOG names. Throws Error (kUsage) for
// a name that is none; messages are written by then.
void install_log_sink();

std::vector<std::string> log_level_names();  // "trace" to "off"

// Messages of this level and above are written. Throws Error (kUsage), whose text begins with
// `source`, for a name that is none.
void set_log_level(std::string_view name, const std::string& source = "--log-level");

}  // namespace edgellm
