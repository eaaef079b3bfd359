// What ends a request with another status than 200.
#pragma once

#include <optional>
#include <stdexcept>
#include <string>

#include "apps/serve/http_server.h"
#include "base/error.h"

namespace edgellm::serve {

struct ApiError : std::runtime_error {
  ApiError(int http_status, std::string error_code, const std::string& message)
      : std::runtime_error(message), status(http_status), code(std::move(error_code)) {}

  int status;
  std::string code;  // "model_not_found", ...
  std::optional<int> retry_after_seconds = {};
};

// Of an Error, of a failed sequence.
ApiError api_error(ExitCode code, const std::string& message);

// The status alone says what is wrong: 404, 405, 413, ...
ApiError plain_error(int status);

// {"error": {"message", "type", "param", "code"}} as OpenAI has it, {"error": "text"} as Ollama.
enum class ErrorForm { kOpenAi, kOllama };
std::string error_json(const ApiError& error, ErrorForm form);
HttpResponse error_response(const ApiError& error, ErrorForm form);

}  // namespace edgellm::serve
