// JSON from files that nobody vouches for: strict parsing, and fields read with their type checked.
// Every fault becomes an Error that names the file and the key.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/error.h"

namespace edgellm::model_io {

using Json = nlohmann::json;

// Deeper nesting than any file of ours or of Hugging Face has; recursion over parsed JSON is safe.
inline constexpr int kMaxJsonDepth = 64;

// Keeps or drops the value of a key at a depth (1: a key of the outermost object) while parsing, so
// that large parts nobody reads cost no memory.
using JsonFilter = std::function<bool(int depth, const std::string& key)>;

// UTF-8, no duplicate keys, no deeper than kMaxJsonDepth, the outermost value an object.
// `path` names the file, `what` the JSON in it ("metadata"), empty where it is the whole file.
Json parse_json_object(std::string_view text, const std::string& path, const std::string& what,
                       const JsonFilter& keep = nullptr);

// The members of one object. A key that is absent or null is "not there".
class Fields {
 public:
  // `where` is how messages call the object: "architecture", "section 3", or empty.
  Fields(const Json& object, std::string path, std::string where);

  const Json& json() const { return *object_; }
  const std::string& path() const { return path_; }
  bool has(const std::string& key) const { return find(key) != nullptr; }
  const Json* find(const std::string& key) const;
  const Json& get(const std::string& key) const;

  int64_t integer(const std::string& key, int64_t low, int64_t high) const;
  bool boolean(const std::string& key) const;
  double number(const std::string& key) const;  // finite
  std::string text(const std::string& key) const;
  Fields object(const std::string& key) const;
  const Json& array(const std::string& key) const;

  std::string name(const std::string& key) const;  // "architecture.dim"
  [[noreturn]] void fail(const std::string& what, ExitCode code = ExitCode::kModelFile) const;

 private:
  const Json* object_;
  std::string path_;
  std::string where_;
};

// The value as a short printable text for a message.
std::string value_text(const Json& value);

// The integer of a JSON value, if it is one within [low, high].
bool integer_in(const Json& value, int64_t low, int64_t high, int64_t& result);

}  // namespace edgellm::model_io
