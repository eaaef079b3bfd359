// Downloads a model of the Hugging Face Hub and converts it into the model folder.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "apps/hub/download.h"
#include "base/progress.h"

namespace edgellm {

struct PullRequest {
  std::string model;  // as hub::parse_reference() reads it
  std::string file;   // GGUF; empty: the Hugging Face folder
  std::string name;   // in the model folder; empty: one made of the others
  std::vector<std::string> ignore_keys;
  int retries = 5;
  bool keep = false;  // the download, after the conversion
};

// Whom a pull tells how it goes. What a callback throws passes through, and the same request later
// resumes the download.
struct PullEvents {
  std::function<void(std::string_view message)> note;
  // Some times a second.
  std::function<void(const hub::DownloadState&)> on_download;
  Progress on_conversion;
};

struct PulledModel {
  std::string name;  // what find_model() takes
  std::string path;
  bool was_there = false;  // and up to date: nothing was done
};

// Throws Error: kUsage for what is asked, kPeerUnavailable for the network, the others of a
// conversion.
PulledModel pull_model(const PullRequest& request, const PullEvents& events);

}  // namespace edgellm
