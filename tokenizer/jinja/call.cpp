#include "tokenizer/jinja/call.h"

namespace edgellm::jinja {
Call::Call(Interpreter& interpreter, std::string name, const Arguments& arguments, size_t first)
    : self(interpreter), name_(std::move(name)), arguments_(arguments), next_(first) {}

const Value* Call::optional(std::string_view parameter) {
  if (next_ < arguments_.positional.size()) return &arguments_.positional[next_++];
  for (const auto& [key, value] : arguments_.named) {
    if (key != parameter) continue;
    ++n_named_;
    return &value;
  }
  return nullptr;
}

const Value& Call::needed(std::string_view parameter) {
  const Value* value = optional(parameter);
  if (value == nullptr) self.fail(name_ + " needs the argument " + std::string(parameter));
  return *value;
}

const Text& Call::text(std::string_view parameter) { return text_in(needed(parameter), parameter); }

const Text* Call::text_or_none(std::string_view parameter) {
  const Value* value = optional(parameter);
  return value == nullptr || value->is_none() ? nullptr : &text_in(*value, parameter);
}

int64_t Call::integer_or(std::string_view parameter, int64_t otherwise) {
  const Value* value = optional(parameter);
  if (value == nullptr) return otherwise;
  if (!value->is_integer()) self.fail(name_ + ": " + std::string(parameter) + " is no integer");
  return value->integer();
}

bool Call::flag_or(std::string_view parameter, bool otherwise) {
  const Value* value = optional(parameter);
  return value == nullptr ? otherwise : is_true(*value);
}

size_t Call::limit(std::string_view parameter) {
  const int64_t n = integer_or(parameter, -1);
  return n < 0 ? SIZE_MAX : static_cast<size_t>(n);
}

bool Call::is_named(std::string_view parameter) const {
  for (const auto& [key, value] : arguments_.named) {
    if (key == parameter) return true;
  }
  return false;
}

std::vector<Value> Call::rest() {
  std::vector<Value> values;
  while (next_ < arguments_.positional.size()) values.push_back(arguments_.positional[next_++]);
  return values;
}

void Call::done() const {
  if (next_ < arguments_.positional.size() || n_named_ < arguments_.named.size()) {
    self.fail(name_ + " is given an argument that it does not take");
  }
}

const Text& Call::text_in(const Value& value, std::string_view parameter) const {
  if (!value.is_text()) {
    self.fail(name_ + ": " + std::string(parameter) + " is a value of type " + type_name(value) +
              ", expected text");
  }
  return value.text();
}

Value text_list(Interpreter& self, std::vector<Text> texts) {
  self.charge(kPieceUnits * texts.size());
  std::vector<Value> items;
  for (Text& text : texts) items.push_back(make_text(std::move(text)));
  return make_list(std::move(items));
}

Value pairs_of(Interpreter& self, const Dict& dict) {
  self.charge(kPieceUnits * dict.items.size());
  std::vector<Value> items;
  for (const auto& [key, value] : dict.items) items.push_back(make_list({key, value}, true));
  return make_list(std::move(items));
}

Value replaced(Interpreter& self, const Text& text, const Text& from, const Text& to,
               size_t limit) {
  // What comes out is at most this long.
  const size_t n_places = std::min(limit, text.size() / std::max<size_t>(from.size(), 1) + 1);
  self.charge(2 * cost_of_search(text, from.bytes()));
  const size_t n_found =
      from.empty() ? n_places : count_matches(self, text, from.bytes(), n_places);
  self.charge(n_found * (1 + to.size() / 16));
  return make_text(replace(text, from, to, limit));
}

size_t count_matches(Interpreter& self, const Text& text, std::string_view wanted, size_t limit) {
  constexpr size_t kPerUnit = 8;
  size_t n = 0;
  for (size_t at = find_text(text.bytes(), wanted); at != std::string::npos && n < limit;
       at = find_text(text.bytes(), wanted, at + wanted.size())) {
    if (++n % kPerUnit == 0) self.charge(1);
  }
  return n;
}

Value stripped(Interpreter& self, const Text& text, Side side, const Text* characters) {
  self.charge(text.size() / 16 * (characters == nullptr ? 1 : characters->size() + 1));
  return make_text(strip(text, side, characters == nullptr ? nullptr : &characters->bytes()));
}

Value in_case(Interpreter& self, const Text& text, Case to) {
  self.charge(text.size());
  return make_text(change_case(text, to));
}

}  // namespace edgellm::jinja
