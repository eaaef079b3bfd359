// /api/pull: a model of the Hugging Face Hub, downloaded, converted and served from then on.
#include <string_view>
#include <utility>

#include "apps/common/terminal.h"
#include "apps/fetch/pull_model.h"
#include "apps/requests/openai_answer.h"
#include "apps/serve/api.h"
#include "base/clock.h"

namespace edgellm::serve {
namespace {

// Nobody reads the answer any more.
struct ClientGone {};

// Between two lines about the progress of one step.
constexpr int64_t kIntervalNs = 250'000'000;

// A pull whose progress is lines of JSON, as Ollama has them.
class StreamedPull {
 public:
  using Line = std::function<void(const OrderedJson&)>;

  // `check` throws where the pull is to end.
  StreamedPull(PullRequest request, Line line, std::function<void()> check)
      : request_(std::move(request)), line_(std::move(line)), check_(std::move(check)) {}

  PulledModel run() {
    line_({{"status", "pulling manifest"}});
    return pull_model(
        request_, {.note = [](std::string_view) {},
                   .on_download =
                       [this](const hub::DownloadState& state) {
                         step("pulling " + state.file, state.done, state.total);
                       },
                   .on_conversion = [this](std::string_view, uint64_t done,
                                           uint64_t total) { step("converting", done, total); }});
  }

 private:
  void step(const std::string& status, uint64_t done, uint64_t total) {
    check_();
    const int64_t now = now_ns();
    if (status == last_status_ && now < next_at_) return;
    last_status_ = status;
    next_at_ = now + kIntervalNs;
    // Ollama's front ends draw a bar for each digest.
    line_({{"status", status}, {"digest", request_.model}, {"total", total}, {"completed", done}});
  }

  const PullRequest request_;
  const Line line_;
  const std::function<void()> check_;
  std::string last_status_;
  int64_t next_at_ = 0;
};

PullRequest read_pull(const Fields& body) {
  require_known_names(body, {"model", "name", "file", "stream", "insecure"});
  if (body.has("insecure") && body.boolean("insecure")) {
    body.fail("insecure is not supported; leave it out");
  }
  PullRequest request;
  request.model = hub_reference(body.text(body.has("model") ? "model" : "name"));
  if (body.has("file")) request.file = body.text("file");
  hub::parse_reference(request.model);
  return request;
}

}  // namespace

HttpResponse Api::ollama_pull(const HttpRequest& request) {
  const Json json = parse_body(request);
  const Fields body = fields_of(json);
  const PullRequest wanted = read_pull(body);
  if (!options_.may_pull) {
    throw ApiError(403, "pull_not_allowed",
                   "this server downloads no models; start it with --allow-pull, or type: edgellm "
                   "pull " +
                       wanted.model);
  }
  const auto pull = [this, wanted](const StreamedPull::Line& line, const Client* client) {
    const PulledModel model = StreamedPull(wanted, line, [this, client] {
                                if (is_draining_)
                                  throw ApiError(503, "shutting_down", "the server ends");
                                if (client != nullptr && client->has_gone()) throw ClientGone();
                              }).run();
    models_.add(model.path);
    line({{"status", "success"}});
  };
  if (body.has("stream") && !body.boolean("stream")) {
    OrderedJson last;
    try {
      pull([&](const OrderedJson& line) { last = line; }, request.client);
    } catch (const ClientGone&) {  // nobody reads what is answered
    }
    return json_response(last);
  }
  HttpResponse response = {.content_type = "application/x-ndjson"};
  response.stream = [pull](const StreamWriter& writer) {
    try {
      const auto line = [&](const OrderedJson& one) {
        if (!writer(json_line(one))) throw ClientGone();
      };
      pull(line, nullptr);
    } catch (const ClientGone&) {
    } catch (const ApiError& error) {
      writer(error_json(error, ErrorForm::kOllama));
    } catch (const Error& error) {
      writer(error_json(api_error(error.code(), error.what()), ErrorForm::kOllama));
    }
  };
  return response;
}

}  // namespace edgellm::serve
