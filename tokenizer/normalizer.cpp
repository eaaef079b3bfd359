#include "tokenizer/normalizer.h"

#include <map>

#include "tokenizer/byte_level.h"
#include "tokenizer/unicode.h"

namespace edgellm::tok {

namespace {

constexpr const char* kSupportedNormalizers =
    "null, NFC, NFD, NFKC, NFKD, Prepend, Replace, Strip, ByteLevel, Sequence";

std::string_view strip(std::string_view text, bool left, bool right) {
  while (left && !text.empty() && is_white_space(character_at(text, 0))) {
    text.remove_prefix(read_utf8(text, 0).n_bytes);
  }
  while (right && !text.empty() && is_white_space(character_before(text, text.size()))) {
    text = text.substr(0, previous_character(text, text.size()));
  }
  return text;
}

}  // namespace

Normalizer::Normalizer(const JsonNode& node) : where_(node.path()) { add_steps(node); }

void Normalizer::add_steps(const JsonNode& node) {
  static const std::map<std::string, NormalForm, std::less<>> kForms = {
      {"NFC", NormalForm::kNfc},
      {"NFD", NormalForm::kNfd},
      {"NFKC", NormalForm::kNfkc},
      {"NFKD", NormalForm::kNfkd}};
  if (node.is_null()) return;
  const std::string& type = node.at("type").string();
  if (const auto form = kForms.find(type); form != kForms.end()) {
    steps_.emplace_back(form->second);
  } else if (type == "Sequence") {
    const JsonNode members = node.at("normalizers");
    for (size_t i = 0; i < members.size(); ++i) add_steps(members.at(i));
  } else if (type == "Prepend") {
    steps_.emplace_back(Prepend{node.at("prepend").string()});
  } else if (type == "Replace") {
    steps_.emplace_back(Replacement(node));
  } else if (type == "Strip") {
    steps_.emplace_back(Strip{node.at("strip_left").boolean(), node.at("strip_right").boolean()});
  } else if (type == "ByteLevel") {
    steps_.emplace_back(ToAlphabet{});
  } else {
    node.refuse("the normalizer " + in_quotes(type), kSupportedNormalizers);
  }
  check_steps(steps_.size(), node);
}

bool Normalizer::apply_step(const Step& step, std::string_view text, size_t limit,
                            std::string& out) const {
  if (const NormalForm* form = std::get_if<NormalForm>(&step)) {
    if (!may_change(text, *form)) return false;
    out = to_form(text, *form);
  } else if (const Prepend* prepend = std::get_if<Prepend>(&step)) {
    if (text.empty()) return false;
    out.assign(prepend->text).append(text);
  } else if (const Replacement* replacement = std::get_if<Replacement>(&step)) {
    replacement->apply(text, limit, out);
  } else if (const Strip* ends = std::get_if<Strip>(&step)) {
    out = strip(text, ends->left, ends->right);
  } else {
    out = to_alphabet(text);
  }
  check_growth(out.size(), limit, where_);
  return true;
}

bool Normalizer::apply(std::string_view text, std::string& out) const {
  constexpr size_t kSlack = 1 << 20;
  const size_t limit = growth_limit(text.size(), kSlack);
  bool changed = false;
  std::string next;
  for (const Step& step : steps_) {
    if (!apply_step(step, changed ? std::string_view(out) : text, limit, next)) continue;
    out.swap(next);
    changed = true;
  }
  return changed;
}

}  // namespace edgellm::tok
