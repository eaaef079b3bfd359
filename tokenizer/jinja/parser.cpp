#include "tokenizer/jinja/parser.h"

#include <algorithm>
#include <array>

#include "tokenizer/jinja/builtins.h"
#include "tokenizer/jinja/lexer.h"
#include "tokenizer/json_node.h"

namespace edgellm::jinja {
namespace {

using Kind = Token::Kind;

// Deeper than any real template nests tags and brackets. The trees are walked by recursion.
constexpr int kMaxNesting = 200;
// Of an expression's tree; a chain of operators (a + b + c ...) nests to the left.
constexpr int kMaxTreeDepth = 500;

constexpr const char* kTags = "for, if, set, macro, with, filter, break, continue, generation, raw";

class Parser {
 public:
  Parser(std::string_view source, const std::string& where)
      : tokens_(tokenize_template(source, where)), where_(where) {}

  Block run() {
    Block block = parse_block({});
    if (current().kind != Kind::kEnd) fail("unexpected tag");
    return block;
  }

 private:
  class Depth {
   public:
    explicit Depth(Parser& parser) : parser_(parser) {
      if (++parser_.depth_ > kMaxNesting) {
        fail_unsupported(parser_.where_, parser_.current().line,
                         "nested deeper than " + std::to_string(kMaxNesting) + " levels");
      }
    }
    ~Depth() { --parser_.depth_; }
    Depth(const Depth&) = delete;
    Depth& operator=(const Depth&) = delete;

   private:
    Parser& parser_;
  };

  // ---- tokens

  const Token& current() const { return tokens_[at_]; }
  const Token& next() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  int line() const { return current().line; }
  Token take() {
    Token token = current();
    if (at_ + 1 < tokens_.size()) ++at_;
    return token;
  }
  bool is_op(std::string_view op) const {
    return current().kind == Kind::kOperator && current().text == op;
  }
  bool is_name(std::string_view name) const {
    return current().kind == Kind::kName && current().text == name;
  }
  bool skip_op(std::string_view op) {
    if (!is_op(op)) return false;
    take();
    return true;
  }
  bool skip_name(std::string_view name) {
    if (!is_name(name)) return false;
    take();
    return true;
  }

  [[noreturn]] void fail(const std::string& what) const { fail_broken(where_, line(), what); }
  [[noreturn]] void fail_expected(const std::string& expected) const {
    fail("expected " + expected + ", found " + describe(current()));
  }
  static std::string describe(const Token& token) {
    switch (token.kind) {
      case Kind::kBlockEnd:
        return "the end of the tag";
      case Kind::kOutputEnd:
        return "the end of the expression";
      case Kind::kEnd:
        return "the end of the template";
      case Kind::kText:
      case Kind::kBlockBegin:
      case Kind::kOutputBegin:
        return "text or a tag";
      default:
        return tok::in_quotes(token.text);
    }
  }

  void expect_op(std::string_view op) {
    if (!skip_op(op)) fail_expected(tok::in_quotes(op));
  }
  void expect_name(std::string_view name) {
    if (!skip_name(name)) fail_expected(tok::in_quotes(name));
  }
  void expect(Kind kind, const char* what) {
    if (current().kind != kind) fail_expected(what);
    take();
  }
  void end_tag() { expect(Kind::kBlockEnd, "%}"); }

  std::string take_identifier() {
    if (current().kind != Kind::kName) fail_expected("a name");
    constexpr std::array kReserved = {"true", "false", "none", "True", "False", "None", "and",
                                      "or",   "not",   "if",   "else", "in",    "is"};
    if (std::find(kReserved.begin(), kReserved.end(), current().text) != kReserved.end()) {
      fail(tok::in_quotes(current().text) + " is no name for a variable");
    }
    return take().text;
  }

  // ---- statements

  std::unique_ptr<Stmt> make_stmt(Stmt::Kind kind) const {
    auto stmt = std::make_unique<Stmt>();
    stmt->kind = kind;
    stmt->line = line();
    return stmt;
  }

