// The reader of chat templates, and what they make of a conversation.
//
// An input is the template, a zero byte, then messages: a byte for the role, the content, a zero
// byte.
#include "tests/fuzz/fuzz.h"
#include "tokenizer/chat_template.h"
#include "tokenizer/text_stream.h"

namespace edgellm::fuzz {
namespace {

void check(const ChatText& made) {
  size_t at = 0;
  for (const TextRange& range : made.contents) {
    if (range.begin < at || range.end < range.begin || range.end > made.text.size()) {
      throw std::logic_error("contents that are out of order");
    }
    at = range.end;
  }
  if (find_invalid_utf8(made.text) != std::string::npos) {
    throw std::logic_error("a prompt that is not UTF-8");
  }
}

}  // namespace
}  // namespace edgellm::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace edgellm;
  fuzz::Input input(data, size);
  const std::string_view source = input.text();
  std::vector<ChatMessage> messages;
  while (!input.at_end() && messages.size() < 8) {
    constexpr const char* kRoles[] = {"system", "user", "assistant"};
    const char* role = kRoles[static_cast<uint8_t>(input.byte()) % 3];
    messages.push_back({role, std::string(input.text())});
  }
  fuzz::may_refuse([&] {
    const ChatTemplate chat(source, "chat_template");
    for (const bool add_generation_prompt : {false, true}) {
      fuzz::may_refuse([&] {
        fuzz::check(chat.render(messages, add_generation_prompt,
                                {{"bos_token", "<s>"}, {"eos_token", "</s>"}}, std::tm{}));
      });
    }
  });
  return 0;
}
