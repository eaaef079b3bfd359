// From the text of a chat template to its syntax tree.
#pragma once

#include <string>
#include <string_view>

#include "tokenizer/jinja/ast.h"

namespace edgellm::jinja {

// Throws Error with `where` and the line in front: kUnsupported for tags, filters and tests of
// Jinja that this interpreter does not know, kModelFile for what is no Jinja.
Block parse_template(std::string_view source, const std::string& where);

}  // namespace edgellm::jinja
