#include "tokenizer/chat_template.h"

#include "base/error.h"
#include "tokenizer/jinja/interpreter.h"
#include "tokenizer/jinja/parser.h"

namespace edgellm {

using namespace jinja;

namespace {

Value message_value(const ChatMessage& message) {
  return make_dict({{make_text("role"), make_text(message.role)},
                    {make_text("content"), make_text(Text(message.content, Origin::kMessage))}});
}

std::vector<TextRange> message_ranges(const Text& text) {
  std::vector<TextRange> ranges;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text.origin(i) != Origin::kMessage) continue;
    if (ranges.empty() || ranges.back().end != i) ranges.push_back({i, i});
    ranges.back().end = i + 1;
  }
  return ranges;
}

std::tm local_time() {
  const std::time_t now = std::time(nullptr);
  std::tm result = {};
  localtime_r(&now, &result);
  return result;
}

}  // namespace

struct ChatTemplate::Impl {
  std::string where;
  Block block;
};

ChatTemplate::ChatTemplate(std::string_view source, const std::string& where) {
  // Published templates have at most 30 kB.
  constexpr size_t kMaxBytes = size_t{1} << 20;
  if (source.size() > kMaxBytes) {
    throw Error(ExitCode::kUnsupported, where + " has " + std::to_string(source.size()) +
                                            " bytes, supported are at most " +
                                            std::to_string(kMaxBytes));
  }
  if (find_invalid_utf8(source) != std::string::npos) {
    throw Error(ExitCode::kModelFile, where + " is not UTF-8 text");
  }
  impl_ = std::make_unique<const Impl>(Impl{where, parse_template(source, where)});
}

ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;
ChatTemplate::~ChatTemplate() = default;

ChatText ChatTemplate::render(std::span<const ChatMessage> messages, bool add_generation_prompt,
                              const SpecialTokens& special_tokens,
                              const std::optional<std::tm>& now) const {
  std::vector<Value> list;
  for (const ChatMessage& message : messages) {
    if (find_invalid_utf8(message.content) != std::string::npos) {
      throw Error(ExitCode::kUsage, "a message of the role " + message.role +
                                        " is not UTF-8; convert it first, for example with "
                                        "iconv -t UTF-8");
    }
    list.push_back(message_value(message));
  }
  Fields variables = {{"messages", make_list(std::move(list))},
                      {"tools", {None{}}},
                      {"documents", {None{}}},
                      {"add_generation_prompt", {add_generation_prompt}}};
  for (const auto& [name, text] : special_tokens) variables.emplace_back(name, make_text(text));
  const std::tm time = now ? *now : local_time();
  Interpreter interpreter(impl_->where, time);
  const Text text = interpreter.render(impl_->block, std::move(variables));
  return {text.bytes(), message_ranges(text)};
}

}  // namespace edgellm
