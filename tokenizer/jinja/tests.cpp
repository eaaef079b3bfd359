#include <array>

#include "tokenizer/jinja/builtins.h"
#include "tokenizer/jinja/call.h"
#include "tokenizer/jinja/table.h"

namespace edgellm::jinja {
namespace {

using Test = bool (*)(Call&, const Value&);

bool is_sequence(const Value& v) { return v.is_text() || v.is_list() || v.is_dict(); }

bool all_of_case(Call& call, const Value& value, Case to) {
  const Text text = call.self.text_of(value);
  call.self.charge(text.size());
  const Case other = to == Case::kUpper ? Case::kLower : Case::kUpper;
  return change_case(text, to).bytes() == text.bytes() &&
         change_case(text, other).bytes() != text.bytes();
}

int64_t integer_in(Call& call, const Value& value) {
  if (!value.is_integer()) call.self.fail("a value of type " + type_name(value) + " is no integer");
  return value.integer();
}

bool test_equal(Call& c, const Value& v) { return c.self.equals(v, c.needed("other")); }
bool test_ne(Call& c, const Value& v) { return !c.self.equals(v, c.needed("other")); }
bool test_less(Call& c, const Value& v) { return c.self.is_less(v, c.needed("other")); }
bool test_le(Call& c, const Value& v) { return !c.self.is_less(c.needed("other"), v); }
bool test_greater(Call& c, const Value& v) { return c.self.is_less(c.needed("other"), v); }
bool test_ge(Call& c, const Value& v) { return !c.self.is_less(v, c.needed("other")); }

bool test_divisible(Call& call, const Value& value) {
  const int64_t by = integer_in(call, call.needed("num"));
  if (by == 0) call.self.fail("division by zero");
  return by == -1 || integer_in(call, value) % by == 0;
}

constexpr auto kTests = std::to_array<std::pair<std::string_view, Test>>({
    {"boolean", [](Call&, const Value& v) { return v.is<bool>(); }},
    {"callable", [](Call&, const Value& v) { return v.is<std::shared_ptr<const Callable>>(); }},
    {"defined", [](Call&, const Value& v) { return !v.is_undefined(); }},
    {"divisibleby", test_divisible},
    {"eq", test_equal},
    {"equalto", test_equal},
    {"even", [](Call& c, const Value& v) { return integer_in(c, v) % 2 == 0; }},
    {"false", [](Call&, const Value& v) { return v.is<bool>() && !is_true(v); }},
    {"float", [](Call&, const Value& v) { return v.is<double>(); }},
    {"ge", test_ge},
    {"greaterthan", test_greater},
    {"gt", test_greater},
    {"in", [](Call& c, const Value& v) { return c.self.contains(c.needed("seq"), v); }},
    {"integer", [](Call&, const Value& v) { return v.is<int64_t>(); }},
    {"iterable", [](Call&, const Value& v) { return is_sequence(v) || v.is_undefined(); }},
    {"le", test_le},
    {"lessthan", test_less},
    {"lower", [](Call& c, const Value& v) { return all_of_case(c, v, Case::kLower); }},
    {"lt", test_less},
    {"mapping", [](Call&, const Value& v) { return v.is_dict(); }},
    {"ne", test_ne},
    {"none", [](Call&, const Value& v) { return v.is_none(); }},
    {"number", [](Call&, const Value& v) { return v.is_number(); }},
    {"odd", [](Call& c, const Value& v) { return integer_in(c, v) % 2 != 0; }},
    {"sequence", [](Call&, const Value& v) { return is_sequence(v) || v.is_undefined(); }},
    {"string", [](Call&, const Value& v) { return v.is_text(); }},
    {"true", [](Call&, const Value& v) { return v.is<bool>() && is_true(v); }},
    {"undefined", [](Call&, const Value& v) { return v.is_undefined(); }},
    {"upper", [](Call& c, const Value& v) { return all_of_case(c, v, Case::kUpper); }},
});

}  // namespace

bool is_known_test(std::string_view name) { return find_in(kTests, name) != kTests.end(); }
std::string known_tests() { return names_in(kTests); }

bool apply_test(Interpreter& interpreter, std::string_view name, const Arguments& arguments) {
  Call call(interpreter, "the test " + std::string(name), arguments, /*first=*/1);
  const bool holds = find_in(kTests, name)->second(call, arguments.positional[0]);
  call.done();
  return holds;
}

}  // namespace edgellm::jinja
