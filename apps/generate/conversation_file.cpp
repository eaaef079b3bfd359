#include "apps/generate/conversation_file.h"

#include "apps/common/files.h"
#include "apps/common/terminal.h"
#include "base/json.h"
#include "base/output_file.h"

namespace edgellm {

void save_conversation(const std::vector<ChatMessage>& messages, const std::string& path) {
  auto list = nlohmann::ordered_json::array();
  for (const ChatMessage& message : messages) {
    list.push_back({{"role", message.role}, {"content", message.content}});
  }
  const std::string line = json_line({{"messages", list}});
  OutputFile file(path, OutputFile::Temporary::kUnique);
  file.write(line.data(), line.size());
  file.commit();
}

std::vector<ChatMessage> load_conversation(const std::string& path) {
  const JsonSource source = {.path = path, .blame = ExitCode::kUsage};
  const Json json = parse_json_object(read_input(path), source);
  const Fields fields(json, source);
  std::vector<ChatMessage> messages;
  std::string expected = "user";
  for (size_t i = 0; i < fields.array("messages").size(); ++i) {
    const Fields entry = fields.entry("messages", i);
    const std::string role = entry.text("role");
    if (role != expected && !(i == 0 && role == "system")) {
      entry.fail(entry.name("role") + " is " + value_text(role) + ", expected \"" + expected +
                 "\": a conversation is a system message, if any, then user and assistant in turn");
    }
    if (role != "system") expected = role == "user" ? "assistant" : "user";
    messages.push_back({role, entry.text("content")});
  }
  if (expected == "assistant") {
    fields.fail("the last message has no answer; expected one of the assistant at the end");
  }
  return messages;
}

}  // namespace edgellm
