#include "tokenizer/jinja/interpreter.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "tokenizer/jinja/builtins.h"
#include "tokenizer/jinja/lexer.h"
#include "tokenizer/json_node.h"

namespace edgellm::jinja {
namespace {

// About a second's work and 160 MB of text. A real template takes a few hundred units a message.
constexpr size_t kMaxWork = 10'000'000;
// Of statements and expressions within each other, calls of macros included: some hundred bytes of
// stack each.
constexpr int kMaxDepth = 1000;
// Of lists and dicts within each other: they are walked and destroyed by recursion.
constexpr int kMaxValueDepth = 100;

}  // namespace

class Interpreter::DepthGuard {
 public:
  explicit DepthGuard(Interpreter& interpreter) : interpreter_(interpreter) {
    if (++interpreter_.depth_ > kMaxDepth) {
      --interpreter_.depth_;
      fail_unsupported(interpreter_.where_, interpreter_.line_,
                       "calls or expressions nested deeper than " + std::to_string(kMaxDepth));
    }
  }
  ~DepthGuard() { --interpreter_.depth_; }
  DepthGuard(const DepthGuard&) = delete;
  DepthGuard& operator=(const DepthGuard&) = delete;

 private:
  Interpreter& interpreter_;
};

class Interpreter::ScopeGuard {
 public:
  explicit ScopeGuard(Interpreter& interpreter) : interpreter_(interpreter) {
    interpreter_.scopes_.emplace_back();
  }
  ~ScopeGuard() { interpreter_.scopes_.pop_back(); }
  ScopeGuard(const ScopeGuard&) = delete;
  ScopeGuard& operator=(const ScopeGuard&) = delete;

