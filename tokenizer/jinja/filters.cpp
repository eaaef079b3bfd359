#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "base/text.h"
#include "tokenizer/jinja/builtins.h"
#include "tokenizer/jinja/call.h"
#include "tokenizer/jinja/table.h"
#include "tokenizer/json_node.h"

namespace edgellm::jinja {
namespace {

const Dict& dict_of(Call& call, const Value& value) {
  if (!value.is_dict()) call.self.fail("a value of type " + type_name(value) + " is no dict");
  return value.dict();
}

// "content.text.0" from an item, as the filters with attribute= have it.
Value get_path(Interpreter& self, Value value, const Value& path) {
  if (path.is_integer()) return self.item(value, path);
  if (!path.is_text()) self.fail("an attribute's name is no text");
  const std::string separator = ".";
  for (const Text& part : split(path.text(), &separator, SIZE_MAX, /*from_right=*/false)) {
    if (value.is_undefined()) break;
    const std::string& name = part.bytes();
    const bool is_index = !name.empty() && name.size() < 10 &&
                          name.find_first_not_of("0123456789") == std::string::npos;
    const Value key = is_index ? Value{static_cast<int64_t>(std::stol(name))} : make_text(part);
    value = self.item(value, key);
  }
  return value;
}

using Filter = Value (*)(Call&, const Value&);

Value filter_case(Call& call, const Value& value, Case to) {
  call.done();
  return in_case(call.self, call.self.text_of(value), to);
}

Value filter_abs(Call& call, const Value& value) {
  call.done();
  if (value.is<double>()) return {std::abs(value.number())};
  if (!value.is_integer() || value.integer() == INT64_MIN) call.self.fail("abs: no number");
  return {std::abs(value.integer())};
}

Value filter_default(Call& call, const Value& value) {
  const Value* otherwise = call.optional("default_value");
  const bool also_false = call.flag_or("boolean", false);
  call.done();
  const bool use_other = value.is_undefined() || (also_false && !is_true(value));
  if (!use_other) return value;
  return otherwise == nullptr ? make_text("") : *otherwise;
}

Value filter_first(Call& call, const Value& value) {
  call.done();
  const std::vector<Value> items = call.self.items_of(value);
  return items.empty() ? Value{Undefined{"there is no first item"}} : items.front();
}

Value filter_last(Call& call, const Value& value) {
  call.done();
  const std::vector<Value> items = call.self.items_of(value);
  return items.empty() ? Value{Undefined{"there is no last item"}} : items.back();
}

// Python's int(text) and float(text), for what from_chars reads, white space around it allowed.
template <class T>
bool parse_number(const Text& text, T& number) {
  const Text stripped = strip(text, Side::kBoth);
  std::string_view digits = stripped.bytes();
  if (digits.starts_with('+')) digits.remove_prefix(1);
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  return error == std::errc() && end == digits.data() + digits.size() && !digits.empty();
}

// A double as an integer; false where it does not fit.
bool to_integer(double number, int64_t& integer) {
  constexpr double kLimit = 9.2e18;
  if (!(std::abs(number) < kLimit)) return false;
  integer = static_cast<int64_t>(number);
  return true;
}

Value filter_int(Call& call, const Value& value) {
  const int64_t otherwise = call.integer_or("default", 0);
  call.done();
  int64_t integer = 0;
  double number = 0;
  if (value.is_integer()) return {value.integer()};
  if (value.is<double>() && to_integer(value.number(), integer)) return {integer};
  if (value.is_text()) {
    if (parse_number(value.text(), integer)) return {integer};
    if (parse_number(value.text(), number) && to_integer(number, integer)) return {integer};
  }
  return {otherwise};
}

Value filter_float(Call& call, const Value& value) {
  const Value* otherwise = call.optional("default");
  call.done();
  double number = 0;
  if (value.is_number()) return {value.number()};
  if (value.is_text() && parse_number(value.text(), number)) return {number};
  return otherwise == nullptr ? Value{0.0} : *otherwise;
}

Value filter_indent(Call& call, const Value& value) {
  const Value* width = call.optional("width");
  const bool first = call.flag_or("first", false);
  const bool blank = call.flag_or("blank", false);
  call.done();
  Text by("    ", Origin::kTemplate);
  if (width != nullptr && width->is_text()) {
    by = width->text();
  } else if (width != nullptr) {
    constexpr int64_t kMaxWidth = 1000;
    if (!width->is_integer() || width->integer() < 0 || width->integer() > kMaxWidth) {
      call.self.fail("indent: the width is a number from 0 to " + std::to_string(kMaxWidth));
    }
    by = Text(std::string(static_cast<size_t>(width->integer()), ' '), Origin::kTemplate);
  }
  Text text = call.self.text_of(value);
  text.append("\n", Origin::kTemplate);  // as Jinja does, so that the last line counts
  const std::vector<Text> lines = split_lines(text, /*keep_ends=*/false);
  call.self.charge(lines.size() * (1 + by.size() / 16) + text.size() / 16);
  Text result;
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) result.append("\n", Origin::kTemplate);
    if (i == 0 ? first : (blank || !lines[i].empty())) result.append(by);
    result.append(lines[i]);
  }
  return make_text(std::move(result));
}

