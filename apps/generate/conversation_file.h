// A conversation as /save writes it and /load reads it: {"messages": [{"role", "content"}, ...]},
// as OpenAI's API has it, so that a line of `edgellm batch` can be made from one.
#pragma once

#include <string>
#include <vector>

#include "tokenizer/chat_template.h"

namespace edgellm {

// A system message, if there is one, then messages of the user and of the assistant in turn.
void save_conversation(const std::vector<ChatMessage>& messages, const std::string& path);

// Throws Error (kUsage) for a file that holds no such list, or one that does not end with an
// answer.
std::vector<ChatMessage> load_conversation(const std::string& path);

}  // namespace edgellm