  // Up to a tag whose name is in `ends`, of which {% and the name are read, or the template's end.
  Block parse_block(const std::vector<std::string>& ends) {
    const Depth depth(*this);
    Block block;
    for (;;) {
      const Token& token = current();
      if (token.kind == Kind::kEnd) {
        if (!ends.empty()) fail_expected("{% " + ends.back() + " %}");
        return block;
      }
      if (token.kind == Kind::kText) {
        block.push_back(make_stmt(Stmt::Kind::kText));
        block.back()->text = take().text;
      } else if (token.kind == Kind::kOutputBegin) {
        block.push_back(make_stmt(Stmt::Kind::kOutput));
        take();
        block.back()->expr = parse_tuple();
        expect(Kind::kOutputEnd, "}}");
      } else {
        take();  // {%
        if (current().kind != Kind::kName) fail_expected("the name of a tag");
        if (std::find(ends.begin(), ends.end(), current().text) != ends.end()) {
          end_name_ = take().text;
          return block;
        }
        parse_tag(block);
      }
    }
  }

  void parse_tag(Block& block) {
    const std::string name = current().text;
    if (name == "if") {
      block.push_back(parse_if());
    } else if (name == "for") {
      block.push_back(parse_for());
    } else if (name == "set") {
      block.push_back(parse_set());
    } else if (name == "macro") {
      block.push_back(parse_macro());
    } else if (name == "with") {
      block.push_back(parse_with());
    } else if (name == "filter") {
      block.push_back(parse_filter_block());
    } else if (name == "break" || name == "continue") {
      if (loops_ == 0) fail(name + " outside of a for");
      block.push_back(make_stmt(name == "break" ? Stmt::Kind::kBreak : Stmt::Kind::kContinue));
      take();
      end_tag();
    } else if (name == "generation") {
      // transformers marks the model's own words with it; the text is the same.
      take();
      end_tag();
      Block body = parse_block({"endgeneration"});
      end_tag();
      std::move(body.begin(), body.end(), std::back_inserter(block));
    } else if (name.starts_with("end") || name == "else" || name == "elif") {
      fail("{% " + name + " %} without its beginning");
    } else {
      fail_unsupported(
          where_, line(),
          "the tag " + tok::in_quotes(name) + " is not supported; supported: " + kTags);
    }
  }

  std::unique_ptr<Stmt> parse_if() {
    auto stmt = make_stmt(Stmt::Kind::kIf);
    take();
    bool is_else = false;
    do {
      ExprPtr condition = is_else ? nullptr : parse_tuple(/*conditional=*/false);
      end_tag();
      Block body = is_else ? parse_block({"endif"}) : parse_block({"elif", "else", "endif"});
      stmt->branches.emplace_back(std::move(condition), std::move(body));
      is_else = end_name_ == "else";
    } while (end_name_ != "endif");
    end_tag();
    return stmt;
  }

  std::unique_ptr<Stmt> parse_for() {
    auto stmt = make_stmt(Stmt::Kind::kFor);
    take();
    stmt->target = parse_target(/*may_be_field=*/false);
    expect_name("in");
    stmt->expr = parse_tuple(/*conditional=*/false);
    if (skip_name("if")) stmt->condition = parse_expr();
    if (is_name("recursive")) {
      fail_unsupported(where_, line(), "\"recursive\" loops are not supported");
    }
    end_tag();
    ++loops_;
    stmt->body = parse_block({"endfor", "else"});
    --loops_;
    if (end_name_ == "else") {
      end_tag();
      stmt->otherwise = parse_block({"endfor"});
    }
    end_tag();
    return stmt;
  }

  Target parse_target(bool may_be_field) {
    Target target;
    const bool parenthesis = skip_op("(");
    target.names.push_back(take_identifier());
    if (may_be_field && !parenthesis && skip_op(".")) {
      target.field = take_identifier();
      return target;
    }
    while (skip_op(",")) {
      target.is_tuple = true;
      if (current().kind != Kind::kName || is_name("in")) break;
      target.names.push_back(take_identifier());
    }
    if (parenthesis) expect_op(")");
    return target;
  }