Value filter_items(Call& call, const Value& value) {
  call.done();
  if (value.is_undefined()) return make_list({});
  return pairs_of(call.self, dict_of(call, value));
}

Value filter_dictsort(Call& call, const Value& value) {
  call.done();
  std::vector<Value> items = pairs_of(call.self, dict_of(call, value)).list().items;
  std::stable_sort(items.begin(), items.end(), [&](const Value& a, const Value& b) {
    const auto key = [&](const Value& pair) {
      const Value& first = pair.list().items[0];
      if (!first.is_text()) return first;
      call.self.charge(first.text().size());
      return make_text(change_case(first.text(), Case::kLower));
    };
    return call.self.is_less(key(a), key(b));
  });
  return make_list(std::move(items));
}

Value filter_join(Call& call, const Value& value) {
  const Value* separator = call.optional("d");
  const Value* attribute = call.optional("attribute");
  call.done();
  const Text between = separator == nullptr ? Text() : call.self.text_of(*separator);
  Text result;
  bool first = true;
  for (const Value& item : call.self.items_of(value)) {
    if (!first) {
      call.self.charge(between.size() / 16);
      result.append(between);
    }
    first = false;
    const bool by_attribute = attribute != nullptr && !attribute->is_none();
    result.append(call.self.text_of(by_attribute ? get_path(call.self, item, *attribute) : item));
  }
  return make_text(std::move(result));
}

Value filter_length(Call& call, const Value& value) {
  call.done();
  call.self.charge(weight_of(value));
  if (value.is_undefined()) return {int64_t{0}};
  if (value.is_text()) return {static_cast<int64_t>(count_characters(value.text().bytes()))};
  if (value.is_list()) return {static_cast<int64_t>(value.list().items.size())};
  return {static_cast<int64_t>(dict_of(call, value).items.size())};
}

Value filter_list(Call& call, const Value& value) {
  call.done();
  return make_list(call.self.items_of(value));
}

// map, select, reject: the name of a filter or test and its further arguments.
Arguments rest_of(Call& call) {
  Arguments arguments;
  arguments.positional.emplace_back();  // the item's place
  for (Value& value : call.rest()) arguments.positional.push_back(std::move(value));
  return arguments;
}

Value filter_map(Call& call, const Value& value) {
  std::vector<Value> results;
  const std::vector<Value> items = call.self.items_of(value);
  const Value* attribute = nullptr;
  const Value* otherwise = nullptr;
  Arguments arguments;
  std::string filter;
  // map('upper') or map(attribute='role', default='').
  const Value* first = call.optional("attribute");
  if (first == nullptr) call.self.fail("map needs the name of a filter, or attribute=");
  if (call.is_named("attribute")) {
    attribute = first;
    otherwise = call.optional("default");
    call.done();
  } else {
    if (!first->is_text() || !is_known_filter(first->text().bytes())) {
      call.self.fail("map: there is no filter " +
                     tok::in_quotes(call.self.text_of(*first).bytes()));
    }
    filter = first->text().bytes();
    arguments = rest_of(call);
    call.done();
  }
  for (const Value& item : items) {
    call.self.charge(1);
    if (attribute != nullptr) {
      Value found = get_path(call.self, item, *attribute);
      if (found.is_undefined() && otherwise != nullptr) found = *otherwise;
      results.push_back(std::move(found));
    } else {
      arguments.positional[0] = item;
      results.push_back(apply_filter(call.self, filter, arguments));
    }
  }
  return make_list(std::move(results));
}

