#include "apps/common/near_matches.h"

#include <algorithm>
#include <cctype>

namespace edgellm {
namespace {

std::string folded(std::string_view word) {
  word.remove_prefix(std::min(word.find_first_not_of('-'), word.size()));
  std::string result;
  for (const unsigned char c : word) result += static_cast<char>(std::tolower(c));
  return result;
}

// Optimal string alignment: insertions, deletions, substitutions and swaps of neighbours.
size_t edit_distance(const std::string& a, const std::string& b) {
  std::vector<size_t> before_last;
  std::vector<size_t> last(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) last[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    std::vector<size_t> row(b.size() + 1);
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t substituted = last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, substituted});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        row[j] = std::min(row[j], before_last[j - 2] + 1);
      }
    }
    before_last = std::move(last);
    last = std::move(row);
  }
  return last[b.size()];
}

}  // namespace

std::vector<std::string> near_matches(std::string_view word,
                                      const std::vector<std::string>& candidates) {
  constexpr size_t kMinBeginning = 3;
  // Longer names are no slips of the hand, and a hostile one must not cost the square of its size.
  constexpr size_t kMaxLength = 256;
  const std::string meant = folded(word);
  if (meant.size() < 2 || meant.size() > kMaxLength) return {};
  size_t nearest = std::max<size_t>(1, meant.size() / 3);
  std::vector<std::string> matches;
  for (const std::string& candidate : candidates) {
    const std::string name = folded(candidate);
    if (name.empty() || name.size() > kMaxLength) continue;
    const bool one_begins_other = std::min(name.size(), meant.size()) >= kMinBeginning &&
                                  (name.starts_with(meant) || meant.starts_with(name));
    size_t distance = edit_distance(meant, name);
    if (one_begins_other) distance = std::min<size_t>(distance, 1);
    if (distance > nearest || distance >= name.size()) continue;
    if (distance < nearest) matches.clear();
    nearest = distance;
    matches.push_back(candidate);
  }
  return matches;
}

std::string did_you_mean(std::string_view word, const std::vector<std::string>& candidates) {
  std::string text;
  for (const std::string& match : near_matches(word, candidates)) {
    text += (text.empty() ? "" : " or ") + match;
  }
  return text.empty() ? "" : "; did you mean " + text + "?";
}

}  // namespace edgellm
