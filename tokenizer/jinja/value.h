// The values of a chat template: Python's, as far as templates use them. Lists and dicts cannot be
// changed once they are made, as in the sandbox in which transformers renders; only a namespace
// can.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "tokenizer/jinja/text.h"

namespace edgellm::jinja {

struct Value;
class Interpreter;

// What a name or key stands for that is not there: empty text, false, nothing to iterate over; any
// other use is an error that says what was looked for.
class Undefined {
 public:
  Undefined() = default;
  explicit Undefined(std::string what)
      : what_(std::make_shared<const std::string>(std::move(what))) {}
  std::string what() const { return what_ == nullptr ? "" : *what_; }  // "'tools' is undefined"

 private:
  std::shared_ptr<const std::string> what_;  // shared: lists hold many copies
};
struct None {};

using Fields = std::vector<std::pair<std::string, Value>>;

struct List {
  std::vector<Value> items;
  bool is_tuple = false;
  int depth = 1;      // see depth_of()
  size_t weight = 1;  // see weight_of(); both are made by make_list()
};
struct Dict {
  std::vector<std::pair<Value, Value>> items;  // in the order in which they came; no key twice
  int depth = 1;                               // as in List, made by make_dict()
  size_t weight = 1;
  const Value* find(const Value& key) const;
};
struct Namespace {
  Fields fields;
};
// The variable `loop` inside a for.
struct Loop {
  std::shared_ptr<const List> list;
  int64_t index0 = 0;
};

struct Arguments {
  std::vector<Value> positional;
  Fields named;
};
struct Callable {
  std::string name;
  std::function<Value(Interpreter&, const Arguments&)> call;
  int depth = 0;  // of the value that a method belongs to
};

struct Value {
  std::variant<Undefined, None, bool, int64_t, double, std::shared_ptr<const Text>,
               std::shared_ptr<const List>, std::shared_ptr<const Dict>, std::shared_ptr<Namespace>,
               std::shared_ptr<Loop>, std::shared_ptr<const Callable>>
      data;

  template <class T>
  bool is() const {
    return std::holds_alternative<T>(data);
  }
  bool is_undefined() const { return is<Undefined>(); }
  bool is_none() const { return is<None>(); }
  bool is_text() const { return is<std::shared_ptr<const Text>>(); }
  bool is_list() const { return is<std::shared_ptr<const List>>(); }
  bool is_dict() const { return is<std::shared_ptr<const Dict>>(); }
  bool is_integer() const { return is<int64_t>() || is<bool>(); }  // as in Python, a bool is one
  bool is_number() const { return is_integer() || is<double>(); }

  // Of the kinds above only.
  const Text& text() const { return *std::get<std::shared_ptr<const Text>>(data); }
  const List& list() const { return *std::get<std::shared_ptr<const List>>(data); }
  const Dict& dict() const { return *std::get<std::shared_ptr<const Dict>>(data); }
  int64_t integer() const {
    return is<bool>() ? (std::get<bool>(data) ? 1 : 0) : std::get<int64_t>(data);
  }
  double number() const {
    return is<double>() ? std::get<double>(data) : static_cast<double>(integer());
  }
};

Value make_text(Text text);
Value make_text(std::string_view bytes);  // written by the template
Value make_list(std::vector<Value> items, bool is_tuple = false);
Value make_dict(std::vector<std::pair<Value, Value>> items);
Value make_callable(std::string name, std::function<Value(Interpreter&, const Arguments&)> function,
                    int depth = 0);

// How many values are held within each other: they are walked and destroyed by recursion.
int depth_of(const Value& value);

// What walking over all of it costs: one for each value in it and for each 16 bytes of text. Values
// are shared, so this may be far more than the memory they take. It ends at kMaxWeight, so sums and
// small multiples of weights do not overflow.
inline constexpr size_t kMaxWeight = size_t{1} << 48;
size_t weight_of(const Value& value);

std::string type_name(const Value& value);  // Python's: "str", "dict", "NoneType"

bool is_true(const Value& value);
bool equal(const Value& a, const Value& b);

// Negative, zero or positive; false where Python cannot order the two. NaN is ordered as equal.
bool compare(const Value& a, const Value& b, int& order);

// str() and repr() of Python.
Text to_text(const Value& value);
Text to_repr(const Value& value);
std::string float_text(double value);

// json.dumps(value, ensure_ascii=False, indent=indent) of Python; indent < 0 stands for None. False
// for what has no JSON.
bool to_json(const Value& value, int64_t indent, Text& out);

}  // namespace edgellm::jinja
