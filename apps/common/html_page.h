// A self-contained HTML page. Style and charts are inside, nothing is fetched, no script runs. The
// page follows the reader's light or dark setting. All texts are escaped; SVG is taken as it is.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace edgellm {

struct Tile {
  std::string label;
  std::string value;
  std::string note;  // may be empty
};

class HtmlPage {
 public:
  HtmlPage(const std::string& title, const std::string& subtitle);

  void heading(const std::string& text);
  void paragraph(const std::string& text);
  void tiles(const std::vector<Tile>& tiles);
  // `svg` comes from apps/common/svg_chart.h. The caption says how to read it.
  void figure(const std::string& title, const std::string& svg, const std::string& caption);
  // A column is aligned to the right where any of its cells begins with a digit.
  void table(const std::vector<std::string>& columns,
             const std::vector<std::vector<std::string>>& rows);
  // A list of names and values.
  void facts(const std::vector<std::pair<std::string, std::string>>& facts);

  // The whole document.
  std::string text() const;

 private:
  std::string title_;
  std::string body_;
};

}  // namespace edgellm
