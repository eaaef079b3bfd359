#include "tokenizer/normal_form.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <vector>

#include "base/error.h"
#include "tokenizer/unicode.h"

namespace edgellm::tok {

namespace {

// The characters that came after Unicode 9 (DerivedAge.txt) and have a combining class or a
// decomposition, or are part of one, up to Unicode 18. Characters that are in no version take no
// part in normalisation, so neither do these.
constexpr CharacterRange kYoung[] = {
    {0x0558, 0x0558},   {0x058B, 0x058C},   {0x05C8, 0x05C9},   {0x07FD, 0x07FD},
    {0x0897, 0x089F},   {0x08CA, 0x08D3},   {0x09FE, 0x09FE},   {0x0C3C, 0x0C3C},
    {0x0D3B, 0x0D3C},   {0x0EBA, 0x0EBA},   {0x1715, 0x1715},   {0x1ABF, 0x1AF0},
    {0x1DF6, 0x1DFA},   {0x209D, 0x209F},   {0x32FF, 0x32FF},   {0xA7F1, 0xA7F4},
    {0xA82C, 0xA82C},   {0xAB66, 0xAB67},   {0xAB69, 0xAB69},   {0x105C9, 0x105C9},
    {0x105D2, 0x105D2}, {0x105DA, 0x105DA}, {0x105E4, 0x105E4}, {0x10781, 0x10785},
    {0x10787, 0x107B0}, {0x107B2, 0x107BF}, {0x10D24, 0x10D27}, {0x10D69, 0x10D6D},
    {0x10EAB, 0x10EAC}, {0x10ECB, 0x10ECF}, {0x10EF0, 0x10EFB}, {0x10EFD, 0x10EFF},
    {0x10F46, 0x10F50}, {0x10F82, 0x10F85}, {0x11070, 0x11070}, {0x1133B, 0x1133B},
    {0x11382, 0x11385}, {0x1138B, 0x1138B}, {0x1138E, 0x1138E}, {0x11390, 0x11391},
    {0x113B8, 0x113B8}, {0x113BB, 0x113BB}, {0x113C2, 0x113C2}, {0x113C5, 0x113C5},
    {0x113C7, 0x113C9}, {0x113CE, 0x113D0}, {0x1145E, 0x1145E}, {0x11839, 0x1183A},
    {0x11930, 0x11930}, {0x11935, 0x11935}, {0x11938, 0x11938}, {0x1193D, 0x1193E},
    {0x11943, 0x11943}, {0x119E0, 0x119E0}, {0x11A34, 0x11A34}, {0x11A47, 0x11A47},
    {0x11A99, 0x11A99}, {0x11D42, 0x11D42}, {0x11D44, 0x11D45}, {0x11D97, 0x11D97},
    {0x11F41, 0x11F42}, {0x1611E, 0x16129}, {0x1612F, 0x1612F}, {0x16D63, 0x16D63},
    {0x16D67, 0x16D6A}, {0x16FF0, 0x16FF1}, {0x1B123, 0x1B126}, {0x1CCD6, 0x1CCF9},
    {0x1D127, 0x1D128}, {0x1D250, 0x1D252}, {0x1D25B, 0x1D25C}, {0x1D25F, 0x1D25F},
    {0x1D280, 0x1D281}, {0x1D6A6, 0x1D6A6}, {0x1DF04, 0x1DF06}, {0x1DF08, 0x1DF0B},
    {0x1DF19, 0x1DF19}, {0x1DF1C, 0x1DF1C}, {0x1DF1E, 0x1DF1E}, {0x1DF2B, 0x1DF2C},
    {0x1DF3E, 0x1DF3F}, {0x1DF50, 0x1DF50}, {0x1DF57, 0x1DF59}, {0x1DF95, 0x1DF95},
    {0x1DFCD, 0x1DFFF}, {0x1E030, 0x1E06D}, {0x1E08F, 0x1E08F}, {0x1E130, 0x1E136},
    {0x1E2AE, 0x1E2AE}, {0x1E2EC, 0x1E2EF}, {0x1E4EC, 0x1E4EF}, {0x1E5EE, 0x1E5EF},
    {0x1E6E3, 0x1E6E3}, {0x1E6E6, 0x1E6E6}, {0x1E6EE, 0x1E6EF}, {0x1E6F5, 0x1E6F5},
    {0x1F16C, 0x1F16C}, {0x1FBF0, 0x1FBF9}};

bool is_young(char32_t c) {
  if (c < kYoung[0].first || (c >= 0xAC00 && c <= 0xD7A3)) return false;  // Hangul is common
  return is_in(kYoung, c);
}

bool composes(NormalForm form) { return form == NormalForm::kNfc || form == NormalForm::kNfkc; }

utf8proc_option_t options_of(NormalForm form) {
  int options = UTF8PROC_STABLE;
  options |= composes(form) ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE;
  if (form == NormalForm::kNfkc || form == NormalForm::kNfkd) options |= UTF8PROC_COMPAT;
  return static_cast<utf8proc_option_t>(options);
}

// Appends the normal form of a text without young characters, whose decomposition is given.
void append_normalized(std::vector<utf8proc_int32_t>& characters, NormalForm form,
                       std::string& out) {
  const auto combining_class = [](utf8proc_int32_t c) {
    return utf8proc_get_property(c)->combining_class;
  };
  for (auto run = characters.begin(); run != characters.end();) {
    if (combining_class(*run) == 0) {
      ++run;
      continue;
    }
    const auto end = std::find_if(run, characters.end(),
                                  [&](utf8proc_int32_t c) { return combining_class(c) == 0; });
    std::stable_sort(run, end, [&](utf8proc_int32_t a, utf8proc_int32_t b) {
      return combining_class(a) < combining_class(b);
    });
    run = end;
  }
  size_t n = characters.size();
  if (composes(form)) {
    const utf8proc_ssize_t n_composed = utf8proc_normalize_utf32(
        characters.data(), static_cast<utf8proc_ssize_t>(n), options_of(form));
    require(n_composed >= 0, "to_form: composition");
    n = static_cast<size_t>(n_composed);
  }
  for (size_t i = 0; i < n; ++i) append_utf8(out, static_cast<char32_t>(characters[i]));
  characters.clear();
}

}  // namespace

bool may_change(std::string_view text, NormalForm form) {
  // Everything below U+0300 is its own NFC, and 0xCC is the first byte of U+0300.
  const uint8_t first = form == NormalForm::kNfc ? 0xCC : 0x80;
  return std::any_of(text.begin(), text.end(),
                     [first](char c) { return static_cast<uint8_t>(c) >= first; });
}

// utf8proc_map() would do nearly all of this in one call, but it orders combining marks by
// exchanging neighbours: quadratic in a run of marks, minutes for a hostile megabyte.
std::string to_form(std::string_view text, NormalForm form) {
  std::vector<utf8proc_int32_t> characters;
  characters.reserve(text.size());
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    const Utf8Unit unit = read_utf8(text, i);
    if (is_young(unit.character)) {
      append_normalized(characters, form, out);
      out.append(text, i, unit.n_bytes);
      i += unit.n_bytes;
      continue;
    }
    i += unit.n_bytes;
    std::array<utf8proc_int32_t, 18> parts{};  // U+FDFA has the longest decomposition
    const utf8proc_ssize_t n = utf8proc_decompose_char(
        static_cast<utf8proc_int32_t>(unit.character), parts.data(),
        static_cast<utf8proc_ssize_t>(parts.size()), options_of(form), nullptr);
    require(n >= 0 && n <= static_cast<utf8proc_ssize_t>(parts.size()), "to_form: decomposition");
    characters.insert(characters.end(), parts.begin(), parts.begin() + n);
  }
  append_normalized(characters, form, out);
  return out;
}

}  // namespace edgellm::tok
