#include "base/json.h"

#include <cmath>
#include <unordered_set>
#include <vector>

#include "base/text.h"

namespace edgellm {

namespace {

[[noreturn]] void fail_json(const JsonSource& source, const std::string& what) {
  throw Error(source.blame, printable_path(source.path) + ": " + what);
}

// What is wrong with a text, to follow the name of its source.
struct Fault {
  std::string what;
};

// Throws Fault.
Json parse_strictly(std::string_view text, const JsonFilter& keep) {
  // One set of keys for each object that is open, by depth.
  std::vector<std::unordered_set<std::string>> keys;
  const auto check = [&](int depth, Json::parse_event_t event, Json& parsed) {
    if (depth > kMaxJsonDepth) {
      throw Fault{"JSON is nested deeper than " + std::to_string(kMaxJsonDepth)};
    }
    if (event == Json::parse_event_t::object_start) {
      keys.resize(static_cast<size_t>(depth) + 1);
      keys.back().clear();
    } else if (event == Json::parse_event_t::key) {
      const auto& key = parsed.get_ref<const std::string&>();
      if (!keys[static_cast<size_t>(depth) - 1].insert(key).second) {
        throw Fault{"JSON has the key '" + printable(key) + "' twice"};
      }
      if (keep) return keep(depth, key);
    }
    return true;
  };
  try {
    return Json::parse(text.begin(), text.end(), check);
  } catch (const Json::parse_error& error) {
    throw Fault{"is not valid JSON (at byte " + std::to_string(error.byte) + ")"};
  } catch (const Json::exception&) {  // a number out of range
    throw Fault{"is not valid JSON"};
  }
}

}  // namespace

Json parse_json_object(std::string_view text, const JsonSource& source, const JsonFilter& keep) {
  const std::string subject = source.what.empty() ? std::string() : source.what + ": ";
  try {
    Json result = parse_strictly(text, keep);
    if (!result.is_object()) throw Fault{"is not a JSON object"};
    return result;
  } catch (const Fault& fault) {
    fail_json(source, subject + fault.what);
  }
}

std::optional<Json> try_parse_json(std::string_view text, const JsonFilter& keep) {
  try {
    return parse_strictly(text, keep);
  } catch (const Fault&) {
    return std::nullopt;
  }
}

Fields::Fields(const Json& object, JsonSource source)
    : object_(&object), source_(std::move(source)) {
  if (!object.is_object()) {
    fail_json(source_, (source_.what.empty() ? "JSON" : source_.what) + " is not an object");
  }
}

const Json* Fields::find(const std::string& key) const {
  const auto it = object_->find(key);
  return it == object_->end() || it->is_null() ? nullptr : &*it;
}

const Json& Fields::get(const std::string& key) const {
  const Json* value = find(key);
  if (value == nullptr) fail(name(key) + " is missing");
  return *value;
}

int64_t Fields::integer(const std::string& key, int64_t low, int64_t high) const {
  const Json& value = get(key);
  int64_t result = 0;
  if (!integer_in(value, low, high, result)) {
    fail(name(key) + " is " + value_text(value) + ", expected an integer from " +
         std::to_string(low) + " to " + std::to_string(high));
  }
  return result;
}

bool Fields::boolean(const std::string& key) const {
  const Json& value = get(key);
  if (!value.is_boolean()) {
    fail(name(key) + " is " + value_text(value) + ", expected true or false");
  }
  return value.get<bool>();
}

double Fields::number(const std::string& key) const {
  const Json& value = get(key);
  if (!value.is_number() || !std::isfinite(value.get<double>())) {
    fail(name(key) + " is " + value_text(value) + ", expected a number");
  }
  return value.get<double>();
}

std::string Fields::text(const std::string& key) const {
  const Json& value = get(key);
  if (!value.is_string()) fail(name(key) + " is " + value_text(value) + ", expected a string");
  return value.get<std::string>();
}

Fields Fields::object(const std::string& key) const {
  return Fields(get(key), {source_.path, name(key), source_.blame});
}

const Json& Fields::array(const std::string& key) const {
  const Json& value = get(key);
  if (!value.is_array()) fail(name(key) + " is " + value_text(value) + ", expected a list");
  return value;
}

Fields Fields::entry(const std::string& key, size_t i) const {
  return Fields(array(key).at(i),
                {source_.path, name(key) + "[" + std::to_string(i) + "]", source_.blame});
}

std::string Fields::name(const std::string& key) const {
  return source_.what.empty() ? key : source_.what + "." + key;
}

void Fields::fail(const std::string& what, ExitCode code) const {
  throw Error(code, printable_path(source_.path) + ": " + what);
}

std::string value_text(const Json& value) {
  if (value.is_object()) return "an object";
  if (value.is_array() && value.size() > 8) return "a long list";
  return printable(value.dump(-1, ' ', true, Json::error_handler_t::replace), 80);
}

bool integer_in(const Json& value, int64_t low, int64_t high, int64_t& result) {
  if (value.is_number_unsigned()) {
    const auto number = value.get<uint64_t>();
    if (number > static_cast<uint64_t>(INT64_MAX)) return false;
    result = static_cast<int64_t>(number);
  } else if (value.is_number_integer()) {
    result = value.get<int64_t>();
  } else {
    return false;
  }
  return result >= low && result <= high;
}

}  // namespace edgellm
