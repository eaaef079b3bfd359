#include <algorithm>
#include <array>

#include "base/text.h"
#include "tokenizer/jinja/builtins.h"
#include "tokenizer/jinja/call.h"
#include "tokenizer/jinja/table.h"
#include "tokenizer/unicode.h"

namespace edgellm::jinja {
namespace {

using TextMethod = Value (*)(Call&, const Text&);

Value method_strip(Call& call, const Text& text, Side side) {
  const Text* characters = call.text_or_none("chars");
  call.done();
  return stripped(call.self, text, side, characters);
}

Value method_case(Call& call, const Text& text, Case to) {
  call.done();
  return in_case(call.self, text, to);
}

Value method_split(Call& call, const Text& text, bool from_right) {
  const Text* separator = call.text_or_none("sep");
  const size_t limit = call.limit("maxsplit");
  call.done();
  if (separator != nullptr && separator->empty()) call.self.fail("split: an empty separator");
  call.self.charge(text.size());
  if (separator != nullptr) call.self.charge(cost_of_search(text, separator->bytes()));
  return text_list(call.self, split(text, separator == nullptr ? nullptr : &separator->bytes(),
                                    limit, from_right));
}

Value method_split_lines(Call& call, const Text& text) {
  const bool keep_ends = call.flag_or("keepends", false);
  call.done();
  call.self.charge(text.size());
  return text_list(call.self, split_lines(text, keep_ends));
}

// startswith and endswith take one text or a tuple of them.
Value method_affix(Call& call, const Text& text, bool at_end) {
  const Value affix = call.needed("prefix");
  call.done();
  const std::vector<Value> affixes =
      affix.is_list() ? affix.list().items : std::vector<Value>{affix};
  return {std::any_of(affixes.begin(), affixes.end(), [&](const Value& one) {
    if (!one.is_text()) call.self.fail("startswith and endswith look for text");
    call.self.charge(weight_of(one));
    const std::string& bytes = one.text().bytes();
    return at_end ? text.bytes().ends_with(bytes) : text.bytes().starts_with(bytes);
  })};
}

Value method_remove(Call& call, const Text& text, bool at_end) {
  const std::string& affix = call.text("prefix").bytes();
  call.done();
  call.self.charge(text.size() / 16);
  if (at_end ? !text.bytes().ends_with(affix) : !text.bytes().starts_with(affix)) {
    return make_text(text);
  }
  return make_text(at_end ? text.slice(0, text.size() - affix.size()) : text.slice(affix.size()));
}

Value method_find(Call& call, const Text& text, bool from_right) {
  const std::string& wanted = call.text("sub").bytes();
  call.done();
  call.self.charge(cost_of_search(text, wanted) + (from_right ? text.size() : 0));
  size_t found = find_text(text.bytes(), wanted);
  if (from_right && found != std::string::npos) {
    for (size_t next = found; next != std::string::npos;
         next = find_text(text.bytes(), wanted, next + 1)) {
      found = next;
      call.self.charge(1 + wanted.size() / 16);
    }
  }
  if (found == std::string::npos) return {int64_t{-1}};
  return {static_cast<int64_t>(count_characters(std::string_view(text.bytes()).substr(0, found)))};
}

Value method_count(Call& call, const Text& text) {
  const std::string& wanted = call.text("sub").bytes();
  call.done();
  call.self.charge(cost_of_search(text, wanted));
  if (wanted.empty()) return {static_cast<int64_t>(count_characters(text.bytes()) + 1)};
  return {static_cast<int64_t>(count_matches(call.self, text, wanted, SIZE_MAX))};
}

Value method_replace(Call& call, const Text& text) {
  const Text from = call.text("old");
  const Text to = call.text("new");
  const size_t limit = call.limit("count");
  call.done();
  return replaced(call.self, text, from, to, limit);
}

Value method_join(Call& call, const Text& text) {
  const std::vector<Value> items = call.self.items_of(call.needed("iterable"));
  call.done();
  Text result;
  for (size_t i = 0; i < items.size(); ++i) {
    if (!items[i].is_text()) call.self.fail("join: an item is no text");
    call.self.charge(weight_of(items[i]) + text.size() / 16);
    if (i > 0) result.append(text);
    result.append(items[i].text());
  }
  return make_text(std::move(result));
}

// isdigit, isspace and the like: of a text that is not empty, by its characters.
Value method_all(Call& call, const Text& text, bool (*holds)(char32_t)) {
  call.done();
  call.self.charge(text.size());
  for (size_t i = 0; i < text.size();) {
    const tok::Utf8Unit unit = tok::read_utf8(text.bytes(), i);
    if (!holds(unit.character)) return {false};
    i += unit.n_bytes;
  }
  return {!text.empty()};
}

bool is_ascii_digit(char32_t c) { return c >= '0' && c <= '9'; }

constexpr auto kTextMethods = std::to_array<std::pair<std::string_view, TextMethod>>({
    {"capitalize", [](Call& c, const Text& t) { return method_case(c, t, Case::kCapitalize); }},
    {"count", method_count},
    {"endswith", [](Call& c, const Text& t) { return method_affix(c, t, true); }},
    {"find", [](Call& c, const Text& t) { return method_find(c, t, false); }},
    {"isdigit", [](Call& c, const Text& t) { return method_all(c, t, is_ascii_digit); }},
    {"isspace", [](Call& c, const Text& t) { return method_all(c, t, is_python_space); }},
    {"join", method_join},
    {"lower", [](Call& c, const Text& t) { return method_case(c, t, Case::kLower); }},
    {"lstrip", [](Call& c, const Text& t) { return method_strip(c, t, Side::kLeft); }},
    {"removeprefix", [](Call& c, const Text& t) { return method_remove(c, t, false); }},
    {"removesuffix", [](Call& c, const Text& t) { return method_remove(c, t, true); }},
    {"replace", method_replace},
    {"rfind", [](Call& c, const Text& t) { return method_find(c, t, true); }},
    {"rsplit", [](Call& c, const Text& t) { return method_split(c, t, true); }},
    {"rstrip", [](Call& c, const Text& t) { return method_strip(c, t, Side::kRight); }},
    {"split", [](Call& c, const Text& t) { return method_split(c, t, false); }},
    {"splitlines", method_split_lines},
    {"startswith", [](Call& c, const Text& t) { return method_affix(c, t, false); }},
    {"strip", [](Call& c, const Text& t) { return method_strip(c, t, Side::kBoth); }},
    {"title", [](Call& c, const Text& t) { return method_case(c, t, Case::kTitle); }},
    {"upper", [](Call& c, const Text& t) { return method_case(c, t, Case::kUpper); }},
});

using DictMethod = Value (*)(Call&, const Dict&);

Value method_get(Call& call, const Dict& dict) {
  const Value& key = call.needed("key");
  const Value* otherwise = call.optional("default");
  call.done();
  if (const Value* found = call.self.find_key(dict, key)) return *found;
  return otherwise == nullptr ? Value{None{}} : *otherwise;
}

Value method_half(Call& call, const Dict& dict, bool keys) {
  call.done();
  call.self.charge(dict.items.size());
  std::vector<Value> items;
  for (const auto& [key, value] : dict.items) items.push_back(keys ? key : value);
  return make_list(std::move(items));
}

constexpr auto kDictMethods = std::to_array<std::pair<std::string_view, DictMethod>>({
    {"get", method_get},
    {"items",
     [](Call& c, const Dict& d) {
       c.done();
       return pairs_of(c.self, d);
     }},
    {"keys", [](Call& c, const Dict& d) { return method_half(c, d, true); }},
    {"values", [](Call& c, const Dict& d) { return method_half(c, d, false); }},
});

// ---- global functions

Value function_range(Interpreter& self, const Arguments& arguments) {
  const auto& bounds = arguments.positional;
  const bool integers =
      std::all_of(bounds.begin(), bounds.end(), [](const Value& v) { return v.is_integer(); });
  if (bounds.empty() || bounds.size() > 3 || !integers || !arguments.named.empty()) {
    self.fail("range takes one to three integers");
  }
  const int64_t begin = bounds.size() == 1 ? 0 : bounds[0].integer();
  const int64_t end = bounds[bounds.size() == 1 ? 0 : 1].integer();
  const int64_t step = bounds.size() == 3 ? bounds[2].integer() : 1;
  if (step == 0) self.fail("the step of a range is 0");
  std::vector<Value> items;
  for (int64_t i = begin; step > 0 ? i < end : i > end;) {
    self.charge(1);
    items.push_back({i});
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  return make_list(std::move(items));
}

// namespace(other, name=value) and dict(other, name=value).
Fields fields_of(Interpreter& self, const Arguments& arguments) {
  Fields fields;
  for (const Value& other : arguments.positional) {
    if (!other.is_dict()) self.fail("namespace and dict are made of dicts and of name=value");
    self.charge(other.dict().items.size());
    for (const auto& [key, value] : other.dict().items) {
      fields.emplace_back(self.text_of(key).bytes(), value);
    }
  }
  for (const auto& [name, value] : arguments.named) {
    self.charge_names(fields.size());
    const auto known = std::find_if(fields.begin(), fields.end(),
                                    [&key = name](const auto& f) { return f.first == key; });
    if (known == fields.end()) {
      fields.emplace_back(name, value);
    } else {
      known->second = value;
    }
  }
  return fields;
}

Value function_dict(Interpreter& self, const Arguments& arguments) {
  std::vector<std::pair<Value, Value>> items;
  for (auto& [name, value] : fields_of(self, arguments)) {
    items.emplace_back(make_text(name), std::move(value));
  }
  return make_dict(std::move(items));
}

Value function_raise(Interpreter& self, const Arguments& arguments) {
  Call call(self, "raise_exception", arguments, /*first=*/0);
  const Text message = self.text_of(call.needed("message"));
  call.done();
  self.refuse(message.bytes());
}

Value function_strftime(Interpreter& self, const Arguments& arguments) {
  Call call(self, "strftime_now", arguments, /*first=*/0);
  // A mark at the end tells an empty result from one that is too long.
  const std::string format = call.text("format").bytes() + ".";
  call.done();
  std::array<char, 512> buffer;
  const size_t n = std::strftime(buffer.data(), buffer.size(), format.c_str(), &self.now());
  if (n == 0) self.fail("strftime_now: the date is too long");
  return make_text(std::string_view(buffer.data(), n - 1));
}

}  // namespace

Value find_method(const Value& object, const std::string& name) {
  if (object.is_text()) {
    const auto* found = find_in(kTextMethods, name);
    if (found == kTextMethods.end()) return {};
    return make_callable(name, [object, found](Interpreter& self, const Arguments& arguments) {
      Call call(self, std::string(found->first), arguments, /*first=*/0);
      return found->second(call, object.text());
    });
  }
  if (!object.is_dict()) return {};
  const auto* found = find_in(kDictMethods, name);
  if (found == kDictMethods.end()) return {};
  return make_callable(
      name,
      [object, found](Interpreter& self, const Arguments& arguments) {
        Call call(self, std::string(found->first), arguments, /*first=*/0);
        return found->second(call, object.dict());
      },
      depth_of(object));
}

Fields global_functions() {
  Fields functions;
  const auto add = [&](const char* name, Value (*function)(Interpreter&, const Arguments&)) {
    functions.emplace_back(name, make_callable(name, function));
  };
  add("range", function_range);
  add("dict", function_dict);
  add("namespace", [](Interpreter& self, const Arguments& arguments) {
    return self.make_namespace(fields_of(self, arguments));
  });
  add("raise_exception", function_raise);
  add("strftime_now", function_strftime);
  return functions;
}

}  // namespace edgellm::jinja
