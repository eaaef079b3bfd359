#include "apps/compare/clients/line_reader.h"

namespace edgellm::peers {

bool LineReader::push(std::string_view bytes,
                      const std::function<bool(std::string_view)>& on_line) {
  while (!bytes.empty()) {
    const size_t end = bytes.find('\n');
    rest_ += bytes.substr(0, end);
    if (rest_.size() > kMaxLineBytes) {
      too_long_ = true;
      return false;
    }
    if (end == std::string_view::npos) return true;
    bytes.remove_prefix(end + 1);
    if (rest_.ends_with('\r')) rest_.pop_back();
    const bool wants_more = on_line(rest_);
    rest_.clear();
    if (!wants_more) return false;
  }
  return true;
}

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
