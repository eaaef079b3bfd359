#include "tokenizer/jinja/value.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "tokenizer/unicode.h"

namespace edgellm::jinja {

const Value* Dict::find(const Value& key) const {
  for (const auto& [known, value] : items) {
    if (equal(known, key)) return &value;
  }
  return nullptr;
}

Value make_text(Text text) { return {std::make_shared<const Text>(std::move(text))}; }
Value make_text(std::string_view bytes) { return make_text(Text(bytes, Origin::kTemplate)); }

namespace {

// Sums up what a list or dict is made of.
struct Sum {
  int depth = 1;
  size_t weight = 1;

  void add(const Value& value) {
    depth = std::max(depth, 1 + depth_of(value));
    weight = std::min(weight + weight_of(value), kMaxWeight);
  }
};

}  // namespace

Value make_list(std::vector<Value> items, bool is_tuple) {
  Sum sum;
  for (const Value& item : items) sum.add(item);
  return {std::make_shared<const List>(List{std::move(items), is_tuple, sum.depth, sum.weight})};
}
Value make_dict(std::vector<std::pair<Value, Value>> items) {
  Sum sum;
  for (const auto& [key, item] : items) {
    sum.add(key);
    sum.add(item);
  }
  // Comparing two looks for each key of the one among those of the other.
  sum.weight = std::min(sum.weight + items.size() * items.size() / 32, kMaxWeight);
  return {std::make_shared<const Dict>(Dict{std::move(items), sum.depth, sum.weight})};
}
Value make_callable(std::string name, std::function<Value(Interpreter&, const Arguments&)> function,
                    int depth) {
  return {std::make_shared<const Callable>(Callable{std::move(name), std::move(function), depth})};
}

int depth_of(const Value& value) {
  if (value.is_list()) return value.list().depth;
  if (value.is_dict()) return value.dict().depth;
  if (const auto* loop = std::get_if<std::shared_ptr<Loop>>(&value.data)) {
    return 1 + (*loop)->list->depth;
  }
  if (const auto* function = std::get_if<std::shared_ptr<const Callable>>(&value.data)) {
    return 1 + (*function)->depth;
  }
  return 0;  // the interpreter holds every namespace to the end
}

size_t weight_of(const Value& value) {
  if (value.is_text()) return 1 + value.text().size() / 16;
  return value.is_list() ? value.list().weight : value.is_dict() ? value.dict().weight : 1;
}

std::string type_name(const Value& value) {
  if (value.is_undefined()) return "Undefined";
  if (value.is_none()) return "NoneType";
  if (value.is<bool>()) return "bool";
  if (value.is<int64_t>()) return "int";
  if (value.is<double>()) return "float";
  if (value.is_text()) return "str";
  if (value.is_list()) return value.list().is_tuple ? "tuple" : "list";
  if (value.is_dict()) return "dict";
  if (value.is<std::shared_ptr<Namespace>>()) return "namespace";
  if (value.is<std::shared_ptr<Loop>>()) return "loop";
  return "function";
}

bool is_true(const Value& value) {
  if (value.is_undefined() || value.is_none()) return false;
  if (value.is_number()) return value.number() != 0;
  if (value.is_text()) return !value.text().empty();
  if (value.is_list()) return !value.list().items.empty();
  if (value.is_dict()) return !value.dict().items.empty();
  return true;
}

bool equal(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) {
    return a.is_integer() && b.is_integer() ? a.integer() == b.integer() : a.number() == b.number();
  }
  if (a.data.index() != b.data.index()) return false;
  if (a.is_undefined() || a.is_none()) return true;
  if (a.is_text()) return a.text().bytes() == b.text().bytes();
  if (a.is_list()) {
    const List& left = a.list();
    const List& right = b.list();
    return left.is_tuple == right.is_tuple &&
           std::equal(left.items.begin(), left.items.end(), right.items.begin(), right.items.end(),
                      equal);
  }
  if (a.is_dict()) {
    const Dict& left = a.dict();
    const Dict& right = b.dict();
    return left.items.size() == right.items.size() &&
           std::all_of(left.items.begin(), left.items.end(), [&](const auto& item) {
             const Value* other = right.find(item.first);
             return other != nullptr && equal(item.second, *other);
           });
  }
  // The rest are the same only if they are one object.
  return std::visit(
      [&](const auto& left) {
        using Pointer = std::decay_t<decltype(left)>;
        if constexpr (requires { left.get(); }) {
          return left == std::get<Pointer>(b.data);
        } else {
          return false;
        }
      },
      a.data);
}