  std::unique_ptr<Stmt> parse_set() {
    auto stmt = make_stmt(Stmt::Kind::kSet);
    take();
    stmt->target = parse_target(/*may_be_field=*/true);
    if (skip_op("=")) {
      stmt->expr = parse_tuple();
      end_tag();
      return stmt;
    }
    stmt->kind = Stmt::Kind::kSetBlock;
    stmt->expr = parse_filters(make_expr(Expr::Kind::kName, {}));
    end_tag();
    stmt->body = parse_block({"endset"});
    end_tag();
    return stmt;
  }

  std::unique_ptr<Stmt> parse_filter_block() {
    auto stmt = make_stmt(Stmt::Kind::kFilter);
    take();
    stmt->expr = parse_filter(make_expr(Expr::Kind::kName, {}));
    stmt->expr = parse_filters(std::move(stmt->expr));
    end_tag();
    stmt->body = parse_block({"endfilter"});
    end_tag();
    return stmt;
  }

  std::unique_ptr<Stmt> parse_macro() {
    auto stmt = make_stmt(Stmt::Kind::kMacro);
    take();
    stmt->name = take_identifier();
    expect_op("(");
    while (!is_op(")")) {
      if (!stmt->parameters.empty()) expect_op(",");
      const std::string parameter = take_identifier();
      ExprPtr otherwise = skip_op("=") ? parse_expr() : nullptr;
      if (otherwise == nullptr && !stmt->parameters.empty() && stmt->parameters.back().second) {
        fail("a parameter without a default behind one with a default");
      }
      stmt->parameters.emplace_back(parameter, std::move(otherwise));
    }
    take();
    end_tag();
    // A break inside of a macro has nothing to do with the loop around its definition.
    const int loops = std::exchange(loops_, 0);
    stmt->body = parse_block({"endmacro"});
    loops_ = loops;
    end_tag();
    return stmt;
  }

  std::unique_ptr<Stmt> parse_with() {
    auto stmt = make_stmt(Stmt::Kind::kScope);
    take();
    while (current().kind != Kind::kBlockEnd) {
      if (!stmt->parameters.empty()) expect_op(",");
      std::string name = take_identifier();
      expect_op("=");
      stmt->parameters.emplace_back(std::move(name), parse_expr());
    }
    end_tag();
    stmt->body = parse_block({"endwith"});
    end_tag();
    return stmt;
  }

  // ---- expressions, from the loosest operator to the tightest

  template <class... Children>
  ExprPtr make_expr(Expr::Kind kind, std::string name, Children... children) const {
    auto expr = std::make_unique<Expr>();
    expr->kind = kind;
    expr->line = line();
    expr->name = std::move(name);
    (expr->children.push_back(std::move(children)), ...);
    return finish(std::move(expr));
  }

  // To be called again where children or arguments were added.
  ExprPtr finish(ExprPtr expr) const {
    const auto count = [&](const ExprPtr& child) {
      if (child) expr->depth = std::max(expr->depth, child->depth + 1);
    };
    for (const ExprPtr& child : expr->children) count(child);
    for (const ExprPtr& argument : expr->arguments.positional) count(argument);
    for (const auto& [name, argument] : expr->arguments.named) count(argument);
    if (expr->depth > kMaxTreeDepth) {
      fail_unsupported(where_, expr->line,
                       "an expression of more than " + std::to_string(kMaxTreeDepth) +
                           " operators within each other");
    }
    return expr;
  }
  ExprPtr make_constant(Value value) const {
    ExprPtr expr = make_expr(Expr::Kind::kConstant, {});
    expr->constant = std::move(value);
    return expr;
  }

  bool at_expression_end() const {
    return current().kind == Kind::kBlockEnd || current().kind == Kind::kOutputEnd || is_op(")") ||
           is_name("in");
  }

