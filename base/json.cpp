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

// Builds the value event by event, in time linear in the text. (nlohmann's own parser with a
// callback searches the parent for discarded values at the end of every object.) Throws Fault.
class StrictReader : public nlohmann::json_sax<Json> {
 public:
  StrictReader(const JsonFilter& keep, size_t max_values) : keep_(keep), max_values_(max_values) {}

  Json take() { return std::move(root_); }

  bool null() override { return scalar(nullptr); }
  bool boolean(bool value) override { return scalar(value); }
  bool number_integer(number_integer_t value) override { return scalar(value); }
  bool number_unsigned(number_unsigned_t value) override { return scalar(value); }
  bool number_float(number_float_t value, const string_t&) override { return scalar(value); }
  bool string(string_t& value) override { return scalar(std::move(value)); }
  bool binary(binary_t&) override { return false; }  // JSON text has none

  bool start_object(size_t) override { return start(Json::value_t::object); }
  bool end_object() override { return end(); }
  bool start_array(size_t) override { return start(Json::value_t::array); }
  bool end_array() override { return end(); }

  bool key(string_t& name) override {
    if (dropped_depth_ > 0) return true;
    Container& parent = open_.back();
    const bool is_kept = !keep_ || keep_(static_cast<int>(open_.size()), name);
    parent.member = nullptr;
    bool is_new = false;
    if (is_kept) {
      count_value();
      const auto [member, inserted] = parent.json->get_ref<Json::object_t&>().emplace(name, Json());
      parent.member = &member->second;
      is_new = inserted;
    } else {
      is_new = parent.dropped_keys.insert(name).second;
    }
    if (!is_new) throw Fault{"JSON has the key '" + printable(name) + "' twice"};
    return true;
  }

  bool parse_error(size_t position, const std::string&,
                   const nlohmann::detail::exception& error) override {
    const bool is_syntax = dynamic_cast<const Json::parse_error*>(&error) != nullptr;
    throw Fault{is_syntax ? "not valid JSON (at byte " + std::to_string(position) + ")"
                          : "is not valid JSON"};  // a number out of range
  }

 private:
  struct Container {
    Json* json;
    Json* member = nullptr;  // of an object: where the value of its last key goes; null: nowhere
    std::unordered_set<std::string> dropped_keys;
  };

  void count_value() {
    if (++n_values_ > max_values_) {
      throw Fault{"JSON has more than " + std::to_string(max_values_) + " values"};
    }
  }

  bool is_dropped() const {
    return dropped_depth_ > 0 ||
           (!open_.empty() && open_.back().json->is_object() && open_.back().member == nullptr);
  }

  // Puts a value where the tree grows and returns its place, which stays until the parent's end.
  Json* put(Json value) {
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    Container& parent = open_.back();
    if (parent.json->is_object()) {
      *parent.member = std::move(value);
      return parent.member;
    }
    count_value();
    parent.json->push_back(std::move(value));
    return &parent.json->back();
  }

  bool scalar(Json value) {
    if (!is_dropped()) put(std::move(value));
    return true;
  }

  bool start(Json::value_t type) {
    if (open_.size() + dropped_depth_ >= kMaxJsonDepth) {
      throw Fault{"JSON is nested deeper than " + std::to_string(kMaxJsonDepth)};
    }
    if (is_dropped()) {
      ++dropped_depth_;
    } else {
      open_.push_back({.json = put(Json(type)), .member = nullptr, .dropped_keys = {}});
    }
    return true;
  }

  bool end() {
    if (dropped_depth_ > 0) {
      --dropped_depth_;
    } else {
      open_.pop_back();
    }
    return true;
  }

  const JsonFilter& keep_;
  size_t max_values_;
  size_t n_values_ = 0;
  Json root_;
  std::vector<Container> open_;  // the kept containers we are inside of, outermost first
  size_t dropped_depth_ = 0;     // how many dropped ones are inside of the last of them
};

Json parse_strictly(std::string_view text, const JsonFilter& keep, size_t max_values) {
  StrictReader reader(keep, max_values);
  Json::sax_parse(text.begin(), text.end(), &reader);
  return reader.take();
}

}  // namespace

Json parse_json_object(std::string_view text, const JsonSource& source, const JsonFilter& keep) {
  const std::string subject = source.what.empty() ? std::string() : source.what + ": ";
  try {
    Json result = parse_strictly(text, keep, kMaxJsonValues);
    if (!result.is_object()) throw Fault{"not a JSON object"};
    return result;
  } catch (const Fault& fault) {
    fail_json(source, subject + fault.what);
  }
}

std::optional<Json> try_parse_json(std::string_view text, const JsonFilter& keep,
                                   size_t max_values) {
  try {
    return parse_strictly(text, keep, max_values);
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
