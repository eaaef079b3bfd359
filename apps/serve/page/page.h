// The page at `/`: a chat in the browser, and a live view of the engine. One file, page.html, that
// loads nothing.
#pragma once

#include <string_view>

namespace edgellm::serve {

// The bytes of page.html, which the build puts into the program.
extern const std::string_view kPage;

}  // namespace edgellm::serve
