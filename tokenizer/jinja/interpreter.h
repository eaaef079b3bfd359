// Runs a chat template. What a template may take is bounded: work, text, depth; so that no file can
// make the program hang, crash or fill the memory.
#pragma once

#include <cstddef>
#include <ctime>
#include <memory>
#include <string>
#include <vector>

#include "tokenizer/jinja/ast.h"

namespace edgellm::jinja {

// What one character, or another part of a text, costs as a value of its own, in units of work.
inline constexpr size_t kPieceUnits = 16;

class Interpreter {
 public:
  // `where` begins messages. `now` is what strftime_now() tells. Both must outlive the object, as
  // must the block that it runs.
  Interpreter(const std::string& where, const std::tm& now);
  ~Interpreter();
  Interpreter(const Interpreter&) = delete;
  Interpreter& operator=(const Interpreter&) = delete;

  // The text that the template makes of the variables. Throws Error: kModelFile for a fault of the
  // template, kUnsupported where it takes too much, kUsage where it refuses the conversation
  // (raise_exception).
  Text render(const Block& block, Fields variables);

  // What the builtins need.

  const std::tm& now() const { return now_; }
  // Throws Error (kModelFile) that names the line which is being run.
  [[noreturn]] void fail(const std::string& what) const;
  // Throws Error (kUsage): what raise_exception() is for.
  [[noreturn]] void refuse(const std::string& what) const;
  // Counts work, in the units of weight_of(), before it is done.
  void charge(size_t units);
  // The work of looking at so many names one after the other.
  void charge_names(size_t n_names) { charge(n_names / 16); }

  Value call(const Value& function, const Arguments& arguments);
  // object.name and object[key] as Jinja finds them; undefined where there is none.
  Value attribute(const Value& object, const std::string& name);
  Value item(const Value& object, const Value& key);
  // The items of a list, the keys of a dict, the characters of a text; nothing of undefined.
  std::vector<Value> items_of(const Value& value);
  bool contains(const Value& container, const Value& item);
  // The value of a key; null where there is none.
  const Value* find_key(const Dict& dict, const Value& key);
  bool equals(const Value& a, const Value& b);
  bool is_less(const Value& a, const Value& b);
  Value add(const Value& a, const Value& b);
  Text text_of(const Value& value);  // str()
  Value make_namespace(Fields fields);

 private:
  using Scope = Fields;
  enum class Flow { kNormal, kBreak, kContinue };
  class DepthGuard;
  class ScopeGuard;

  Flow run(const Block& block);
  Flow run(const Stmt& stmt);
  Flow run_if(const Stmt& stmt);
  Flow run_for(const Stmt& stmt);
  Flow run_with(const Stmt& stmt);
  void define_macro(const Stmt& stmt);
  Value call_macro(const Stmt& stmt, const Arguments& arguments);
  Text run_to_text(const Block& block);
  void write(const Text& text);

  void assign(const Target& target, Value value);
  void set(const std::string& name, Value value);
  const Value* find(const std::string& name);
  // The field of that name; null where there is none.
  Value* find_field(Fields& fields, const std::string& name);

  Value eval(const Expr& expr);
  Value eval_kind(const Expr& expr);
  Value eval_slice(const Expr& expr);
  Value eval_compare(const Expr& expr);
  Value eval_dict(const Expr& expr);
  Value eval_filter(const Expr& expr, const Value& input);
  // A chain of filters whose innermost input is `input`.
  Value eval_filters(const Expr& chain, const Value& input);
  Arguments eval_arguments(const CallArguments& arguments);
  Arguments eval_arguments(const CallArguments& arguments, Value first);
  bool compare_by(CompareOp op, const Value& a, const Value& b);
  Value arithmetic(BinaryOp op, const Value& a, const Value& b);
  Value repeat(const Value& sequence, int64_t times);
  Value loop_attribute(const std::shared_ptr<Loop>& loop, const std::string& name);

  const std::string& where_;
  const std::tm& now_;
  // scopes_[0] is the template's own; a macro sees that and those from base_ on.
  std::vector<Scope> scopes_;
  size_t base_ = 0;
  Text* out_ = nullptr;
  // A namespace is the only value that can change, so it may come to contain itself: all are held
  // and, at the end, emptied.
  std::vector<std::shared_ptr<Namespace>> namespaces_;
  int line_ = 1;
  int depth_ = 0;
  size_t work_ = 0;
};

}  // namespace edgellm::jinja