bool compare(const Value& a, const Value& b, int& order) {
  const auto sign = [](auto left, auto right) {
    return left < right ? -1 : (right < left ? 1 : 0);
  };
  if (a.is_number() && b.is_number()) {
    order = a.is_integer() && b.is_integer() ? sign(a.integer(), b.integer())
                                             : sign(a.number(), b.number());
    return true;
  }
  if (a.is_text() && b.is_text()) {  // the order of UTF-8 bytes is that of characters
    order = sign(a.text().bytes().compare(b.text().bytes()), 0);
    return true;
  }
  if (!a.is_list() || !b.is_list() || a.list().is_tuple != b.list().is_tuple) return false;
  const auto& left = a.list().items;
  const auto& right = b.list().items;
  for (size_t i = 0; i < std::min(left.size(), right.size()); ++i) {
    if (!equal(left[i], right[i])) return compare(left[i], right[i], order);
  }
  order = sign(left.size(), right.size());
  return true;
}

std::string float_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char buffer[64];
  const auto end =
      std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific);
  const std::string scientific(buffer, end.ptr);
  const size_t e = scientific.find('e');
  const int exponent = std::stoi(scientific.substr(e + 1));
  // Python's repr: the shortest digits, in positional form for exponents from -4 to 15.
  if (exponent < -4 || exponent >= 16) return scientific;
  const auto fixed = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::fixed);
  std::string text(buffer, fixed.ptr);
  if (text.find('.') == std::string::npos) text += ".0";
  return text;
}

namespace {

void append(Text& out, std::string_view bytes) { out.append(bytes, Origin::kTemplate); }

void append_escape(Text& out, const char* format, char32_t c, Origin origin) {
  char buffer[16];
  std::snprintf(buffer, sizeof buffer, format, static_cast<unsigned>(c));
  out.append(buffer, origin);
}

void append_repr_of_text(Text& out, const Text& text) {
  const std::string& bytes = text.bytes();
  const bool double_quotes =
      bytes.find('\'') != std::string::npos && bytes.find('"') == std::string::npos;
  const char quote = double_quotes ? '"' : '\'';
  append(out, {&quote, 1});
  for (size_t i = 0; i < bytes.size();) {
    const tok::Utf8Unit unit = tok::read_utf8(bytes, i);
    const Origin origin = text.origin(i);
    const char32_t c = unit.character;
    if (c == '\\' || c == static_cast<char32_t>(quote)) {
      out.append("\\", origin);
      out.append(text.slice(i, 1));
    } else if (c == '\n' || c == '\r' || c == '\t') {
      out.append(c == '\n' ? "\\n" : c == '\r' ? "\\r" : "\\t", origin);
    } else if (c < 0x20 || (c >= 0x7F && c <= 0xA0) || c == 0xAD) {
      append_escape(out, "\\x%02x", c, origin);
    } else {
      out.append(text.slice(i, unit.n_bytes));
    }
    i += unit.n_bytes;
  }
  append(out, {&quote, 1});
}

void append_items(Text& out, const std::vector<Value>& items) {
  for (size_t i = 0; i < items.size(); ++i) {
    if (i > 0) append(out, ", ");
    out.append(to_repr(items[i]));
  }
}

void append_json_text(Text& out, const Text& text) {
  append(out, "\"");
  for (size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text.bytes()[i]);
    const Origin origin = text.origin(i);
    switch (c) {
      case '"':
        out.append("\\\"", origin);
        break;
      case '\\':
        out.append("\\\\", origin);
        break;
      case '\n':
        out.append("\\n", origin);
        break;
      case '\r':
        out.append("\\r", origin);
        break;
      case '\t':
        out.append("\\t", origin);
        break;
      case '\b':
        out.append("\\b", origin);
        break;
      case '\f':
        out.append("\\f", origin);
        break;
      default:
        if (c < 0x20) {
          append_escape(out, "\\u%04x", c, origin);
        } else {
          out.append({&text.bytes()[i], 1}, origin);
        }
    }
  }
  append(out, "\"");
}

