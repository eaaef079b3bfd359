// "Did you mean": which of the names that exist somebody may have meant.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace edgellm {

// The candidates nearest to `word`, all at the same distance: a few letters wrong, missing, too
// many or swapped (a third of the word at most), or a beginning of at least three letters. Case and
// leading dashes do not count. Empty where nothing is near.
std::vector<std::string> near_matches(std::string_view word,
                                      const std::vector<std::string>& candidates);

// "; did you mean --temp?", or nothing.
std::string did_you_mean(std::string_view word, const std::vector<std::string>& candidates);

}  // namespace edgellm
