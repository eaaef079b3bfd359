#include "apps/cli/option_tree.h"

#include <algorithm>
#include <cctype>
#include <sstream>

namespace edgellm {
std::string CommandInfo::full_name() const { return name == "edgellm" ? name : "edgellm " + name; }

ValueChoices value_choices(const std::string& value) {
  ValueChoices choices;
  std::istringstream pieces(value);
  for (std::string piece; std::getline(pieces, piece, '|');) {
    const size_t dot = piece.find('.');
    const std::string stem = piece.substr(0, dot);
    if (stem == "FILE" || stem == "OUT" || piece == "SRC") {
      choices.files = true;
      if (dot != std::string::npos) choices.endings.push_back(piece.substr(dot));
    } else if (piece == "DIR") {
      choices.folders = true;
    } else if (piece == "MODEL") {
      choices.models = true;
      choices.files = true;
      choices.endings.emplace_back(".tmac2");
    } else if (std::none_of(piece.begin(), piece.end(),
                            [](unsigned char c) { return std::isupper(c) != 0; })) {
      choices.words.push_back(piece);
    }
  }
  return choices;
}

}  // namespace edgellm
