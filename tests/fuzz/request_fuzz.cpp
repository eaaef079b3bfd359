// The bodies of a server's requests: JSON, then the fields of OpenAI's two forms.
//
// An input is a byte that says which form, then the body.
#include "apps/requests/request.h"
#include "tests/fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace edgellm;
  fuzz::Input input(data, size);
  const bool is_chat = input.byte() % 2 == 1;
  RequestDefaults defaults;
  defaults.system = "s";
  fuzz::may_refuse([&] {
    const JsonSource source = {.path = "the request", .blame = ExitCode::kUsage};
    const Json json = parse_json_object(input.rest(), source);
    const AnswerRequest request =
        read_request_body(Fields(json, source), {.is_chat = is_chat, .is_served = true}, defaults);
    const bool has_prompt = request.is_chat ? !request.messages.empty() : !request.prompts.empty();
    if (!has_prompt || request.n < 1) throw std::logic_error("a request for nothing was read");
    for (const RequestPrompt& prompt : request.prompts) {
      if (prompt.text.empty() == prompt.ids.empty()) throw std::logic_error("not one prompt");
    }
  });
  return 0;
}
