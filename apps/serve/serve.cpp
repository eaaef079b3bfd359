// edgellm serve: the engine behind an address.
#include <memory>
#include <thread>

#include "apps/common/address.h"
#include "apps/common/environment.h"
#include "apps/common/line_log.h"
#include "apps/common/signals.h"
#include "apps/common/terminal.h"
#include "apps/common/text_format.h"
#include "apps/flags/flags.h"
#include "apps/serve/api.h"
#include "apps/serve/commands.h"
#include "apps/serve/flags.h"
#include "apps/serve/http_server.h"
#include "apps/serve/served_model.h"
#include "base/error.h"

namespace edgellm {
namespace {

using namespace serve;

ModelOptions model_options(const ServeFlags& flags) {
  return {.sequences = flags.sequences,
          .queue = flags.queue,
          .sampling = flags.sampling,
          .max_tokens = flags.answer.max_tokens,
          .limits_completions = flags.answer.limit_is_given,
          .stop = flags.answer.stop,
          .system = flags.chat.system,
          .parse_special = flags.chat.parse_special};
}

std::vector<std::string> api_keys(const ServeFlags& flags) {
  std::vector<std::string> keys = flags.api_keys;
  const std::string variable = environment_variable("EDGELLM_API_KEY");
  if (keys.empty() && !variable.empty()) keys.push_back(variable);
  for (const std::string& key : keys) {
    if (key.empty()) throw Error(ExitCode::kUsage, "--api-key needs a text that is not empty");
  }
  return keys;
}

// How often somebody looks for signals and for a failure of the engine.
constexpr std::chrono::milliseconds kLook{50};

void await_end(const EngineThread& engine) {
  while (received_signal() == 0 && engine.failure().empty()) std::this_thread::sleep_for(kLook);
}

// What is being answered is finished. A second signal ends the process (signals.h).
void finish_answers(Api& api, const EngineThread& engine) {
  api.drain();
  if (engine.live() > 0) {
    print_note("finishing " + counted(engine.live(), "answer") +
               ", taking no new ones; a second signal ends at once");
  }
  while (engine.live() > 0) std::this_thread::sleep_for(kLook);
}

void warn_of_strangers(const ServeFlags& flags, const std::vector<std::string>& keys) {
  Address address;
  address.host = flags.host;
  if (!keys.empty() || address.is_loopback()) return;
  print_warning("anybody who reaches " + flags.host +
                " can use this server; put a key into EDGELLM_API_KEY, or use --host 127.0.0.1");
}

int run(const ServeFlags& flags) {
  check_answer(flags.answer);
  SamplingChoice checked = flags.sampling;
  if (!checked.temperature) checked.temperature = 1;
  check_sampling(checked);
  const std::vector<std::string> keys = api_keys(flags);

  std::unique_ptr<LineLog> access_log;
  std::function<void(const std::string&)> write_access;
  if (!flags.access_log.empty()) {
    access_log = std::make_unique<LineLog>(flags.access_log);
    write_access = [&access_log](const std::string& line) { access_log->write(line); };
  }
  // Before the weights: a port that is in use is known at once.
  HttpServer server;
  const int port = server.bind(flags.host, flags.port);
  ServedModel model(flags.model, flags.engine, model_options(flags));
  Api api(model, {.keys = keys,
                  .origins = flags.origins,
                  .timeout = std::chrono::seconds(flags.timeout_s),
                  .access_log = write_access});
  api.set_connections([&server] { return server.connections(); });
  warn_of_strangers(flags, keys);
  Address address;
  address.host = flags.host;
  address.port = port;
  write_stdout(address.text() + "\n");  // for scripts: it is ready, and where
  print_note("serving " + model.name() + " at " + address.text() +
             (keys.empty() ? "" : ", with an API key") + "; Ctrl-C ends it");

  std::thread http([&] { server.run(api.handlers()); });
  await_end(model.engine());
  finish_answers(api, model.engine());
  server.close_connections();
  server.stop();
  http.join();
  if (const std::string failure = model.engine().failure(); !failure.empty()) {
    throw Error(ExitCode::kRuntime, "the engine ended: " + failure);
  }
  return 0;
}

void add_server_options(Command& command, ServeFlags& flags) {
  constexpr const char* kServer = "Server";
  command
      .option("--host", flags.host,
              "The address to listen on; 0.0.0.0: all of this machine's "
              "[127.0.0.1]")
      .value("HOST")
      .group(kServer);
  command.option("--port", flags.port, "The port; 0: any that is free [8080]")
      .range(0, 65535)
      .value("N")
      .group(kServer);
  command
      .repeated_option("--api-key", flags.api_keys,
                       "A key that requests must have; may be given several times. Others can read "
                       "a command line: EDGELLM_API_KEY is the better place")
      .value("KEY")
      .group(kServer);
  command
      .repeated_option("--cors", flags.origins,
                       "Web pages of this origin may call, as in https://example.org; *: all; may "
                       "be given several times")
      .value("ORIGIN")
      .group(kServer);
  command
      .option("--queue", flags.queue,
              "Answers that may wait besides those that run; more are refused with status 429 "
              "[256]")
      .range(0, 100'000)
      .value("N")
      .group(kServer);
  command.option("--timeout", flags.timeout_s, "Seconds that a request may take [600]")
      .range(1, 86'400)
      .value("S")
      .group(kServer);
  command
      .option("--access-log", flags.access_log,
              "Append a line of JSON for each request to this file; - is standard error")
      .value("FILE")
      .group(kServer);
}

}  // namespace

void add_serve(Program& program) {
  Command& command =
      program.add("serve", "Answer requests over HTTP, as OpenAI and Ollama do",
                  "  edgellm serve model.tmac2\n"
                  "  edgellm serve model.tmac2 --port 9000 --sequences 64 --kv-memory 8G\n"
                  "  EDGELLM_API_KEY=secret edgellm serve model.tmac2 --host 0.0.0.0\n"
                  "  curl http://127.0.0.1:8080/v1/chat/completions \\\n"
                  "    -d '{\"messages\":[{\"role\":\"user\",\"content\":\"Hello\"}]}'\n"
                  "  The options below are the defaults of requests that say nothing else.");
  auto flags = std::make_shared<ServeFlags>();
  add_model_argument(command, flags->model);
  add_server_options(command, *flags);
  add_chat_options(command, flags->chat);
  add_answer_options(command, flags->answer);
  add_engine_options(command, flags->engine);
  add_sequences_options(command, flags->sequences);
  add_full_head_flag(command, flags->engine);
  add_sampling_options(command, flags->sampling, SamplingDefault::kOpenAi);
  command.runs([flags] { return run(*flags); });
}

}  // namespace edgellm