class JsonWriter {
 public:
  JsonWriter(int64_t indent, Text& out) : indent_(indent), out_(out) {}

  bool write(const Value& value) {
    if (value.is_none()) {
      append(out_, "null");
    } else if (value.is<bool>()) {
      append(out_, std::get<bool>(value.data) ? "true" : "false");
    } else if (value.is<double>()) {
      const double number = value.number();
      append(out_, std::isfinite(number) ? float_text(number)
                   : std::isnan(number)  ? "NaN"
                   : number < 0          ? "-Infinity"
                                         : "Infinity");
    } else if (value.is_integer()) {
      append(out_, std::to_string(value.integer()));
    } else if (value.is_text()) {
      append_json_text(out_, value.text());
    } else if (value.is_list()) {
      return write_all('[', ']', value.list().items,
                       [&](const Value& item) { return write(item); });
    } else if (value.is_dict()) {
      return write_all('{', '}', value.dict().items, [&](const auto& item) {
        if (!write_key(item.first)) return false;
        append(out_, ": ");
        return write(item.second);
      });
    } else {
      return false;
    }
    return true;
  }

 private:
  // A key that is not text becomes the text of its JSON.
  bool write_key(const Value& key) {
    if (key.is_text()) return write(key);
    if (!key.is_none() && !key.is_number()) return false;
    append(out_, "\"");
    write(key);
    append(out_, "\"");
    return true;
  }

  template <class Items, class Write>
  bool write_all(char open, char close, const Items& items, const Write& write_item) {
    append(out_, {&open, 1});
    ++depth_;
    bool first = true;
    for (const auto& item : items) {
      if (!first) append(out_, indent_ < 0 ? ", " : ",");
      first = false;
      new_line();
      if (!write_item(item)) return false;
    }
    --depth_;
    if (!items.empty()) new_line();
    append(out_, {&close, 1});
    return true;
  }

  void new_line() {
    if (indent_ >= 0) append(out_, "\n" + std::string(static_cast<size_t>(indent_) * depth_, ' '));
  }

  int64_t indent_;
  Text& out_;
  size_t depth_ = 0;
};

}  // namespace

Text to_text(const Value& value) {
  if (value.is_undefined()) return {};
  if (value.is_text()) return value.text();
  return to_repr(value);
}

Text to_repr(const Value& value) {
  Text out;
  if (value.is_undefined()) {
    append(out, "Undefined");
  } else if (value.is_none()) {
    append(out, "None");
  } else if (value.is<bool>()) {
    append(out, std::get<bool>(value.data) ? "True" : "False");
  } else if (value.is<int64_t>()) {
    append(out, std::to_string(value.integer()));
  } else if (value.is<double>()) {
    append(out, float_text(value.number()));
  } else if (value.is_text()) {
    append_repr_of_text(out, value.text());
  } else if (value.is_list()) {
    const List& list = value.list();
    append(out, list.is_tuple ? "(" : "[");
    append_items(out, list.items);
    if (list.is_tuple && list.items.size() == 1) append(out, ",");
    append(out, list.is_tuple ? ")" : "]");
  } else if (value.is_dict()) {
    append(out, "{");
    bool first = true;
    for (const auto& [key, item] : value.dict().items) {
      if (!first) append(out, ", ");
      first = false;
      out.append(to_repr(key));
      append(out, ": ");
      out.append(to_repr(item));
    }
    append(out, "}");
  } else {
    append(out, "<" + type_name(value) + ">");
  }
  return out;
}

bool to_json(const Value& value, int64_t indent, Text& out) {
  return JsonWriter(indent, out).write(value);
}

}  // namespace edgellm::jinja
