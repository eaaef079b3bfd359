#include "apps/common/html_page.h"

#include <algorithm>
#include <cctype>

#include "apps/common/svg_chart.h"
#include "base/error.h"

namespace edgellm {
namespace {

// The colours of series stay distinct with the usual kinds of colour blindness.
constexpr const char* kStyle = R"(
:root{color-scheme:light dark;--page:#f6f7f9;--card:#fff;--text:#1c2430;--soft:#5c6675;--rule:#dfe3e9;
--k0:#2868c8;--k1:#c9600a;--k2:#12805c;--k3:#a53a8f;--k4:#8a6a00;--k5:#5b6675;--limit:#c22f3d}
@media (prefers-color-scheme:dark){:root{--page:#12161c;--card:#1b2129;--text:#e6eaf0;--soft:#9aa6b5;
--rule:#313a46;--k0:#6ea6ff;--k1:#ff9f4a;--k2:#45c79b;--k3:#e089d0;--k4:#d8bd4c;--k5:#a7b2c1;--limit:#ff7b86}}
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--text);font:16px/1.55 system-ui,-apple-system,"Segoe UI",
Roboto,"Helvetica Neue",Arial,sans-serif}
main{max-width:72rem;margin:0 auto;padding:2.5rem 1.25rem 4rem}
h1{font-size:1.7rem;line-height:1.25;margin:0}
h2{font-size:1.2rem;margin:2.6rem 0 .8rem}
.sub{color:var(--soft);margin:.3rem 0 1.8rem}
.card,.tile{background:var(--card);border:1px solid var(--rule);border-radius:10px}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(11.5rem,1fr));gap:.8rem;margin:0 0 1rem}
.tile{padding:.8rem 1rem}
.tile b{display:block;font-size:1.5rem;font-weight:600;font-variant-numeric:tabular-nums}
.tile span{color:var(--soft);font-size:.85rem;display:block}
figure{margin:0 0 1rem;padding:1rem 1.1rem}
figure h3{font-size:1rem;margin:0 0 .5rem}
figcaption{color:var(--soft);font-size:.88rem;margin-top:.4rem}
svg{display:block;width:100%;height:auto}
svg text{fill:var(--text);font-size:13px;font-family:inherit}
svg .tick,svg .note{fill:var(--soft);font-size:12px;font-variant-numeric:tabular-nums}
.grid{stroke:var(--rule)}.axis{stroke:var(--soft)}
.line{fill:none;stroke-width:2;stroke-linejoin:round}
.limit{stroke:var(--limit);stroke-width:2;stroke-dasharray:5 4}
.c0{stroke:var(--k0)}.c1{stroke:var(--k1)}.c2{stroke:var(--k2)}.c3{stroke:var(--k3)}.c4{stroke:var(--k4)}
.c5{stroke:var(--k5)}.dot{fill:var(--card);stroke-width:2}
.b0{fill:var(--k0);background:var(--k0)}.b1{background:var(--k1)}.b2{background:var(--k2)}
.b3{background:var(--k3)}.b4{background:var(--k4)}.b5{background:var(--k5)}
.legend{list-style:none;margin:0 0 .4rem;padding:0;display:flex;flex-wrap:wrap;gap:.2rem 1.1rem;font-size:.88rem}
.legend i{display:inline-block;width:.8rem;height:.8rem;border-radius:3px;margin-right:.4rem;vertical-align:-.08rem}
.scroll{overflow-x:auto;margin:0 0 1rem}
table{border-collapse:collapse;width:100%;font-size:.84rem;font-variant-numeric:tabular-nums}
th,td{padding:.4rem .5rem;text-align:left;white-space:nowrap;border-bottom:1px solid var(--rule)}
tr:last-child td{border-bottom:0}
th{color:var(--soft);font-weight:600}
td.n,th.n{text-align:right}
dl{display:grid;grid-template-columns:minmax(9rem,max-content) 1fr;gap:.3rem 1.2rem;margin:0;padding:1rem 1.1rem;
font-size:.9rem}
dt{color:var(--soft)}dd{margin:0;overflow-wrap:anywhere}
)";

bool is_number(const std::string& cell) {
  return !cell.empty() && std::isdigit(static_cast<unsigned char>(cell.front())) != 0;
}

}  // namespace

HtmlPage::HtmlPage(const std::string& title, const std::string& subtitle)
    : title_(escape_html(title)),
      body_("<h1>" + title_ + "</h1>\n<p class=\"sub\">" + escape_html(subtitle) + "</p>\n") {}

void HtmlPage::heading(const std::string& text) { body_ += "<h2>" + escape_html(text) + "</h2>\n"; }

void HtmlPage::paragraph(const std::string& text) { body_ += "<p>" + escape_html(text) + "</p>\n"; }

void HtmlPage::tiles(const std::vector<Tile>& tiles) {
  body_ += "<div class=\"tiles\">\n";
  for (const Tile& tile : tiles) {
    body_ += "<div class=\"tile\"><span>" + escape_html(tile.label) + "</span><b>" +
             escape_html(tile.value) + "</b><span>" + escape_html(tile.note) + "</span></div>\n";
  }
  body_ += "</div>\n";
}

void HtmlPage::figure(const std::string& title, const std::string& svg,
                      const std::string& caption) {
  body_ += "<figure class=\"card\"><h3>" + escape_html(title) + "</h3>" + svg + "<figcaption>" +
           escape_html(caption) + "</figcaption></figure>\n";
}

void HtmlPage::table(const std::vector<std::string>& columns,
                     const std::vector<std::vector<std::string>>& rows) {
  for (const std::vector<std::string>& row : rows) {
    require(row.size() == columns.size(), "a table's row has a cell for each column");
  }
  std::vector<std::string> open;  // of each column, after "<th" or "<td"
  for (size_t c = 0; c < columns.size(); ++c) {
    const bool has_numbers =
        std::any_of(rows.begin(), rows.end(), [&](const auto& row) { return is_number(row[c]); });
    open.push_back(has_numbers ? " class=\"n\">" : ">");
  }
  body_ += "<div class=\"card scroll\"><table><thead><tr>";
  for (size_t c = 0; c < columns.size(); ++c) {
    body_ += "<th" + open[c] + escape_html(columns[c]) + "</th>";
  }
  body_ += "</tr></thead><tbody>\n";
  for (const std::vector<std::string>& row : rows) {
    body_ += "<tr>";
    for (size_t c = 0; c < columns.size(); ++c) {
      body_ += "<td" + open[c] + escape_html(row[c]) + "</td>";
    }
    body_ += "</tr>\n";
  }
  body_ += "</tbody></table></div>\n";
}

void HtmlPage::facts(const std::vector<std::pair<std::string, std::string>>& facts) {
  body_ += "<dl class=\"card\">\n";
  for (const auto& [name, value] : facts) {
    body_ += "<dt>" + escape_html(name) + "</dt><dd>" + escape_html(value) + "</dd>\n";
  }
  body_ += "</dl>\n";
}

std::string HtmlPage::text() const {
  return "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
         "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n"
         // A browser would ask for an icon otherwise.
         "<link rel=\"icon\" href=\"data:,\">\n<title>" +
         title_ + "</title>\n<style>" + kStyle + "</style></head>\n<body><main>\n" + body_ +
         "</main></body></html>\n";
}

}  // namespace edgellm
