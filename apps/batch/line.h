// A line of a batch's input, as docs/batch.md describes it: OpenAI's batch form, or the short one.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "apps/requests/request.h"
#include "base/json.h"

namespace edgellm {

struct BatchDefaults : RequestDefaults {
  bool chat = false;  // a prompt without a url is a message
};

// A line whose JSON is good, and the id in it, so that a request with a fault goes by its id.
struct BatchLine {
  Json json;
  std::optional<std::string> id;
};

// `where` is how messages call the line: "line 12". These throw Error (kUsage) with one line
// that names the field, and nothing else.
BatchLine parse_batch_line(std::string_view text, const std::string& where);
AnswerRequest read_batch_request(const BatchLine& line, const BatchDefaults& defaults,
                                 const std::string& where);

// A line of --text.
AnswerRequest text_request(const std::string& text, const BatchDefaults& defaults,
                           const std::string& where);

}  // namespace edgellm
