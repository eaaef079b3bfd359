#include "apps/generate/conversation.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace edgellm {
namespace {

std::string without_leading_spaces(const std::string& text) {
  const size_t begin = text.find_first_not_of(" \t\r\n");
  return begin == std::string::npos ? "" : text.substr(begin);
}

}  // namespace

Conversation::Conversation(const ChatPrompt& prompt, std::optional<std::string> system)
    : prompt_(prompt), system_(std::move(system)) {}

void Conversation::set_system(const std::string& text) {
  system_ = text.empty() ? std::nullopt : std::optional(text);
}

void Conversation::clear() {
  messages_.clear();
  last_text_.clear();
  last_ids_.clear();
}

void Conversation::ask_again() {
  if (messages_.empty()) {
    throw Error(ExitCode::kUsage, "there is no answer yet; type a message first");
  }
  const std::string message = messages_[messages_.size() - 2].content;
  messages_.resize(messages_.size() - 2);
  last_text_ = earlier_text_;
  last_ids_ = earlier_ids_;
  ask(message);
}

std::vector<ChatMessage> Conversation::messages() const {
  std::vector<ChatMessage> all;
  if (system_) all.push_back({"system", *system_});
  all.insert(all.end(), messages_.begin(), messages_.end());
  return all;
}

void Conversation::replace(std::vector<ChatMessage> messages) {
  clear();
  earlier_text_.clear();
  earlier_ids_.clear();
  const bool has_system = !messages.empty() && messages.front().role == "system";
  system_ = has_system ? std::optional(messages.front().content) : std::nullopt;
  messages_.assign(messages.begin() + (has_system ? 1 : 0), messages.end());
}

ChatText Conversation::render(std::vector<ChatMessage>& messages) const {
  const auto render_with_system = [&] {
    std::vector<ChatMessage> all;
    if (system_) all.push_back({"system", *system_});
    all.insert(all.end(), messages.begin(), messages.end());
    return prompt_.render(all);
  };
  ChatText text = render_with_system();
  if (messages.size() < 2 || text.text.starts_with(last_text_)) return text;
  // Some templates write the space themselves with which this model began its answer.
  ChatMessage& answer = messages[messages.size() - 2];
  const std::string as_made = std::exchange(answer.content, without_leading_spaces(answer.content));
  ChatText other = render_with_system();
  if (other.text.starts_with(last_text_)) return other;
  answer.content = as_made;
  return text;
}

void Conversation::ask(const std::string& message) {
  std::vector<ChatMessage> messages = messages_;
  messages.push_back({"user", message});
  ChatText text = render(messages);
  if (!last_text_.empty() && text.text.starts_with(last_text_)) {
    prompt_ids_ = last_ids_;
    const std::vector<int32_t> rest = prompt_.encode(text, last_text_.size());
    prompt_ids_.insert(prompt_ids_.end(), rest.begin(), rest.end());
  } else {
    prompt_ids_ = prompt_.encode(text);
  }
  messages_ = std::move(messages);
  prompt_text_ = std::move(text.text);

  const auto differ =
      std::mismatch(prompt_ids_.begin(), prompt_ids_.end(), cached_ids_.begin(), cached_ids_.end());
  const auto n_same = differ.first - prompt_ids_.begin();
  // The last id is always fed: the answer begins with what comes out of it.
  n_cached_ = static_cast<int>(
      std::min<std::ptrdiff_t>(n_same, std::ssize(prompt_ids_) - (prompt_ids_.empty() ? 0 : 1)));
}

void Conversation::answered(const GenerateResult& result, std::span<const int32_t> stop_ids,
                            const std::string& text) {
  std::vector<int32_t> ids = prompt_ids_;
  ids.insert(ids.end(), result.token_ids.begin(), result.token_ids.end());
  cached_ids_.assign(ids.begin(), ids.begin() + result.n_cached);
  if (result.token_ids.empty()) {  // interrupted before the first token
    take_back();
    return;
  }
  // How the turn ends is the template's to write.
  earlier_text_ = last_text_;
  earlier_ids_ = last_ids_;
  const bool is_stop = std::find(stop_ids.begin(), stop_ids.end(), ids.back()) != stop_ids.end();
  if (is_stop) ids.pop_back();
  if (result.finish_reason == FinishReason::kStopString) {
    last_text_.clear();  // the ids say more than the text
  } else {
    last_text_ = prompt_text_ + text;
    last_ids_ = std::move(ids);
  }
  messages_.push_back({"assistant", text});
}

void Conversation::take_back() { messages_.pop_back(); }

}  // namespace edgellm