 private:
  Interpreter& interpreter_;
};

Interpreter::Interpreter(const std::string& where, const std::tm& now) : where_(where), now_(now) {}

Interpreter::~Interpreter() {
  for (const auto& held : namespaces_) held->fields.clear();
}

void Interpreter::fail(const std::string& what) const { fail_broken(where_, line_, what); }

void Interpreter::refuse(const std::string& what) const {
  jinja::fail(ExitCode::kUsage, where_, line_, "the template refuses this conversation: " + what);
}

void Interpreter::charge(size_t units) {
  if (units > kMaxWork - work_) {
    fail_unsupported(
        where_, line_,
        "the template does more than " + std::to_string(kMaxWork) + " steps for this conversation");
  }
  work_ += units;
}

Text Interpreter::render(const Block& block, Fields variables) {
  scopes_.assign(1, std::move(variables));
  Fields functions = global_functions();
  // Behind the variables, which may have the same names.
  std::move(functions.begin(), functions.end(), std::back_inserter(scopes_[0]));
  return run_to_text(block);
}

// ---- statements

Text Interpreter::run_to_text(const Block& block) {
  Text text;
  Text* const outer = std::exchange(out_, &text);
  run(block);
  out_ = outer;
  return text;
}

void Interpreter::write(const Text& text) {
  charge(text.size() / 16);
  out_->append(text);
}

Interpreter::Flow Interpreter::run(const Block& block) {
  const DepthGuard depth(*this);
  for (const auto& stmt : block) {
    const Flow flow = run(*stmt);
    if (flow != Flow::kNormal) return flow;
  }
  return Flow::kNormal;
}

Interpreter::Flow Interpreter::run(const Stmt& stmt) {
  line_ = stmt.line;
  charge(1);
  switch (stmt.kind) {
    case Stmt::Kind::kText:
      write(Text(stmt.text, Origin::kTemplate));
      break;
    case Stmt::Kind::kOutput:
      write(text_of(eval(*stmt.expr)));
      break;
    case Stmt::Kind::kIf:
      return run_if(stmt);
    case Stmt::Kind::kFor:
      return run_for(stmt);
    case Stmt::Kind::kSet:
      assign(stmt.target, eval(*stmt.expr));
      break;
    case Stmt::Kind::kSetBlock: {
      const Value text = make_text(run_to_text(stmt.body));
      assign(stmt.target, eval_filters(*stmt.expr, text));
      break;
    }
    case Stmt::Kind::kFilter: {
      const Value text = make_text(run_to_text(stmt.body));
      write(text_of(eval_filters(*stmt.expr, text)));
      break;
    }
    case Stmt::Kind::kMacro:
      define_macro(stmt);
      break;
    case Stmt::Kind::kScope:
      return run_with(stmt);
    case Stmt::Kind::kBreak:
      return Flow::kBreak;
    case Stmt::Kind::kContinue:
      return Flow::kContinue;
  }
  return Flow::kNormal;
}

Interpreter::Flow Interpreter::run_if(const Stmt& stmt) {
  for (const auto& [condition, body] : stmt.branches) {
    if (condition == nullptr || is_true(eval(*condition))) return run(body);
  }
  return Flow::kNormal;
}

Interpreter::Flow Interpreter::run_for(const Stmt& stmt) {
  std::vector<Value> items = items_of(eval(*stmt.expr));
  if (stmt.condition) {
    std::vector<Value> kept;
    for (Value& item : items) {
      const ScopeGuard scope(*this);
      assign(stmt.target, item);
      if (is_true(eval(*stmt.condition))) kept.push_back(std::move(item));
    }
    items = std::move(kept);
  }
  if (items.empty()) return run(stmt.otherwise);

  auto loop = std::make_shared<Loop>();
  const Value list = make_list(std::move(items));
  loop->list = std::get<std::shared_ptr<const List>>(list.data);
  for (const Value& item : list.list().items) {
    const ScopeGuard scope(*this);
    set("loop", {loop});
    assign(stmt.target, item);
    if (run(stmt.body) == Flow::kBreak) break;
    ++loop->index0;
  }
  return Flow::kNormal;
}

Interpreter::Flow Interpreter::run_with(const Stmt& stmt) {
  Scope variables;
  for (const auto& [name, value] : stmt.parameters) variables.emplace_back(name, eval(*value));
  const ScopeGuard scope(*this);
  scopes_.back() = std::move(variables);
  return run(stmt.body);
}

void Interpreter::define_macro(const Stmt& stmt) {
  set(stmt.name, make_callable(stmt.name, [&stmt](Interpreter& self, const Arguments& arguments) {
        return self.call_macro(stmt, arguments);
      }));
}

Value Interpreter::call_macro(const Stmt& stmt, const Arguments& arguments) {
  if (arguments.positional.size() > stmt.parameters.size()) {
    fail("the macro " + stmt.name + " takes at most " + std::to_string(stmt.parameters.size()) +
         " arguments");
  }
  charge_names(arguments.named.size() * stmt.parameters.size());
  for (const auto& [name, value] : arguments.named) {
    if (std::none_of(stmt.parameters.begin(), stmt.parameters.end(),
                     [&known = name](const auto& parameter) { return parameter.first == known; })) {
      fail("the macro " + stmt.name + " has no parameter " + name);
    }
  }
  const int line = line_;
  const size_t outer_base = std::exchange(base_, scopes_.size());
  Text text;
  {
    const ScopeGuard scope(*this);
    for (size_t i = 0; i < stmt.parameters.size(); ++i) {
      const auto& [name, otherwise] = stmt.parameters[i];
      charge_names(arguments.named.size());
      const auto named =
          std::find_if(arguments.named.begin(), arguments.named.end(),
                       [&key = name](const auto& field) { return field.first == key; });
      if (i < arguments.positional.size()) {
        set(name, arguments.positional[i]);
      } else if (named != arguments.named.end()) {
        set(name, named->second);
      } else if (otherwise) {
        set(name, eval(*otherwise));
      } else {
        set(name, {Undefined{"parameter '" + name + "' was not provided"}});
      }
    }
    text = run_to_text(stmt.body);
  }
  base_ = outer_base;
  line_ = line;
  return make_text(std::move(text));
}

void Interpreter::assign(const Target& target, Value value) {
  if (depth_of(value) > kMaxValueDepth) {
    fail_unsupported(where_, line_, "lists nested deeper than " + std::to_string(kMaxValueDepth));
  }
  if (!target.field.empty()) {
    const Value* object = find(target.names[0]);
    if (object == nullptr || !object->is<std::shared_ptr<Namespace>>()) {
      fail(target.names[0] + " is no namespace, so its fields cannot be set");
    }
    auto& fields = std::get<std::shared_ptr<Namespace>>(object->data)->fields;
    if (Value* field = find_field(fields, target.field)) {
      *field = std::move(value);
    } else {
      fields.emplace_back(target.field, std::move(value));
    }
  } else if (!target.is_tuple) {
    set(target.names[0], std::move(value));
  } else {
    std::vector<Value> items = items_of(value);
    if (items.size() != target.names.size()) {
      fail("cannot unpack " + std::to_string(items.size()) + " values into " +
           std::to_string(target.names.size()) + " names");
    }
    for (size_t i = 0; i < items.size(); ++i) set(target.names[i], std::move(items[i]));
  }
}

void Interpreter::set(const std::string& name, Value value) {
  if (Value* variable = find_field(scopes_.back(), name)) {
    *variable = std::move(value);
  } else {
    scopes_.back().emplace_back(name, std::move(value));
  }
}

const Value* Interpreter::find(const std::string& name) {
  charge_names(scopes_.size() - base_);
  for (size_t i = scopes_.size(); i > base_; --i) {
    if (const Value* value = find_field(scopes_[i - 1], name)) return value;
  }
  return find_field(scopes_[0], name);
}

Value* Interpreter::find_field(Fields& fields, const std::string& name) {
  charge_names(fields.size());
  const auto found = std::find_if(fields.begin(), fields.end(),
                                  [&](const auto& field) { return field.first == name; });
  return found == fields.end() ? nullptr : &found->second;
}

// ---- expressions

Value Interpreter::eval(const Expr& expr) {
  const DepthGuard depth(*this);
  line_ = expr.line;
  charge(1);
  return eval_kind(expr);
}

Value Interpreter::eval_kind(const Expr& expr) {
  const auto child = [&](size_t i) { return eval(*expr.children[i]); };
  switch (expr.kind) {
    case Expr::Kind::kConstant:
      return expr.constant;
    case Expr::Kind::kName: {
      const Value* found = find(expr.name);
      return found != nullptr ? *found : Value{Undefined{"'" + expr.name + "' is undefined"}};
    }
    case Expr::Kind::kList:
    case Expr::Kind::kTuple: {
      std::vector<Value> items;
      for (const ExprPtr& item : expr.children) items.push_back(eval(*item));
      return make_list(std::move(items), expr.kind == Expr::Kind::kTuple);
    }
    case Expr::Kind::kDict:
      return eval_dict(expr);
    case Expr::Kind::kAttribute:
      return attribute(child(0), expr.name);
    case Expr::Kind::kItem: {
      const Value object = child(0);
      return item(object, child(1));
    }
    case Expr::Kind::kSlice:
      return eval_slice(expr);
    case Expr::Kind::kCall: {
      const Value function = child(0);
      return call(function, eval_arguments(expr.arguments));
    }
    case Expr::Kind::kFilter:
      return eval_filter(expr, child(0));
    case Expr::Kind::kTest:
      return {apply_test(*this, expr.name, eval_arguments(expr.arguments, child(0)))};
    case Expr::Kind::kNot:
      return {!is_true(child(0))};
    case Expr::Kind::kNegative:
      return arithmetic(BinaryOp::kSub, {int64_t{0}}, child(0));
    case Expr::Kind::kPositive:
      return arithmetic(BinaryOp::kAdd, {int64_t{0}}, child(0));
    case Expr::Kind::kAnd: {
      Value left = child(0);
      return is_true(left) ? child(1) : left;
    }
    case Expr::Kind::kOr: {
      Value left = child(0);
      return is_true(left) ? left : child(1);
    }
    case Expr::Kind::kConditional:
      if (is_true(child(1))) return child(0);
      if (expr.children[2]) return child(2);
      return {Undefined{"the inline if has no else"}};
    case Expr::Kind::kConcat: {
      Text text;
      for (const ExprPtr& part : expr.children) {
        const Text piece = text_of(eval(*part));
        charge(piece.size() / 16);
        text.append(piece);
      }
      return make_text(std::move(text));
    }
    case Expr::Kind::kBinary: {
      const Value left = child(0);
      const Value right = child(1);
      return expr.binary_op == BinaryOp::kAdd ? add(left, right)
                                              : arithmetic(expr.binary_op, left, right);
    }
    case Expr::Kind::kCompare:
      return eval_compare(expr);
  }
  fail("an expression of an unknown kind");
}

Value Interpreter::eval_dict(const Expr& expr) {
  std::vector<std::pair<Value, Value>> items;
  for (size_t i = 0; i < expr.children.size(); i += 2) {
    Value key = eval(*expr.children[i]);
    Value value = eval(*expr.children[i + 1]);
    const auto known = std::find_if(items.begin(), items.end(),
                                    [&](const auto& pair) { return equals(pair.first, key); });
    if (known == items.end()) {
      items.emplace_back(std::move(key), std::move(value));
    } else {
      known->second = std::move(value);
    }
  }
  return make_dict(std::move(items));
}

Arguments Interpreter::eval_arguments(const CallArguments& arguments) {
  Arguments result;
  for (const ExprPtr& argument : arguments.positional) {
    result.positional.push_back(eval(*argument));
  }
  for (const auto& [name, argument] : arguments.named) {
    result.named.emplace_back(name, eval(*argument));
  }
  return result;
}

Arguments Interpreter::eval_arguments(const CallArguments& arguments, Value first) {
  Arguments result = eval_arguments(arguments);
  result.positional.insert(result.positional.begin(), std::move(first));
  return result;
}

Value Interpreter::eval_filter(const Expr& expr, const Value& input) {
  const Arguments arguments = eval_arguments(expr.arguments, input);
  line_ = expr.line;
  return apply_filter(*this, expr.name, arguments);
}

Value Interpreter::eval_filters(const Expr& chain, const Value& input) {
  const DepthGuard depth(*this);
  charge(1);
  if (chain.kind != Expr::Kind::kFilter) return input;
  return eval_filter(chain, eval_filters(*chain.children[0], input));
}

Value Interpreter::call(const Value& function, const Arguments& arguments) {
  if (function.is_undefined()) fail(std::get<Undefined>(function.data).what());
  if (!function.is<std::shared_ptr<const Callable>>()) {
    fail("a value of type " + type_name(function) + " cannot be called");
  }
  for (const Value& argument : arguments.positional) {
    if (depth_of(argument) > kMaxValueDepth) fail("lists nested too deeply");
  }
  return std::get<std::shared_ptr<const Callable>>(function.data)->call(*this, arguments);
}

Value Interpreter::attribute(const Value& object, const std::string& name) {
  if (object.is_undefined()) fail(std::get<Undefined>(object.data).what());
  if (object.is<std::shared_ptr<Loop>>()) {
    return loop_attribute(std::get<std::shared_ptr<Loop>>(object.data), name);
  }
  if (object.is<std::shared_ptr<Namespace>>()) {
    auto& fields = std::get<std::shared_ptr<Namespace>>(object.data)->fields;
    if (const Value* field = find_field(fields, name)) return *field;
  }
  Value method = find_method(object, name);
  if (!method.is_undefined()) return method;
  if (object.is_dict()) {
    if (const Value* found = find_key(object.dict(), make_text(name))) return *found;
  }
  return {Undefined{"'" + type_name(object) + "' has no attribute " + tok::in_quotes(name)}};
}

Value Interpreter::item(const Value& object, const Value& key) {
  if (object.is_undefined()) fail(std::get<Undefined>(object.data).what());
  if (object.is_dict()) {
    if (const Value* found = find_key(object.dict(), key)) return *found;
  } else if (key.is_integer() && (object.is_list() || object.is_text())) {
    std::vector<size_t> offsets;
    if (object.is_text()) {
      charge(object.text().size());
      offsets = character_offsets(object.text().bytes());
    }
    const auto n =
        static_cast<int64_t>(object.is_text() ? offsets.size() - 1 : object.list().items.size());
    const int64_t index = key.integer() < 0 ? key.integer() + n : key.integer();
    if (index >= 0 && index < n) {
      const auto i = static_cast<size_t>(index);
      if (object.is_list()) return object.list().items[i];
      return make_text(object.text().slice(offsets[i], offsets[i + 1] - offsets[i]));
    }
    return {Undefined{"'" + type_name(object) + "' has no item " + std::to_string(key.integer())}};
  }
  if (key.is_text()) return attribute(object, key.text().bytes());
  return {Undefined{"'" + type_name(object) + "' has no item of that key"}};
}

Value Interpreter::eval_slice(const Expr& expr) {
  const Value object = eval(*expr.children[0]);
  if (object.is_undefined()) fail(std::get<Undefined>(object.data).what());
  if (!object.is_list() && !object.is_text()) {
    fail("a value of type " + type_name(object) + " cannot be sliced");
  }
  const auto bound = [&](size_t i, int64_t otherwise) {
    if (!expr.children[i]) return otherwise;
    const Value value = eval(*expr.children[i]);
    if (value.is_none()) return otherwise;
    if (!value.is_integer()) fail("the bounds of a slice are integers");
    return value.integer();
  };
  charge(object.is_text() ? object.text().size() : object.list().items.size());
  const std::vector<size_t> offsets =
      object.is_text() ? character_offsets(object.text().bytes()) : std::vector<size_t>();
  const auto n =
      static_cast<int64_t>(object.is_text() ? offsets.size() - 1 : object.list().items.size());
  const int64_t step = bound(3, 1);
  if (step == 0) fail("the step of a slice is 0");
  // Python's rules: a bound below 0 counts from the end, then both are cut to what there is.
  const auto place = [&](int64_t value) {
    const int64_t low = step > 0 ? 0 : -1;
    const int64_t high = step > 0 ? n : n - 1;
    if (value < 0) value = value < -n ? low : value + n;
    return std::clamp(value, low, high);
  };
  const int64_t begin =
      expr.children[1] ? place(bound(1, step > 0 ? 0 : n - 1)) : (step > 0 ? 0 : n - 1);
  const bool has_end = expr.children[2] != nullptr;
  const Value end_value = has_end ? eval(*expr.children[2]) : Value{None{}};
  int64_t end = step > 0 ? n : -1;
  if (!end_value.is_none()) {
    if (!end_value.is_integer()) fail("the bounds of a slice are integers");
    end = place(end_value.integer());
  }
  Text text;
  std::vector<Value> items;
  for (int64_t at = begin; step > 0 ? at < end : at > end;) {
    const auto i = static_cast<size_t>(at);
    if (object.is_text()) {
      text.append(object.text().slice(offsets[i], offsets[i + 1] - offsets[i]));
    } else {
      items.push_back(object.list().items[i]);
    }
    if (step > 0 ? step >= end - at : step <= end - at) break;
    at += step;
  }
  if (object.is_text()) return make_text(std::move(text));
  return make_list(std::move(items), object.list().is_tuple);
}

std::vector<Value> Interpreter::items_of(const Value& value) {
  if (value.is_undefined()) return {};
  std::vector<Value> items;
  if (value.is_list()) {
    charge(value.list().items.size());
    return value.list().items;
  }
  if (value.is_dict()) {
    charge(value.dict().items.size());
    for (const auto& [key, item] : value.dict().items) items.push_back(key);
  } else if (value.is_text()) {
    charge(kPieceUnits * value.text().size());
    const std::vector<size_t> offsets = character_offsets(value.text().bytes());
    for (size_t i = 0; i + 1 < offsets.size(); ++i) {
      items.push_back(make_text(value.text().slice(offsets[i], offsets[i + 1] - offsets[i])));
    }
  } else {
    fail("a value of type " + type_name(value) + " has no items to go over");
  }
  return items;
}

Value Interpreter::loop_attribute(const std::shared_ptr<Loop>& loop, const std::string& name) {
  const auto n = static_cast<int64_t>(loop->list->items.size());
  const int64_t i = loop->index0;
  const auto neighbour = [&](int64_t at) {
    if (at < 0 || at >= n) return Value{Undefined{"there is no " + name}};
    return loop->list->items[static_cast<size_t>(at)];
  };
  if (name == "index") return {i + 1};
  if (name == "index0") return {i};
  if (name == "revindex") return {n - i};
  if (name == "revindex0") return {n - i - 1};
  if (name == "first") return {i == 0};
  if (name == "last") return {i == n - 1};
  if (name == "length") return {n};
  // Levels of recursion, not of nesting; recursive loops are refused.
  if (name == "depth") return {int64_t{1}};
  if (name == "depth0") return {int64_t{0}};
  if (name == "previtem") return neighbour(i - 1);
  if (name == "nextitem") return neighbour(i + 1);
  if (name == "cycle") {
    return make_callable("cycle", [i](Interpreter& self, const Arguments& arguments) {
      if (arguments.positional.empty()) self.fail("cycle() needs something to go through");
      return arguments.positional[static_cast<size_t>(i) % arguments.positional.size()];
    });
  }
  return {Undefined{"loop has no attribute " + tok::in_quotes(name)}};
}

bool Interpreter::equals(const Value& a, const Value& b) {
  charge(std::min(weight_of(a), weight_of(b)));
  return equal(a, b);
}

bool Interpreter::is_less(const Value& a, const Value& b) {
  charge(std::min(weight_of(a), weight_of(b)));
  int order = 0;
  for (const Value* value : {&a, &b}) {
    if (value->is_undefined()) fail(std::get<Undefined>(value->data).what());
  }
  if (!compare(a, b, order)) {
    fail("values of type " + type_name(a) + " and " + type_name(b) + " have no order");
  }
  return order < 0;
}

bool Interpreter::contains(const Value& container, const Value& item) {
  if (container.is_undefined()) return false;
  if (container.is_text()) {
    if (!item.is_text()) {
      if (item.is_undefined()) fail(std::get<Undefined>(item.data).what());
      fail("a value of type " + type_name(item) + " cannot be in a text");
    }
    charge(cost_of_search(container.text(), item.text().bytes()));
    return find_text(container.text().bytes(), item.text().bytes()) != std::string::npos;
  }
  if (container.is_dict()) {
    return find_key(container.dict(), item) != nullptr;
  }
  const std::vector<Value> items = items_of(container);
  return std::any_of(items.begin(), items.end(),
                     [&](const Value& known) { return equals(known, item); });
}

const Value* Interpreter::find_key(const Dict& dict, const Value& key) {
  const size_t weight = weight_of(key);
  for (const auto& [known, value] : dict.items) charge(std::min(weight_of(known), weight));
  return dict.find(key);
}

bool Interpreter::compare_by(CompareOp op, const Value& a, const Value& b) {
  switch (op) {
    case CompareOp::kEq:
      return equals(a, b);
    case CompareOp::kNe:
      return !equals(a, b);
    case CompareOp::kLt:
      return is_less(a, b);
    case CompareOp::kLe:
      return !is_less(b, a);
    case CompareOp::kGt:
      return is_less(b, a);
    case CompareOp::kGe:
      return !is_less(a, b);
    case CompareOp::kIn:
      return contains(b, a);
    case CompareOp::kNotIn:
      break;
  }
  return !contains(b, a);
}

Value Interpreter::eval_compare(const Expr& expr) {
  Value left = eval(*expr.children[0]);
  for (size_t i = 0; i < expr.compare_ops.size(); ++i) {
    Value right = eval(*expr.children[i + 1]);
    if (!compare_by(expr.compare_ops[i], left, right)) return {false};
    left = std::move(right);
  }
  return {true};
}

Value Interpreter::add(const Value& a, const Value& b) {
  if (a.is_text() && b.is_text()) {
    charge(weight_of(a) + weight_of(b));
    Text text = a.text();
    text.append(b.text());
    return make_text(std::move(text));
  }
  if (a.is_list() && b.is_list() && a.list().is_tuple == b.list().is_tuple) {
    charge(a.list().items.size() + b.list().items.size());
    std::vector<Value> items = a.list().items;
    items.insert(items.end(), b.list().items.begin(), b.list().items.end());
    return make_list(std::move(items), a.list().is_tuple);
  }
  return arithmetic(BinaryOp::kAdd, a, b);
}

Value Interpreter::repeat(const Value& sequence, int64_t times) {
  const auto n = static_cast<size_t>(std::max<int64_t>(times, 0));
  const size_t units = sequence.is_text() ? weight_of(sequence) : sequence.list().items.size() + 1;
  if (n > kMaxWork / units) charge(kMaxWork);
  charge(n * units);
  Text text;
  std::vector<Value> items;
  for (size_t i = 0; i < n; ++i) {
    if (sequence.is_text()) {
      text.append(sequence.text());
    } else {
      const auto& part = sequence.list().items;
      items.insert(items.end(), part.begin(), part.end());
    }
  }
  if (sequence.is_text()) return make_text(std::move(text));
  return make_list(std::move(items), sequence.list().is_tuple);
}

Value Interpreter::arithmetic(BinaryOp op, const Value& a, const Value& b) {
  for (const Value* value : {&a, &b}) {
    if (value->is_undefined()) fail(std::get<Undefined>(value->data).what());
  }
  const auto is_sequence = [](const Value& v) { return v.is_text() || v.is_list(); };
  if (op == BinaryOp::kMul && is_sequence(a) && b.is_integer()) return repeat(a, b.integer());
  if (op == BinaryOp::kMul && is_sequence(b) && a.is_integer()) return repeat(b, a.integer());
  if (!a.is_number() || !b.is_number()) {
    constexpr const char* kSigns[] = {"+", "-", "*", "/", "//", "%", "**"};
    fail("the operator " + std::string(kSigns[static_cast<int>(op)]) + " does not go with " +
         type_name(a) + " and " + type_name(b));
  }
  const bool divides = op == BinaryOp::kDiv || op == BinaryOp::kFloorDiv || op == BinaryOp::kMod;
  if (divides && b.number() == 0) fail("division by zero");
  if (!a.is_integer() || !b.is_integer() || op == BinaryOp::kDiv ||
      (op == BinaryOp::kPow && b.integer() < 0)) {
    const double x = a.number();
    const double y = b.number();
    switch (op) {
      case BinaryOp::kAdd:
        return {x + y};
      case BinaryOp::kSub:
        return {x - y};
      case BinaryOp::kMul:
        return {x * y};
      case BinaryOp::kDiv:
        return {x / y};
      case BinaryOp::kFloorDiv:
        return {std::floor(x / y)};
      case BinaryOp::kMod:
        return {x - y * std::floor(x / y)};
      case BinaryOp::kPow:
        return {std::pow(x, y)};
    }
  }
  const int64_t x = a.integer();
  const int64_t y = b.integer();
  int64_t result = 0;
  bool overflows = false;
  switch (op) {
    case BinaryOp::kAdd:
      overflows = __builtin_add_overflow(x, y, &result);
      break;
    case BinaryOp::kSub:
      overflows = __builtin_sub_overflow(x, y, &result);
      break;
    case BinaryOp::kMul:
      overflows = __builtin_mul_overflow(x, y, &result);
      break;
    case BinaryOp::kDiv:
      break;  // above
    case BinaryOp::kFloorDiv:
      overflows = x == INT64_MIN && y == -1;
      if (!overflows) result = x / y - (x % y != 0 && (x < 0) != (y < 0) ? 1 : 0);
      break;
    case BinaryOp::kMod:
      result = y == -1 ? 0 : x % y;
      if (result != 0 && (result < 0) != (y < 0)) result += y;
      break;
    case BinaryOp::kPow:
      result = 1;
      // Ends soon: what is neither 0, 1 nor -1 overflows.
      for (int64_t i = 0; i < (x == 0 || x == 1 || x == -1 ? std::min<int64_t>(y, 2 + y % 2) : y);
           ++i) {
        overflows = overflows || __builtin_mul_overflow(result, x, &result);
        if (overflows) break;
      }
      break;
  }
  if (overflows) fail("an integer of more than 64 bits");
  return {result};
}

Text Interpreter::text_of(const Value& value) {
  charge(weight_of(value));
  return to_text(value);
}

Value Interpreter::make_namespace(Fields fields) {
  auto made = std::make_shared<Namespace>(Namespace{std::move(fields)});
  namespaces_.push_back(made);
  return {made};
}

}  // namespace edgellm::jinja
