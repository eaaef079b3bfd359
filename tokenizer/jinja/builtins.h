// Jinja's filters, tests and global functions, and the methods of Python's str and dict: those that
// chat templates use.
#pragma once

#include <string>
#include <string_view>

#include "tokenizer/jinja/value.h"

namespace edgellm::jinja {

bool is_known_filter(std::string_view name);
bool is_known_test(std::string_view name);
std::string known_filters();  // "abs, capitalize, ..."
std::string known_tests();

// `arguments.positional[0]` is what the filter or test is applied to. Faults are reported through
// Interpreter::fail().
Value apply_filter(Interpreter& interpreter, std::string_view name, const Arguments& arguments);
bool apply_test(Interpreter& interpreter, std::string_view name, const Arguments& arguments);

// range, namespace, dict, raise_exception, strftime_now.
Fields global_functions();

// A method bound to `object`, or undefined where there is none of that name.
Value find_method(const Value& object, const std::string& name);

}  // namespace edgellm::jinja
