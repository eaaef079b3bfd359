#include "tokenizer/regex_cost.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <vector>

namespace edgellm::tok {

namespace {

// A repeat of at most this many is no more than a constant factor.
constexpr int kFew = 32;

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

// Reads a pattern group by group. Of the syntax it knows what tells groups, quantifiers and plain
// text apart.
class Scanner {
 public:
  explicit Scanner(std::string_view pattern) : rest_(pattern) {}

  std::string_view run() {
    groups_.emplace_back();
    while (!rest_.empty()) {
      switch (take()) {
        case '\\':
          escape();
          break;
        case '[':
          skip_class();
          break;
        case '(':
          open();
          break;
        case ')':
          close();
          break;
        default:
          quantifier(nullptr);
      }
    }
    if (has_absent_) return "an absent operator (?~";
    if (repeats_lookaround_) return "a lookaround that reads without a limit, inside of a repeat,";
    if (has_lookaround_ && has_call_) return "a lookaround beside a subexpression call";
    if (has_lookaround_ && is_extended_) return "a lookaround in an extended pattern";
    return {};
  }

 private:
  struct Group {
    bool is_lookaround = false;
    bool is_unbounded = false;              // holds what may read without end
    bool has_unbounded_lookaround = false;  // at any depth
  };

  char take() {
    const char c = rest_.front();
    rest_.remove_prefix(1);
    return c;
  }

  bool skip(std::string_view prefix) {
    if (!rest_.starts_with(prefix)) return false;
    rest_.remove_prefix(prefix.size());
    return true;
  }

  void skip_behind(char last) {
    rest_.remove_prefix(std::min(rest_.find(last), rest_.size() - 1) + 1);
  }

  void escape() {
    if (rest_.empty()) return;
    const char c = take();
    if (c == 'g') has_call_ = true;
    // A reference back reads as much as what it refers to.
    if (c == 'k' || is_digit(c)) groups_.back().is_unbounded = true;
    // Not to be taken for a repeat: \x{41}, \p{L}.
    if (is_letter(c) && rest_.starts_with('{')) skip_behind('}');
    quantifier(nullptr);
  }

  void skip_class() {
    int depth = 1;
    skip("^");
    skip("]");
    while (depth > 0 && !rest_.empty()) {
      const char c = take();
      if (c == '\\' && !rest_.empty()) take();
      if (c == '[') ++depth;
      if (c == ']') --depth;
    }
    quantifier(nullptr);
  }

  void open() {
    if (skip("?#")) return skip_behind(')');
    Group group;
    for (const char* begin : {"?=", "?!", "?<=", "?<!"}) {
      if (rest_.starts_with(begin)) group.is_lookaround = has_lookaround_ = true;
    }
    if (rest_.starts_with("?~")) has_absent_ = true;
    if (rest_.starts_with("?R") || rest_.starts_with("?&") || rest_.starts_with("?P>")) {
      has_call_ = true;
    }
    if (rest_.starts_with('?')) {
      const size_t end = std::min(rest_.find_first_of(":)<=!>~"), rest_.size());
      is_extended_ = is_extended_ || rest_.substr(0, end).find('x') != std::string_view::npos;
      skip("?");
    }
    groups_.push_back(group);
  }

  void close() {
    if (groups_.size() == 1) return;  // not a pattern that compiles
    Group closed = groups_.back();
    groups_.pop_back();
    closed.has_unbounded_lookaround =
        closed.has_unbounded_lookaround || (closed.is_lookaround && closed.is_unbounded);
    quantifier(&closed);
    groups_.back().is_unbounded = groups_.back().is_unbounded || closed.is_unbounded;
    groups_.back().has_unbounded_lookaround =
        groups_.back().has_unbounded_lookaround || closed.has_unbounded_lookaround;
  }

  // What may follow an atom; `group` is that atom if it is a group.
  void quantifier(const Group* group) {
    while (const std::optional<bool> is_unbounded = one_quantifier()) {
      if (!*is_unbounded) continue;
      groups_.back().is_unbounded = true;
      if (group != nullptr && group->has_unbounded_lookaround) repeats_lookaround_ = true;
    }
  }

  // Empty where none follows; whether it repeats without end, or nearly so.
  std::optional<bool> one_quantifier() {
    if (skip("*") || skip("+")) return true;
    if (skip("?")) return false;
    if (!rest_.starts_with('{')) return std::nullopt;
    const size_t end = rest_.find('}');
    if (end == std::string_view::npos) return std::nullopt;
    const std::string_view inside = rest_.substr(1, end - 1);
    if (inside.empty() || inside.find_first_not_of("0123456789,") != std::string_view::npos) {
      return std::nullopt;
    }
    rest_.remove_prefix(end + 1);
    const std::string_view most = inside.substr(inside.find(',') + 1);  // all where there is none
    int number = kFew + 1;
    std::from_chars(most.data(), most.data() + most.size(), number);
    return number > kFew;
  }

  std::string_view rest_;
  std::vector<Group> groups_;  // those that are open, the pattern first
  bool has_absent_ = false;
  bool repeats_lookaround_ = false;
  bool has_lookaround_ = false;
  bool has_call_ = false;
  bool is_extended_ = false;
};

}  // namespace

std::string_view unbounded_part(std::string_view pattern) { return Scanner(pattern).run(); }

}  // namespace edgellm::tok
