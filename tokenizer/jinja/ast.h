// The syntax tree of a chat template. Every node knows its line, counted from 1, for messages.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tokenizer/jinja/value.h"

namespace edgellm::jinja {

enum class BinaryOp { kAdd, kSub, kMul, kDiv, kFloorDiv, kMod, kPow };
enum class CompareOp { kEq, kNe, kLt, kLe, kGt, kGe, kIn, kNotIn };

struct Expr;
using ExprPtr = std::unique_ptr<Expr>;

struct CallArguments {
  std::vector<ExprPtr> positional;
  std::vector<std::pair<std::string, ExprPtr>> named;
};

struct Expr {
  enum class Kind {
    kConstant,     // constant
    kName,         // name
    kList,         // children
    kTuple,        // children
    kDict,         // children: key, value, key, value, ...
    kAttribute,    // children[0].name
    kItem,         // children[0][children[1]]
    kSlice,        // children[0][children[1]:children[2]:children[3]], absent ones null
    kCall,         // children[0](arguments)
    kFilter,       // children[0] | name(arguments)
    kTest,         // children[0] is name(arguments)
    kNot,          // not children[0]
    kNegative,     // -children[0]
    kPositive,     // +children[0]
    kAnd,          // children[0] and children[1]
    kOr,           // children[0] or children[1]
    kConditional,  // children[0] if children[1] else children[2], which may be null
    kConcat,       // children[0] ~ children[1] ~ ...
    kBinary,       // children[0] binary_op children[1]
    kCompare,      // children[0] compare_ops[0] children[1] compare_ops[1] children[2] ...
  };
  Kind kind;
  int line;
  int depth = 1;  // of the tree from here on: what walking it takes of the stack
  std::string name;
  Value constant;
  std::vector<ExprPtr> children;
  CallArguments arguments;
  BinaryOp binary_op = BinaryOp::kAdd;
  std::vector<CompareOp> compare_ops;
};

struct Stmt;
using Block = std::vector<std::unique_ptr<Stmt>>;

// What a for or a set assigns to: one name, several names (a tuple is unpacked), or a field of a
// namespace.
struct Target {
  std::vector<std::string> names;
  bool is_tuple = false;
  std::string field;  // of the namespace names[0]; empty where it is none
};

struct Stmt {
  enum class Kind {
    kText,      // text: written as it is
    kOutput,    // {{ expr }}
    kIf,        // branches; the last one's condition is null for an else
    kFor,       // for target in expr if condition: body, or otherwise where nothing came
    kSet,       // set target = expr
    kSetBlock,  // set target: body, through filters (expr, a chain of kFilter over kName "")
    kFilter,    // filter expr: body
    kMacro,     // name, parameters, body
    kScope,     // body with variables of its own: with (names and values in parameters)
    kBreak,
    kContinue,
  };
  Kind kind;
  int line;
  std::string text;
  ExprPtr expr;
  ExprPtr condition;
  Target target;
  Block body;
  Block otherwise;
  std::vector<std::pair<ExprPtr, Block>> branches;
  std::string name;
  std::vector<std::pair<std::string, ExprPtr>> parameters;  // a macro's, null without a default
};

}  // namespace edgellm::jinja
