// Files of a model, several at a time, into a folder.
//
// A file grows under the name NAME.HASH.part and gets its own name when its hash is right. What an
// interrupted download leaves is resumed by the next one: the hash in the name says of what
// contents the bytes are a part.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "apps/hub/hub.h"

namespace edgellm::hub {

struct DownloadState {
  uint64_t done = 0;  // bytes, those of an earlier download included
  uint64_t total = 0;
  uint64_t fetched = 0;  // bytes that came over the network
  size_t files_left = 0;
  std::string file;  // one of those that are on their way
};

// The name of the file in a folder. Throws Error for one that may not stand there.
std::string local_name(const Hub& hub, const HubFile& file);

// Calls `watch` some times a second from this thread; where it throws, all requests are ended and
// the exception goes on. Throws Error: kPeerUnavailable for the network, the server and contents
// with another hash, kRuntime for the disk.
void download(Hub& hub, const HubModel& model, const std::vector<HubFile>& files,
              const std::string& folder, const std::function<void(const DownloadState&)>& watch);

}  // namespace edgellm::hub
