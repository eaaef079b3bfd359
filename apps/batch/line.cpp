#include "apps/batch/line.h"

#include "apps/session/chat_prompt.h"
#include "apps/session/prompt.h"
#include "base/error.h"

namespace edgellm {
namespace {

// An id stands in its record twice, and in messages.
constexpr size_t kMaxIdBytes = 1024;

std::optional<std::string> read_id(const Fields& fields) {
  const bool both = fields.has("id") && fields.has("custom_id");
  if (both) fields.fail("has both id and custom_id; one of them names the request");
  const Json* id = fields.find(fields.has("id") ? "id" : "custom_id");
  if (id == nullptr) return std::nullopt;
  if (id->is_number_integer()) return id->dump();
  const std::string* text = id->get_ptr<const std::string*>();
  if (text != nullptr && text->size() > kMaxIdBytes) {
    fields.fail(std::string(fields.has("id") ? "id" : "custom_id") + " has " +
                std::to_string(text->size()) + " bytes; expected at most " +
                std::to_string(kMaxIdBytes));
  }
  if (text != nullptr && !text->empty()) return *text;
  fields.fail(std::string(fields.has("id") ? "id" : "custom_id") + " is " + value_text(*id) +
              ", expected a text that is not empty");
}

void make_chat(AnswerRequest& request, const BatchDefaults& defaults, const std::string& message) {
  request.prompts.clear();
  request.is_chat = true;
  request.messages = first_messages(defaults.system, message);
}

AnswerRequest read_openai_form(const Fields& fields, const BatchDefaults& defaults) {
  require_known_names(fields, {"custom_id", "id", "method", "url", "body"});
  if (fields.has("method") && fields.text("method") != "POST") {
    fields.fail("method is " + value_text(fields.get("method")) + ", expected \"POST\"");
  }
  const std::string url = fields.text("url");
  const bool is_chat = url == "/v1/chat/completions";
  if (!is_chat && url != "/v1/completions") {
    fields.fail("url is " + value_text(url) +
                ", expected \"/v1/chat/completions\" or \"/v1/completions\"");
  }
  return read_request_body(fields.object("body"), {.is_chat = is_chat}, defaults);
}

JsonSource line_source(const std::string& where) {
  return {.path = where, .blame = ExitCode::kUsage};
}

}  // namespace

BatchLine parse_batch_line(std::string_view text, const std::string& where) {
  BatchLine line;
  const JsonSource source = line_source(where);
  line.json = parse_json_object(text, source);
  line.id = read_id(Fields(line.json, source));
  return line;
}

AnswerRequest read_batch_request(const BatchLine& line, const BatchDefaults& defaults,
                                 const std::string& where) {
  const Fields fields(line.json, line_source(where));
  if (fields.has("body") || fields.has("url")) return read_openai_form(fields, defaults);
  if (fields.has("messages") == fields.has("prompt")) {
    fields.fail(
        "expected one of prompt and messages, or url and body as in OpenAI's batches (see edgellm "
        "batch --help)");
  }
  const bool is_chat = fields.has("messages");
  AnswerRequest request = read_request_body(
      fields, {.is_chat = is_chat, .own_names = {"id", "custom_id"}, .is_openai = false}, defaults);
  if (defaults.chat && !is_chat) {
    const std::string text = request.prompts.front().text;
    if (text.empty()) fields.fail("prompt holds token ids, and --chat takes text");
    make_chat(request, defaults, text);
  }
  return request;
}

AnswerRequest text_request(const std::string& text, const BatchDefaults& defaults,
                           const std::string& where) {
  require_utf8({text, where});
  AnswerRequest request = request_of(defaults);
  request.prompts = {{.text = text, .ids = {}}};
  if (defaults.chat) make_chat(request, defaults, text);
  return request;
}

}  // namespace edgellm
