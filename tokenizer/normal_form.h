// The Unicode normalisation forms, as Hugging Face's tokenizers compute them.
//
// Their normalisation (the crate unicode-normalization-alignments) knows the characters of
// Unicode 9 and no younger ones. A model was trained on what it made of a text, so characters that
// came later stay as they are here, even where the installed utf8proc knows them.
#pragma once

#include <string>
#include <string_view>

namespace edgellm::tok {

enum class NormalForm { kNfc, kNfd, kNfkc, kNfkd };

// True if `form` can change the text; cheap, and false for plain ASCII.
bool may_change(std::string_view text, NormalForm form);

// The text in that form. `text` must be valid UTF-8.
std::string to_form(std::string_view text, NormalForm form);

}  // namespace edgellm::tok
