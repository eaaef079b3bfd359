// /v1/embeddings as OpenAI has it, /api/embed and the older /api/embeddings as Ollama has them.
#include <openssl/evp.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "apps/requests/openai_answer.h"
#include "apps/serve/answer_run.h"
#include "apps/serve/api.h"
#include "base/clock.h"

namespace edgellm::serve {
namespace {

struct Embeddings {
  std::vector<std::vector<float>> vectors;
  size_t prompt_tokens = 0;
  int64_t load_ns = 0;
};

// What a request for embeddings has besides its texts.
struct EmbeddingForm {
  const char* key;            // of the texts
  bool may_truncate = false;  // texts that are too long lose their ends
  KeepAlive keep_alive;
};

Embeddings embed(const HttpRequest& request, const Fields& body, const EmbeddingForm& form,
                 ServedModel& model, Models& models, Clock::time_point until) {
  const Pooling pooling = body.has("pooling") ? pooling_of(body.text("pooling")) : model.pooling();
  const int dim = model.file().config().dim;
  if (body.has("dimensions") && body.integer("dimensions", 1, INT32_MAX) != dim) {
    body.fail("dimensions is " + value_text(body.get("dimensions")) +
              ", but embeddings of this model have " + std::to_string(dim));
  }
  std::vector<std::vector<int32_t>> prompts;
  Embeddings made;
  for (const RequestPrompt& prompt : read_prompts(body, form.key)) {
    std::vector<int32_t>& ids = prompts.emplace_back(model.prompts().ids_of(prompt));
    const auto most = static_cast<size_t>(model.context() - 1);
    if (form.may_truncate && ids.size() > most) ids.resize(most);
    made.prompt_tokens += ids.size();
  }
  const int64_t begin = now_ns();
  std::shared_ptr<LoadedModel> loaded = models.use(model, *request.client, until, form.keep_alive);
  made.load_ns = now_ns() - begin;
  AnswerRun run(std::move(loaded), std::move(prompts), pooling, *request.client, until);
  made.vectors.resize(run.request().n_choices());
  for (std::vector<Piece> pieces = run.next(); !pieces.empty(); pieces = run.next()) {
    for (Piece& piece : pieces) made.vectors[piece.choice] = std::move(piece.embedding);
  }
  return made;
}

// Of little-endian float32, as OpenAI's clients read them.
std::string base64_of(const std::vector<float>& values) {
  static_assert(std::endian::native == std::endian::little);
  std::vector<unsigned char> bytes(values.size() * sizeof(float));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  std::string text((bytes.size() + 2) / 3 * 4 + 1, '\0');
  const int n = EVP_EncodeBlock(reinterpret_cast<unsigned char*>(text.data()), bytes.data(),
                                static_cast<int>(bytes.size()));
  text.resize(static_cast<size_t>(n));
  return text;
}

}  // namespace

HttpResponse Api::embeddings(const HttpRequest& request) {
  const Json json = parse_body(request);
  const Fields body = fields_of(json);
  require_known_names(body, {"model", "input", "encoding_format", "dimensions", "user", "pooling"});
  ServedModel& model = model_of(body);
  const std::string encoding = body.has("encoding_format") ? body.text("encoding_format") : "float";
  if (encoding != "float" && encoding != "base64") {
    body.fail("encoding_format is " + value_text(encoding) + ", expected float or base64");
  }
  const Embeddings made = embed(request, body, {.key = "input", .keep_alive = models_.keep_alive()},
                                model, models_, deadline());
  OrderedJson data = OrderedJson::array();
  for (const std::vector<float>& values : made.vectors) {
    OrderedJson one = {{"object", "embedding"}, {"index", data.size()}};
    if (encoding == "float") {
      one["embedding"] = values;
    } else {
      one["embedding"] = base64_of(values);
    }
    data.push_back(std::move(one));
  }
  return json_response(
      {{"object", "list"},
       {"data", std::move(data)},
       {"model", model.name()},
       {"usage", {{"prompt_tokens", made.prompt_tokens}, {"total_tokens", made.prompt_tokens}}}});
}

HttpResponse Api::ollama_embed(const HttpRequest& request) {
  const int64_t begin = now_ns();
  const Json json = parse_body(request);
  const Fields body = fields_of(json);
  require_known_names(
      body, {"model", "input", "truncate", "options", "keep_alive", "dimensions", "pooling"});
  ServedModel& model = model_of(body);
  const EmbeddingForm form = {.key = "input",
                              .may_truncate = !body.has("truncate") || body.boolean("truncate"),
                              .keep_alive = read_keep_alive(body, models_.keep_alive())};
  const Embeddings made = embed(request, body, form, model, models_, deadline());
  return json_response({{"model", model.name()},
                        {"embeddings", made.vectors},
                        {"total_duration", now_ns() - begin},
                        {"load_duration", made.load_ns},
                        {"prompt_eval_count", made.prompt_tokens}});
}

HttpResponse Api::ollama_embeddings(const HttpRequest& request) {
  const Json json = parse_body(request);
  const Fields body = fields_of(json);
  require_known_names(body, {"model", "prompt", "options", "keep_alive", "pooling"});
  ServedModel& model = model_of(body);
  body.text("prompt");  // one text
  const EmbeddingForm form = {.key = "prompt",
                              .may_truncate = true,
                              .keep_alive = read_keep_alive(body, models_.keep_alive())};
  const Embeddings made = embed(request, body, form, model, models_, deadline());
  return json_response({{"embedding", made.vectors.front()}});
}

}  // namespace edgellm::serve
