// JSON from files that nobody vouches for: strict parsing, and fields read with their type checked.
// Every fault becomes an Error that names the file and the key.
//
// Two readers have their own fields. A tokenizer.json has tables of half a million strings
// (tokenizer/tokenizer_file.h). A server's answer may lack any field (apps/compare/clients/json.h).
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "base/error.h"

namespace edgellm {

using Json = nlohmann::json;

// Deeper nesting than any file of ours or of Hugging Face has; recursion over parsed JSON is safe.
inline constexpr int kMaxJsonDepth = 64;

// More values than any file has that is read whole. A value takes up to 150 bytes, so hostile text
// cannot cost more than 300 MB.
inline constexpr size_t kMaxJsonValues = 2'000'000;

// Where a text comes from, for the Error of a fault: "PATH: WHAT: ...", with the exit code `blame`.
struct JsonSource {
  std::string path;       // of a file, or what else messages call the text: "line 12"
  std::string what = {};  // the JSON in the file ("metadata"); empty where it is the whole file
  ExitCode blame = ExitCode::kModelFile;
};

// Keeps or drops the value of a key at a depth (1: a key of the outermost object) while parsing, so
// that large parts nobody reads cost no memory.
using JsonFilter = std::function<bool(int depth, const std::string& key)>;

// UTF-8, no duplicate keys, no deeper than kMaxJsonDepth, no more values kept than kMaxJsonValues,
// the outermost value an object. Takes time linear in the text.
Json parse_json_object(std::string_view text, const JsonSource& source,
                       const JsonFilter& keep = nullptr);

// As strict, with any outermost value and up to `max_values`. Empty where the text has a fault.
std::optional<Json> try_parse_json(std::string_view text, const JsonFilter& keep = nullptr,
                                   size_t max_values = kMaxJsonValues);

// The members of one object. A key that is absent or null is "not there".
class Fields {
 public:
  // source.what is how messages call the object: "architecture", "section 3", or empty.
  Fields(const Json& object, JsonSource source);

  const Json& json() const { return *object_; }
  bool has(const std::string& key) const { return find(key) != nullptr; }
  const Json* find(const std::string& key) const;
  const Json& get(const std::string& key) const;

  int64_t integer(const std::string& key, int64_t low, int64_t high) const;
  bool boolean(const std::string& key) const;
  double number(const std::string& key) const;  // finite
  std::string text(const std::string& key) const;
  Fields object(const std::string& key) const;
  const Json& array(const std::string& key) const;
  // Entry i of that array, which must be an object.
  Fields entry(const std::string& key, size_t i) const;

  const std::string& path() const { return source_.path; }
  std::string name(const std::string& key) const;  // "architecture.dim"
  [[noreturn]] void fail(const std::string& what) const { fail(what, source_.blame); }
  [[noreturn]] void fail(const std::string& what, ExitCode code) const;

 private:
  const Json* object_;
  JsonSource source_;
};

// The value as a short printable text for a message.
std::string value_text(const Json& value);

// The integer of a JSON value, if it is one within [low, high].
bool integer_in(const Json& value, int64_t low, int64_t high, int64_t& result);

}  // namespace edgellm