  // One expression, or several with commas between them: a tuple.
  ExprPtr parse_tuple(bool conditional = true) {
    ExprPtr first = conditional ? parse_expr() : parse_or();
    if (!is_op(",")) return first;
    ExprPtr tuple = make_expr(Expr::Kind::kTuple, {}, std::move(first));
    while (skip_op(",")) {
      if (at_expression_end()) break;
      tuple->children.push_back(conditional ? parse_expr() : parse_or());
    }
    return finish(std::move(tuple));
  }

  ExprPtr parse_expr() {
    const Depth depth(*this);
    ExprPtr expr = parse_or();
    while (skip_name("if")) {
      ExprPtr condition = parse_or();
      ExprPtr otherwise = skip_name("else") ? parse_expr() : nullptr;
      expr = make_expr(Expr::Kind::kConditional, {}, std::move(expr), std::move(condition),
                       std::move(otherwise));
    }
    return expr;
  }

  ExprPtr parse_or() {
    ExprPtr left = parse_and();
    while (skip_name("or")) {
      left = make_expr(Expr::Kind::kOr, {}, std::move(left), parse_and());
    }
    return left;
  }

  ExprPtr parse_and() {
    ExprPtr left = parse_not();
    while (skip_name("and")) {
      left = make_expr(Expr::Kind::kAnd, {}, std::move(left), parse_not());
    }
    return left;
  }

  ExprPtr parse_not() {
    const Depth depth(*this);
    if (skip_name("not")) return make_expr(Expr::Kind::kNot, {}, parse_not());
    return parse_compare();
  }

  bool take_compare_op(CompareOp& op) {
    constexpr std::array<std::pair<const char*, CompareOp>, 6> kOps = {{{"==", CompareOp::kEq},
                                                                        {"!=", CompareOp::kNe},
                                                                        {"<", CompareOp::kLt},
                                                                        {"<=", CompareOp::kLe},
                                                                        {">", CompareOp::kGt},
                                                                        {">=", CompareOp::kGe}}};
    for (const auto& [text, value] : kOps) {
      if (skip_op(text)) {
        op = value;
        return true;
      }
    }
    if (skip_name("in")) {
      op = CompareOp::kIn;
      return true;
    }
    if (is_name("not") && next().kind == Kind::kName && next().text == "in") {
      take();
      take();
      op = CompareOp::kNotIn;
      return true;
    }
    return false;
  }

  ExprPtr parse_compare() {
    ExprPtr left = parse_sum();
    CompareOp op = CompareOp::kEq;
    if (!take_compare_op(op)) return left;
    ExprPtr expr = make_expr(Expr::Kind::kCompare, {}, std::move(left));
    do {
      expr->compare_ops.push_back(op);
      expr->children.push_back(parse_sum());
    } while (take_compare_op(op));
    return finish(std::move(expr));
  }

  ExprPtr make_binary(BinaryOp op, ExprPtr left, ExprPtr right) const {
    ExprPtr expr = make_expr(Expr::Kind::kBinary, {}, std::move(left), std::move(right));
    expr->binary_op = op;
    return expr;
  }

  ExprPtr parse_sum() {
    ExprPtr left = parse_concat();
    for (;;) {
      const BinaryOp op = is_op("+") ? BinaryOp::kAdd : BinaryOp::kSub;
      if (!skip_op("+") && !skip_op("-")) return left;
      left = make_binary(op, std::move(left), parse_concat());
    }
  }

  ExprPtr parse_concat() {
    ExprPtr first = parse_product();
    if (!is_op("~")) return first;
    ExprPtr expr = make_expr(Expr::Kind::kConcat, {}, std::move(first));
    while (skip_op("~")) expr->children.push_back(parse_product());
    return finish(std::move(expr));
  }

  ExprPtr parse_product() {
    constexpr std::array<std::pair<const char*, BinaryOp>, 4> kOps = {{{"*", BinaryOp::kMul},
                                                                       {"/", BinaryOp::kDiv},
                                                                       {"//", BinaryOp::kFloorDiv},
                                                                       {"%", BinaryOp::kMod}}};
    ExprPtr left = parse_power();
    for (;;) {
      const auto* op = std::find_if(kOps.begin(), kOps.end(),
                                    [&](const auto& known) { return is_op(known.first); });
      if (op == kOps.end()) return left;
      take();
      left = make_binary(op->second, std::move(left), parse_power());
    }
  }

