#include "apps/compare/clients/event_reader.h"

namespace edgellm::peers {

bool EventReader::push(std::string_view line) {
  if (complete_) {
    data_.clear();
    is_too_long_ = false;
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
  if (data_.size() + line.size() > kMaxAnswerBytes) {
    is_too_long_ = true;
    return false;
  }
  if (!data_.empty()) data_ += '\n';
  data_ += line;
  return false;
}

}  // namespace edgellm::peers
