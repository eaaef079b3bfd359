#include "tokenizer/json_node.h"

#include <limits>

#include "base/error.h"
#include "tokenizer/unicode.h"

namespace edgellm::tok {

std::string in_quotes(std::string_view text) {
  constexpr size_t kMaxBytes = 80;
  std::string out = "\"";
  for (size_t i = 0; i < text.size();) {
    if (i >= kMaxBytes) {
      out += "...";
      break;
    }
    const Utf8Unit unit = read_utf8(text, i);
    if (unit.kind != Utf8Unit::Kind::kCharacter) {
      append_utf8(out, 0xFFFD);
    } else if (unit.character < 0x20 || (unit.character >= 0x7F && unit.character < 0xA0)) {
      constexpr std::string_view kHex = "0123456789abcdef";
      out += "\\x";
      out += kHex[unit.character >> 4];
      out += kHex[unit.character & 0xF];
    } else {
      out += text.substr(i, unit.n_bytes);
    }
    i += unit.n_bytes;
  }
  return out + '"';
}

JsonNode::JsonNode(const nlohmann::json& root, const std::string& file)
    : value_(&root), path_(file + ":") {}

std::string JsonNode::member_path(const std::string& key) const {
  return path_ + (path_.back() == ':' ? " " : ".") + key;
}

JsonNode JsonNode::at(const std::string& key) const {
  if (!value_->is_object()) wrong_type("an object");
  const auto member = value_->find(key);
  if (member == value_->end()) reject("the key " + in_quotes(key) + " is missing");
  return JsonNode(Private{}, *member, member_path(key));
}

JsonNode JsonNode::find(const std::string& key) const {
  static const nlohmann::json kNull;
  if (!value_->is_object()) wrong_type("an object");
  const auto member = value_->find(key);
  return JsonNode(Private{}, member == value_->end() ? kNull : *member, member_path(key));
}

size_t JsonNode::size() const {
  if (!value_->is_array()) wrong_type("an array");
  return value_->size();
}

JsonNode JsonNode::at(size_t index) const {
  require(index < size(), "JsonNode: index");
  return JsonNode(Private{}, (*value_)[index], path_ + "[" + std::to_string(index) + "]");
}

bool JsonNode::boolean() const {
  if (!value_->is_boolean()) wrong_type("true or false");
  return value_->get<bool>();
}

const std::string& JsonNode::string() const {
  if (!value_->is_string()) wrong_type("a string");
  return value_->get_ref<const std::string&>();
}

int32_t JsonNode::id() const {
  constexpr uint64_t kMax = std::numeric_limits<int32_t>::max();
  if (!value_->is_number_unsigned() || value_->get<uint64_t>() > kMax) {
    wrong_type("a token id (0 to 2147483647)");
  }
  return value_->get<int32_t>();
}

void JsonNode::reject(const std::string& what) const {
  throw Error(ExitCode::kModelFile, message(what));
}

void JsonNode::refuse(const std::string& found, const std::string& supported) const {
  throw Error(ExitCode::kUnsupported,
              message(found + " is not supported; supported: " + supported));
}

std::string JsonNode::message(const std::string& what) const {
  return path_ + (path_.back() == ':' ? " " : ": ") + what;
}

void JsonNode::wrong_type(const char* expected) const {
  // Scalars are shown; containers could be any size.
  const std::string found = value_->is_structured() ? value_->type_name()
                            : value_->is_string()   ? in_quotes(string())
                                                    : value_->dump();
  reject(std::string("expected ") + expected + ", found " + found);
}

}  // namespace edgellm::tok