  // As in Jinja, a chain of powers is taken from the left.
  ExprPtr parse_power() {
    ExprPtr left = parse_unary(/*with_filters=*/true);
    while (skip_op("**")) {
      left = make_binary(BinaryOp::kPow, std::move(left), parse_unary(/*with_filters=*/true));
    }
    return left;
  }

  ExprPtr parse_unary(bool with_filters) {
    const Depth depth(*this);
    ExprPtr expr;
    if (skip_op("-")) {
      expr = make_expr(Expr::Kind::kNegative, {}, parse_unary(/*with_filters=*/false));
    } else if (skip_op("+")) {
      expr = make_expr(Expr::Kind::kPositive, {}, parse_unary(/*with_filters=*/false));
    } else {
      expr = parse_primary();
    }
    expr = parse_postfix(std::move(expr));
    return with_filters ? parse_filters(std::move(expr)) : std::move(expr);
  }

  ExprPtr parse_primary() {
    const Token& token = current();
    switch (token.kind) {
      case Kind::kName: {
        const std::string& name = token.text;
        if (name == "true" || name == "True") return take(), make_constant({true});
        if (name == "false" || name == "False") return take(), make_constant({false});
        if (name == "none" || name == "None") return take(), make_constant({None{}});
        ExprPtr expr = make_expr(Expr::Kind::kName, {});
        expr->name = take_identifier();
        return expr;
      }
      case Kind::kString: {
        std::string text;
        while (current().kind == Kind::kString) text += take().text;
        return make_constant(make_text(text));
      }
      case Kind::kInteger:
        return make_constant({take().integer});
      case Kind::kFloat:
        return make_constant({take().number});
      case Kind::kOperator:
        if (is_op("(")) return parse_parentheses();
        if (is_op("[")) return parse_list();
        if (is_op("{")) return parse_dict();
        [[fallthrough]];
      default:
        fail_expected("an expression");
    }
  }

  ExprPtr parse_parentheses() {
    take();
    if (skip_op(")")) return make_expr(Expr::Kind::kTuple, {});
    ExprPtr expr = parse_tuple();
    expect_op(")");
    return expr;
  }

  ExprPtr parse_list() {
    ExprPtr list = make_expr(Expr::Kind::kList, {});
    take();
    while (!is_op("]")) {
      if (!list->children.empty()) expect_op(",");
      if (is_op("]")) break;
      list->children.push_back(parse_expr());
    }
    take();
    return finish(std::move(list));
  }

  ExprPtr parse_dict() {
    ExprPtr dict = make_expr(Expr::Kind::kDict, {});
    take();
    while (!is_op("}")) {
      if (!dict->children.empty()) expect_op(",");
      if (is_op("}")) break;
      dict->children.push_back(parse_expr());
      expect_op(":");
      dict->children.push_back(parse_expr());
    }
    take();
    return finish(std::move(dict));
  }

  ExprPtr parse_postfix(ExprPtr expr) {
    for (;;) {
      if (is_op(".")) {
        expr = parse_attribute(std::move(expr));
      } else if (is_op("[")) {
        expr = parse_subscript(std::move(expr));
      } else if (is_op("(")) {
        expr = parse_call(std::move(expr));
      } else {
        return expr;
      }
    }
  }

  ExprPtr parse_attribute(ExprPtr object) {
    take();
    if (current().kind == Kind::kInteger) {
      ExprPtr index = make_constant({take().integer});
      return make_expr(Expr::Kind::kItem, {}, std::move(object), std::move(index));
    }
    if (current().kind != Kind::kName) fail_expected("the name of an attribute");
    ExprPtr expr = make_expr(Expr::Kind::kAttribute, current().text, std::move(object));
    take();
    return expr;
  }