Value filter_select(Call& call, const Value& value, bool by_attribute, bool keep) {
  const Value* attribute = by_attribute ? &call.needed("attribute") : nullptr;
  const Text* test = call.text_or_none("test");
  if (test != nullptr && !is_known_test(test->bytes())) {
    call.self.fail("there is no test " + tok::in_quotes(test->bytes()));
  }
  Arguments arguments = rest_of(call);
  call.done();
  std::vector<Value> kept;
  for (const Value& item : call.self.items_of(value)) {
    call.self.charge(1);
    Value& subject = arguments.positional[0];
    subject = attribute != nullptr ? get_path(call.self, item, *attribute) : item;
    const bool holds =
        test != nullptr ? apply_test(call.self, test->bytes(), arguments) : is_true(subject);
    if (holds == keep) kept.push_back(item);
  }
  return make_list(std::move(kept));
}

Value filter_extreme(Call& call, const Value& value, bool largest) {
  const Value* attribute = call.optional("attribute");
  call.done();
  const std::vector<Value> items = call.self.items_of(value);
  if (items.empty()) return {Undefined{"there is no item"}};
  const auto key = [&](const Value& item) {
    return attribute == nullptr ? item : get_path(call.self, item, *attribute);
  };
  const Value* best = &items[0];
  for (const Value& item : items) {
    if (largest ? call.self.is_less(key(*best), key(item))
                : call.self.is_less(key(item), key(*best))) {
      best = &item;
    }
  }
  return *best;
}

Value filter_replace(Call& call, const Value& value) {
  const Text from = call.self.text_of(call.needed("old"));
  const Text to = call.self.text_of(call.needed("new"));
  const size_t limit = call.limit("count");
  call.done();
  return replaced(call.self, call.self.text_of(value), from, to, limit);
}

Value filter_reverse(Call& call, const Value& value) {
  call.done();
  std::vector<Value> items = call.self.items_of(value);
  std::reverse(items.begin(), items.end());
  if (!value.is_text()) return make_list(std::move(items));
  Text text;
  for (const Value& item : items) text.append(item.text());
  return make_text(std::move(text));
}

Value filter_round(Call& call, const Value& value) {
  const int64_t digits = call.integer_or("precision", 0);
  const Value* method = call.optional("method");
  call.done();
  if (!value.is_number()) call.self.fail("round: no number");
  if (digits < 0 || digits > 15) call.self.fail("round: the precision is from 0 to 15");
  const double scale = std::pow(10.0, static_cast<double>(digits));
  const std::string how = method == nullptr ? "common" : call.self.text_of(*method).bytes();
  const double x = value.number() * scale;
  if (how == "ceil") return {std::ceil(x) / scale};
  if (how == "floor") return {std::floor(x) / scale};
  if (how != "common") call.self.fail("round: the method is common, ceil or floor");
  return {std::nearbyint(x) / scale};  // half to even, as Python's round()
}

Value filter_sort(Call& call, const Value& value) {
  const bool reverse = call.flag_or("reverse", false);
  const bool case_sensitive = call.flag_or("case_sensitive", false);
  const Value* attribute = call.optional("attribute");
  call.done();
  const auto key = [&](const Value& item) {
    Value found = attribute == nullptr ? item : get_path(call.self, item, *attribute);
    if (!case_sensitive && found.is_text()) {
      call.self.charge(weight_of(found));
      found = make_text(change_case(found.text(), Case::kLower));
    }
    return found;
  };
  std::vector<std::pair<Value, Value>> keyed;
  for (const Value& item : call.self.items_of(value)) keyed.emplace_back(key(item), item);
  std::stable_sort(keyed.begin(), keyed.end(), [&](const auto& a, const auto& b) {
    return reverse ? call.self.is_less(b.first, a.first) : call.self.is_less(a.first, b.first);
  });
  std::vector<Value> items;
  for (auto& [unused, item] : keyed) items.push_back(std::move(item));
  return make_list(std::move(items));
}

Value filter_string(Call& call, const Value& value) {
  call.done();
  return make_text(call.self.text_of(value));
}

Value filter_safe(Call& call, const Value& value) {  // nothing is escaped here
  call.done();
  return value;
}

Value filter_sum(Call& call, const Value& value) {
  const Value* attribute = call.optional("attribute");
  const Value* start = call.optional("start");
  call.done();
  Value sum = start == nullptr ? Value{int64_t{0}} : *start;
  for (const Value& item : call.self.items_of(value)) {
    sum = call.self.add(sum, attribute == nullptr || attribute->is_none()
                                 ? item
                                 : get_path(call.self, item, *attribute));
  }
  return sum;
}

