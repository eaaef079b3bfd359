#include "apps/compare/clients/event_reader.h"

namespace edgellm::peers {

bool EventReader::push(std::string_view line) {
  if (complete_) {
    data_.clear();
    complete_ = false;
  }
  if (line.empty()) {
    complete_ = true;
    return !data_.empty();
  }
  constexpr std::string_view kField = "data:";
  if (!line.starts_with(kField)) return false;
  line.remove_prefix(kField.size());
  if (line.starts_with(' ')) line.remove_prefix(1);
  if (!data_.empty()) data_ += '\n';
  data_ += line;
  return false;
}

}  // namespace edgellm::peers