  ExprPtr parse_subscript(ExprPtr object) {
    take();
    ExprPtr begin = is_op(":") ? nullptr : parse_expr();
    if (skip_op("]")) {
      return make_expr(Expr::Kind::kItem, {}, std::move(object), std::move(begin));
    }
    expect_op(":");
    ExprPtr end = is_op(":") || is_op("]") ? nullptr : parse_expr();
    ExprPtr step = skip_op(":") && !is_op("]") ? parse_expr() : nullptr;
    expect_op("]");
    return make_expr(Expr::Kind::kSlice, {}, std::move(object), std::move(begin), std::move(end),
                     std::move(step));
  }

  CallArguments parse_arguments() {
    CallArguments arguments;
    take();
    bool first = true;
    while (!is_op(")")) {
      if (!std::exchange(first, false)) expect_op(",");
      if (is_op(")")) break;
      if (is_op("*") || is_op("**")) {
        fail_unsupported(where_, line(), "arguments with * are not supported");
      }
      if (current().kind == Kind::kName && next().kind == Kind::kOperator && next().text == "=") {
        std::string name = take().text;
        take();
        arguments.named.emplace_back(std::move(name), parse_expr());
      } else {
        if (!arguments.named.empty()) fail("an argument without a name behind one with a name");
        arguments.positional.push_back(parse_expr());
      }
    }
    take();
    return arguments;
  }

  ExprPtr parse_call(ExprPtr function) {
    ExprPtr expr = make_expr(Expr::Kind::kCall, {}, std::move(function));
    expr->arguments = parse_arguments();
    return finish(std::move(expr));
  }

  // Filters, tests, and calls of what they give.
  ExprPtr parse_filters(ExprPtr expr) {
    for (;;) {
      if (skip_op("|")) {
        expr = parse_filter(std::move(expr));
      } else if (skip_name("is")) {
        expr = parse_test(std::move(expr));
      } else if (is_op("(")) {
        expr = parse_call(std::move(expr));
      } else {
        return expr;
      }
    }
  }

  ExprPtr parse_filter(ExprPtr expr) {
    if (current().kind != Kind::kName) fail_expected("the name of a filter");
    if (!is_known_filter(current().text)) {
      fail_unsupported(where_, line(),
                       "the filter " + tok::in_quotes(current().text) +
                           " is not supported; supported: " + known_filters());
    }
    ExprPtr filter = make_expr(Expr::Kind::kFilter, current().text, std::move(expr));
    take();
    if (is_op("(")) filter->arguments = parse_arguments();
    return finish(std::move(filter));
  }

  ExprPtr parse_test(ExprPtr expr) {
    const bool negated = skip_name("not");
    if (current().kind != Kind::kName) fail_expected("the name of a test");
    if (!is_known_test(current().text)) {
      fail_unsupported(where_, line(),
                       "the test " + tok::in_quotes(current().text) +
                           " is not supported; supported: " + known_tests());
    }
    ExprPtr test = make_expr(Expr::Kind::kTest, current().text, std::move(expr));
    take();
    const Kind kind = current().kind;
    if (is_op("(")) {
      test->arguments = parse_arguments();
    } else if (kind == Kind::kString || kind == Kind::kInteger || kind == Kind::kFloat ||
               is_op("[") || is_op("{") ||
               (kind == Kind::kName && !is_name("else") && !is_name("or") && !is_name("and") &&
                !is_name("if") && !is_name("is") && !is_name("in") && !is_name("not"))) {
      test->arguments.positional.push_back(parse_postfix(parse_primary()));
    }
    test = finish(std::move(test));
    return negated ? make_expr(Expr::Kind::kNot, {}, std::move(test)) : std::move(test);
  }

  std::vector<Token> tokens_;
  const std::string& where_;
  size_t at_ = 0;
  int depth_ = 0;
  int loops_ = 0;
  std::string end_name_;  // of the tag that ended the last block
};

}  // namespace

Block parse_template(std::string_view source, const std::string& where) {
  return Parser(source, where).run();
}

}  // namespace edgellm::jinja