Value filter_tojson(Call& call, const Value& value) {
  constexpr int64_t kMaxIndent = 16;
  const bool ascii = call.flag_or("ensure_ascii", false);
  const Value* indent = call.optional("indent");
  call.done();
  int64_t width = -1;
  if (indent != nullptr && !indent->is_none()) {
    if (!indent->is_integer() || indent->integer() < 0 || indent->integer() > kMaxIndent) {
      call.self.fail("tojson: indent is a number from 0 to " + std::to_string(kMaxIndent));
    }
    width = indent->integer();
  }
  if (ascii) call.self.fail("tojson: ensure_ascii=true is not supported");
  // With an indent each line may begin with as many spaces as values are nested.
  const auto n_lines_factor =
      static_cast<size_t>(2 + std::max<int64_t>(width, 0) * depth_of(value) / 16);
  call.self.charge(weight_of(value) * n_lines_factor);
  Text text;
  if (!to_json(value, width, text)) call.self.fail("tojson: a value that has no JSON");
  return make_text(std::move(text));
}

Value filter_trim(Call& call, const Value& value) {
  const Text* characters = call.text_or_none("chars");
  call.done();
  return stripped(call.self, call.self.text_of(value), Side::kBoth, characters);
}

Value filter_unique(Call& call, const Value& value) {
  call.done();
  std::vector<Value> kept;
  for (const Value& item : call.self.items_of(value)) {
    const auto same = [&](const Value& known) {
      // As in Jinja, case does not count.
      if (!known.is_text() || !item.is_text()) return call.self.equals(known, item);
      call.self.charge(known.text().size() + item.text().size());
      return change_case(known.text(), Case::kLower).bytes() ==
             change_case(item.text(), Case::kLower).bytes();
    };
    if (std::none_of(kept.begin(), kept.end(), same)) kept.push_back(item);
  }
  return make_list(std::move(kept));
}

constexpr auto kFilters = std::to_array<std::pair<std::string_view, Filter>>({
    {"abs", filter_abs},
    {"capitalize", [](Call& c, const Value& v) { return filter_case(c, v, Case::kCapitalize); }},
    {"count", filter_length},
    {"d", filter_default},
    {"default", filter_default},
    {"dictsort", filter_dictsort},
    {"first", filter_first},
    {"float", filter_float},
    {"indent", filter_indent},
    {"int", filter_int},
    {"items", filter_items},
    {"join", filter_join},
    {"last", filter_last},
    {"length", filter_length},
    {"list", filter_list},
    {"lower", [](Call& c, const Value& v) { return filter_case(c, v, Case::kLower); }},
    {"map", filter_map},
    {"max", [](Call& c, const Value& v) { return filter_extreme(c, v, true); }},
    {"min", [](Call& c, const Value& v) { return filter_extreme(c, v, false); }},
    {"reject", [](Call& c, const Value& v) { return filter_select(c, v, false, false); }},
    {"rejectattr", [](Call& c, const Value& v) { return filter_select(c, v, true, false); }},
    {"replace", filter_replace},
    {"reverse", filter_reverse},
    {"round", filter_round},
    {"safe", filter_safe},
    {"select", [](Call& c, const Value& v) { return filter_select(c, v, false, true); }},
    {"selectattr", [](Call& c, const Value& v) { return filter_select(c, v, true, true); }},
    {"sort", filter_sort},
    {"string", filter_string},
    {"sum", filter_sum},
    {"title", [](Call& c, const Value& v) { return filter_case(c, v, Case::kWords); }},
    {"tojson", filter_tojson},
    {"trim", filter_trim},
    {"unique", filter_unique},
    {"upper", [](Call& c, const Value& v) { return filter_case(c, v, Case::kUpper); }},
});

}  // namespace

bool is_known_filter(std::string_view name) { return find_in(kFilters, name) != kFilters.end(); }
std::string known_filters() { return names_in(kFilters); }

Value apply_filter(Interpreter& interpreter, std::string_view name, const Arguments& arguments) {
  Call call(interpreter, "the filter " + std::string(name), arguments, /*first=*/1);
  return find_in(kFilters, name)->second(call, arguments.positional[0]);
}

}  // namespace edgellm::jinja
