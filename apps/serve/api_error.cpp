#include "apps/serve/api_error.h"

#include "apps/common/terminal.h"
#include "apps/requests/openai_answer.h"

namespace edgellm::serve {
namespace {

// OpenAI's names for kinds of errors.
const char* type_of(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 429:
      return "rate_limit_error";
    default:
      return status >= 500 ? "server_error" : "invalid_request_error";
  }
}

}  // namespace

ApiError api_error(ExitCode code, const std::string& message) {
  // OpenAI's code, which clients know.
  if (code == ExitCode::kPromptDoesNotFit) return {400, "context_length_exceeded", message};
  const RequestError error = request_error(code, message);
  return {error.is_ours ? 500 : 400, error.code, error.message};
}

ApiError plain_error(int status) {
  switch (status) {
    case 404:
      return {404, "not_found", "no such path; see GET / for what there is"};
    case 405:
      return {405, "method_not_allowed", "the path does not take this method"};
    case 408:
      return {408, "request_timeout", "the request did not come in time"};
    case 413:
      return {413, "request_too_large", "the body is larger than this server takes (8 MiB)"};
    case 414:
      return {414, "uri_too_long", "the address is too long"};
    case 415:
      return {415, "unsupported_media_type", "send the body as it is, without Content-Encoding"};
    case 500:
      return {500, "internal_error", "internal error; the server's log says more"};
    default:
      return {status, "bad_request", "not a whole HTTP request"};
  }
}

std::string error_json(const ApiError& error, ErrorForm form) {
  if (form == ErrorForm::kOllama) return json_line({{"error", error.what()}});
  return json_line({{"error",
                     {{"message", error.what()},
                      {"type", type_of(error.status)},
                      {"param", nullptr},
                      {"code", error.code}}}});
}

HttpResponse error_response(const ApiError& error, ErrorForm form) {
  HttpResponse response = {.status = error.status, .body = error_json(error, form)};
  if (error.retry_after_seconds) {
    response.headers.emplace_back("Retry-After", std::to_string(*error.retry_after_seconds));
  }
  if (error.status == 401) response.headers.emplace_back("WWW-Authenticate", "Bearer");
  return response;
}

}  // namespace edgellm::serve
