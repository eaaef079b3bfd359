// A value inside a tokenizer.json together with the path that leads to it, so that every complaint
// says where. Two kinds: reject() for what is broken, refuse() for what is sound but unsupported.
//
// base/json.h's Fields are the members of one object. Here settings nest through lists
// ("pretokenizer 2 of a sequence"), so every node carries its path, and what is absent counts as
// null.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace edgellm::tok {

// `text` between quotation marks, fit for a one-line message: control characters escaped, invalid
// bytes replaced, long text cut.
std::string in_quotes(std::string_view text);

class JsonNode {
 public:
  // The root of `file`. The value must outlive the node and all that are reached from it.
  JsonNode(const nlohmann::json& root, const std::string& file);

  const std::string& path() const { return path_; }
  bool is_null() const { return value_->is_null(); }
  bool is_boolean() const { return value_->is_boolean(); }

  // A member of an object: must be there (at), or null where it is absent (find).
  JsonNode at(const std::string& key) const;
  JsonNode find(const std::string& key) const;

  size_t size() const;  // of an array
  JsonNode at(size_t index) const;

  bool boolean() const;
  bool boolean_or(bool if_null) const { return is_null() ? if_null : boolean(); }
  const std::string& string() const;
  int32_t id() const;  // a token id: 0 .. 2^31-1
  bool is_zero() const { return value_->is_number() && *value_ == 0; }

  // Throws Error, kModelFile: "PATH: WHAT".
  [[noreturn]] void reject(const std::string& what) const;
  // Throws Error, kUnsupported: "PATH: FOUND is not supported; supported: SUPPORTED".
  [[noreturn]] void refuse(const std::string& found, const std::string& supported) const;

 private:
  struct Private {};
  JsonNode(Private, const nlohmann::json& value, std::string path)
      : value_(&value), path_(std::move(path)) {}

  std::string member_path(const std::string& key) const;
  std::string message(const std::string& what) const;
  [[noreturn]] void wrong_type(const char* expected) const;

  const nlohmann::json* value_;
  std::string path_;  // "FILE: model.type"; "FILE:" for the root
};

}  // namespace edgellm::tok
