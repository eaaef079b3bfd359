#include "tokenizer/metaspace.h"

#include "tokenizer/unicode.h"

namespace edgellm::tok {

namespace {

Metaspace::Prepend prepend_of(const JsonNode& node) {
  using Prepend = Metaspace::Prepend;
  const JsonNode scheme = node.find("prepend_scheme");
  const bool add_prefix_space = node.find("add_prefix_space").boolean_or(true);
  if (scheme.is_null()) return add_prefix_space ? Prepend::kAlways : Prepend::kNever;
  const std::string& name = scheme.string();
  if (name == "never") return Prepend::kNever;
  if (name != "first" && name != "always") {
    scheme.reject("expected \"first\", \"always\" or \"never\", found " + in_quotes(name));
  }
  if (!add_prefix_space) {
    scheme.reject(in_quotes(name) + " contradicts add_prefix_space, which is false");
  }
  return name == "first" ? Prepend::kFirst : Prepend::kAlways;
}

}  // namespace

std::string one_character(const JsonNode& node) {
  const std::string& text = node.string();
  if (text.empty() || read_utf8(text, 0).n_bytes != text.size()) {
    node.reject("expected one character, found " + in_quotes(text));
  }
  return text;
}

Metaspace::Metaspace(const JsonNode& node)
    : replacement(one_character(node.at("replacement"))),
      prepend(prepend_of(node)),
      split(node.find("split").boolean_or(true)) {}

}  // namespace edgellm::tok
