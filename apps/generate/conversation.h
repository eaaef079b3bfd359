// A conversation with a model. Every turn's prompt is the whole conversation; what of it the KV
// cache holds already is not computed again.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "apps/session/chat_prompt.h"
#include "engine/generate.h"

namespace edgellm {

class Conversation {
 public:
  // `prompt` must outlive the object.
  Conversation(const ChatPrompt& prompt, std::optional<std::string> system);

  // Another system message, also for what was said before. An empty text is none.
  void set_system(const std::string& text);
  const std::optional<std::string>& system() const { return system_; }

  // Forgets all messages but the system's. The cache stays good for what begins the same.
  void clear();

  // The user's next message. Leaves prompt_ids() and n_cached() for generate(). Where the template
  // refuses it (Error), the conversation is as before.
  void ask(const std::string& message);

  std::span<const int32_t> prompt_ids() const { return prompt_ids_; }
  int n_cached() const { return n_cached_; }

  // What generate() gave, and the text of it that was shown.
  void answered(const GenerateResult& result, std::span<const int32_t> stop_ids,
                const std::string& text);

  // Takes the message back that no generate() followed.
  void take_back();

  // ask() for the last message once more, without its answer. Error (kUsage) where there is none.
  void ask_again();

  // All that was said, the system message included.
  std::vector<ChatMessage> messages() const;

  // Another conversation in place of this one. As messages() gives it, ending with an answer.
  void replace(std::vector<ChatMessage> messages);

 private:
  // Adds the system's. May change how the last answer of `messages` is written (see the .cpp).
  ChatText render(std::vector<ChatMessage>& messages) const;

  const ChatPrompt& prompt_;
  std::optional<std::string> system_;
  std::vector<ChatMessage> messages_;  // without the system's
  std::vector<int32_t> prompt_ids_;
  int n_cached_ = 0;
  std::vector<int32_t> cached_ids_;  // what the cache holds

  // The last prompt with its answer, as text and as the ids that the model saw and made. Encoding
  // the text again might give other ids than the model chose.
  std::string last_text_;
  std::vector<int32_t> last_ids_;
  std::string prompt_text_;
  // The same before the last turn, for ask_again().
  std::string earlier_text_;
  std::vector<int32_t> earlier_ids_;
};

}  // namespace edgellm
