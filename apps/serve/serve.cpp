// edgellm serve: the engine behind an address.
#include <algorithm>
#include <memory>
#include <set>
#include <thread>
#include <vector>

#include "apps/common/address.h"
#include "apps/common/environment.h"
#include "apps/common/line_log.h"
#include "apps/common/signals.h"
#include "apps/common/terminal.h"
#include "apps/common/text_format.h"
#include "apps/flags/flags.h"
#include "apps/nvml/nvml.h"
#include "apps/serve/api.h"
#include "apps/serve/commands.h"
#include "apps/serve/flags.h"
#include "apps/serve/http_server.h"
#include "apps/serve/models.h"
#include "apps/session/model_folders.h"
#include "base/error.h"

namespace edgellm {
namespace {

using namespace serve;

// What the command line names; else every model of the model folders that runs as it is.
std::vector<ModelChoice> model_choices(const ServeFlags& flags) {
  std::vector<ModelChoice> choices;
  for (const std::string& name : flags.models) choices.push_back({name, flags.no_cache});
  if (!choices.empty()) return choices;
  int n_others = 0;
  for (const StoredModel& model : stored_models()) {
    if (model.kind == StoredKind::kModel) {
      choices.push_back({model.path, flags.no_cache});
    } else {
      ++n_others;
    }
  }
  if (choices.empty()) {
    throw Error(ExitCode::kUsage,
                "no MODEL is given, and the model folders hold none that runs as it is; give one, "
                "or download one with: edgellm pull hf:ORG/NAME");
  }
  if (n_others > 0) {
    print_note("GGUF files and Hugging Face folders are served where they are named: " +
               counted(n_others, "model") + " left out");
  }
  return choices;
}

ModelsOptions models_options(const ServeFlags& flags) {
  ModelsOptions options;
  options.session = flags.engine;
  options.session.fault = parse_device_fault(environment_variable("EDGELLM_FAIL_DEVICE"));
  options.max_loaded = flags.max_loaded;
  options.keep_alive = parse_keep_alive("--keep-alive", flags.keep_alive);
  options.model = {.sequences = flags.sequences,
                   .queue = flags.queue,
                   .sampling = flags.sampling,
                   .max_tokens = flags.answer.max_tokens,
                   .limits_completions = flags.answer.limit_is_given,
                   .stop = flags.answer.stop,
                   .system = flags.chat.system,
                   .parse_special = flags.chat.parse_special,
                   .pooling = pooling_of(flags.pooling)};
  return options;
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

// How often somebody looks for signals, for a failure of an engine and for models to unload.
constexpr std::chrono::milliseconds kLook{50};

void await_end(Models& models) {
  while (received_signal() == 0 && models.failure().empty()) {
    models.unload_expired();
    std::this_thread::sleep_for(kLook);
  }
}

// What is being answered is finished. A second signal ends the process (signals.h).
void finish_answers(Api& api, const Models& models) {
  api.drain();
  if (models.live() > 0) {
    print_note("finishing " + counted(models.live(), "answer") +
               ", taking no new ones; a second signal ends at once");
  }
  while (models.live() > 0) std::this_thread::sleep_for(kLook);
}

// The energy counters of the GPUs together, where all have one.
std::function<std::optional<double>()> gpu_joules(const std::vector<Device>& devices) {
  std::set<std::string> bus_ids;
  for (const Device& device : devices) {
    if (device.gpu) bus_ids.insert(device.pci_bus_id);
  }
  std::vector<std::shared_ptr<NvmlDevice>> all;
  for (const std::string& bus_id : bus_ids) {
    const auto sensors = open_nvml_device(bus_id);
    if (!sensors) return {};
    all.push_back(*sensors);
  }
  if (all.empty()) return {};
  return [all]() -> std::optional<double> {
    double sum = 0;
    for (const auto& sensors : all) {
      const Measured<double> joules = sensors->energy_j();
      if (!joules) return std::nullopt;
      sum += *joules;
    }
    return sum;
  };
}

void warn_of_strangers(const ServeFlags& flags, const std::vector<std::string>& keys) {
  Address address;
  address.host = flags.host;
  if (!keys.empty() || address.is_loopback()) return;
  print_warning("anybody who reaches " + flags.host +
                " can use this server; put a key into EDGELLM_API_KEY, or use --host 127.0.0.1");
}

std::string names_of(const Models& models) {
  constexpr size_t kMost = 5;
  const std::vector<ServedModel*> all = models.all();
  std::string names;
  for (size_t i = 0; i < std::min(all.size(), kMost); ++i) {
    names += (i > 0 ? ", " : "") + all[i]->name();
  }
  return all.size() > kMost ? names + " and " + std::to_string(all.size() - kMost) + " more"
                            : names;
}

int run(const ServeFlags& flags) {
  check_answer(flags.answer);
  SamplingChoice checked = flags.sampling;
  if (!checked.temperature) checked.temperature = 1;
  check_sampling(checked);
  const std::vector<std::string> keys = api_keys(flags);
  const ModelsOptions options = models_options(flags);

  std::unique_ptr<LineLog> access_log;
  std::function<void(const std::string&)> write_access;
  if (!flags.access_log.empty()) {
    access_log = std::make_unique<LineLog>(flags.access_log);
    write_access = [&access_log](const std::string& line) { access_log->write(line); };
  }
  // Before the weights: a port that is in use is known at once.
  HttpServer server;
  const int port = server.bind(flags.host, flags.port);
  Models models(model_choices(flags), options);
  // What is wrong with the first model is known at once, and its first answer comes soon.
  if (!flags.models.empty()) models.use(models.first(), NoClient(), Clock::time_point::max());
  Api api(models, {.keys = keys,
                   .origins = flags.origins,
                   .timeout = std::chrono::seconds(flags.timeout_s),
                   .may_pull = flags.allow_pull,
                   .access_log = write_access,
                   .gpu_joules = gpu_joules(models.devices())});
  api.set_connections([&server] { return server.connections(); });
  warn_of_strangers(flags, keys);
  Address address;
  address.host = flags.host;
  address.port = port;
  write_stdout(address.text() + "\n");  // for scripts: it is ready, and where
  print_note("serving " + names_of(models) + " at " + address.text() +
             (keys.empty() ? "" : ", with an API key") + "; Ctrl-C ends it");

  std::thread http([&] { server.run(api.handlers()); });
  await_end(models);
  finish_answers(api, models);
  server.close_connections();
  server.stop();
  http.join();
  if (const std::string failure = models.failure(); !failure.empty()) {
    throw Error(ExitCode::kRuntime, "the engine ended: " + failure);
  }
  return static_cast<int>(models.has_failed_device() ? ExitCode::kDevice : ExitCode::kSuccess);
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

void add_models_options(Command& command, ServeFlags& flags) {
  constexpr const char* kModels = "Models";
  command
      .option("--max-loaded", flags.max_loaded,
              "Models that are loaded at a time; the least recently used makes room [as many as "
              "there is memory for]")
      .range(1, 1000)
      .value("N")
      .group(kModels);
  command
      .option("--keep-alive", flags.keep_alive,
              "Unload a model so long after its last request, as in 5m; -1: only for another one "
              "[-1]")
      .value("DURATION")
      .group(kModels);
  command
      .option("--pooling", flags.pooling,
              "Embeddings are of all tokens (mean) or the last one (last) [mean]")
      .value("mean|last")
      .check(one_of({"mean", "last"}))
      .group(kModels);
  command
      .flag("--allow-pull", flags.allow_pull,
            "Requests may download models of the Hugging Face Hub (/api/pull)")
      .group(kModels);
}

}  // namespace

void add_serve(Program& program) {
  Command& command =
      program.add("serve", "Answer requests over HTTP, as OpenAI and Ollama do",
                  "  edgellm serve model.tmac2\n"
                  "  edgellm serve model.tmac2 --port 9000 --sequences 64 --kv-memory 8G\n"
                  "  edgellm serve model.tmac2 --device cuda:all\n"
                  "  edgellm serve one.tmac2 another.tmac2 --keep-alive 10m\n"
                  "  EDGELLM_API_KEY=secret edgellm serve model.tmac2 --host 0.0.0.0\n"
                  "  curl http://127.0.0.1:8080/v1/chat/completions \\\n"
                  "    -d '{\"messages\":[{\"role\":\"user\",\"content\":\"Hello\"}]}'\n"
                  "  The options below are the defaults of requests that say nothing else.");
  auto flags = std::make_shared<ServeFlags>();
  command
      .words("MODEL", flags->models,
             "Models to serve, as run takes one; each is loaded when a request names it, the first "
             "at once. None: all .tmac2 files of the model folders")
      .aliases("-m,--model");
  add_no_cache_flag(command, flags->no_cache);
  add_server_options(command, *flags);
  add_models_options(command, *flags);
  add_chat_options(command, flags->chat);
  add_answer_options(command, flags->answer);
  add_engine_options(command, flags->engine, DeviceForms::kSeveral);
  add_sequences_options(command, flags->sequences);
  add_full_head_flag(command, flags->engine);
  add_sampling_options(command, flags->sampling, SamplingDefault::kOpenAi);
  command.runs([flags] { return run(*flags); });
}

}  // namespace edgellm
