// What the filters, tests, methods and functions of templates share.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/jinja/interpreter.h"

namespace edgellm::jinja {

// The arguments of one call, taken one after the other by place or by name. A function that has
// taken all that it knows calls done(), which refuses the rest.
class Call {
 public:
  // `first` is the place of the first argument to take.
  Call(Interpreter& interpreter, std::string name, const Arguments& arguments, size_t first);

  const Value* optional(std::string_view parameter);  // null where it is not given
  const Value& needed(std::string_view parameter);
  const Text& text(std::string_view parameter);
  const Text* text_or_none(std::string_view parameter);  // null also for None
  int64_t integer_or(std::string_view parameter, int64_t otherwise);
  bool flag_or(std::string_view parameter, bool otherwise);
  size_t limit(std::string_view parameter);  // a number of times; below 0 is without a limit
  bool is_named(std::string_view parameter) const;
  std::vector<Value> rest();  // those by place
  void done() const;

  Interpreter& self;

 private:
  const Text& text_in(const Value& value, std::string_view parameter) const;

  std::string name_;
  const Arguments& arguments_;
  size_t next_;
  size_t n_named_ = 0;
};

// A list of texts; the pairs of a dict as tuples.
Value text_list(Interpreter& self, std::vector<Text> texts);
Value pairs_of(Interpreter& self, const Dict& dict);

// As their namesakes in text.h, with the work counted.
Value replaced(Interpreter& self, const Text& text, const Text& from, const Text& to, size_t limit);
// How often `wanted`, which is not empty, is in the text, up to `limit`; without overlaps.
size_t count_matches(Interpreter& self, const Text& text, std::string_view wanted, size_t limit);
Value stripped(Interpreter& self, const Text& text, Side side, const Text* characters);
Value in_case(Interpreter& self, const Text& text, Case to);

}  // namespace edgellm::jinja
