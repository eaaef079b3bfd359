// edgellm compare: this program beside a server of another, by the same clock.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <random>

#include "apps/common/signals.h"
#include "apps/common/terminal.h"
#include "apps/common/version.h"
#include "apps/compare/commands.h"
#include "apps/compare/report.h"
#include "apps/flags/flags.h"
#include "apps/session/prompt.h"
#include "apps/session/session.h"
#include "base/error.h"
#include "base/output_file.h"
#include "base/text.h"

namespace edgellm {
namespace {

struct CompareFlags {
  ModelChoice model;
  std::optional<std::string> ollama;
  std::optional<std::string> url;
  std::optional<std::string> peer_model;
  PromptSource prompt;
  int max_tokens = 128;
  int rounds = 3;
  int warmups = 1;
  double timeout_s = 600;
  bool same_weights = false;
  bool json = false;
  std::optional<std::string> html;
  SessionOptions engine;
};

// Enough for most prompts, and what Ollama takes by default on small machines.
constexpr int kDefaultContext = 4096;

// Plain English of about 200 tokens, so that a prefill can be seen without -f.
constexpr const char* kDefaultPrompt =
    "The following is a letter from a lighthouse keeper to his sister in the city. The winter has "
    "been long on this rock. Some nights the wind leans so hard against the tower that the lamp "
    "trembles in its bearings, and I sit beside it with a hand upon the brass to keep it company. "
    "The supply boat has missed us twice. We have flour and oil enough, and the rain barrels are "
    "full, but the newspapers I read are older than the bread was when I threw it to the gulls. "
    "You "
    "ask what I do with all my hours. I trim the wicks, I wind the clockwork, I write down the "
    "weather in the book, and after that the hours are my own. I have begun to carve a chess set "
    "out of driftwood. The white pieces are pale with salt, and the black ones I darkened with "
    "lamp "
    "smoke. There is a seal that comes to the landing on calm mornings, and I believe he is "
    "waiting "
    "for me to finish the knights. Last week something happened that I want to tell you from its "
    "beginning to its end, because nobody here would believe it. It was shortly after midnight "
    "when";

void check_flags(const CompareFlags& flags) {
  if (flags.ollama.has_value() == flags.url.has_value()) {
    throw Error(ExitCode::kUsage,
                "name the server to compare with: --ollama NAME or --url "
                "http://HOST:PORT, one of them");
  }
  if (flags.peer_model && !flags.url) {
    throw Error(ExitCode::kUsage,
                "--model names a model of --url; Ollama's is the one of --ollama");
  }
  if (flags.ollama && flags.ollama->empty()) {
    throw Error(ExitCode::kUsage, "--ollama needs the name of a model, as ollama list shows it");
  }
  if (!(flags.timeout_s > 0 && flags.timeout_s <= 86400)) {
    throw Error(ExitCode::kUsage, "--timeout needs seconds above 0 and at most 86400");
  }
}

std::string text_or_empty(const char* value) { return value != nullptr ? value : ""; }

// Where the flags say that the server is.
Address peer_address(const CompareFlags& flags) {
  return flags.ollama ? peers::parse_ollama_host(text_or_empty(std::getenv("OLLAMA_HOST")))
                      : peers::parse_url(*flags.url);
}

std::unique_ptr<peers::Peer> connect(const CompareFlags& flags, const Address& address) {
  peers::HttpOptions options;
  options.timeout = std::chrono::milliseconds(std::llround(std::ceil(flags.timeout_s * 1000)));
  options.interrupted = [] { return received_signal() != 0; };
  options.raise_interrupt = throw_if_interrupted;
  if (flags.ollama) {
    options.start_hint = "start it with: ollama serve (or set OLLAMA_HOST to where it runs)";
    return peers::connect_ollama(address, options, *flags.ollama);
  }
  options.bearer_token = text_or_empty(std::getenv("EDGELLM_API_KEY"));
  options.start_hint =
      "start one, for example: llama-server -m MODEL.gguf --port " + std::to_string(address.port);
  return peers::connect_openai(address, options, flags.peer_model);
}

// What makes a prompt like no other before it: nothing that a server has in its caches begins so.
class Nonces {
 public:
  std::string next() { return hex64(random_()); }

 private:
  static uint64_t seed() {
    std::random_device device;
    return (uint64_t{device()} << 32) ^ device();
  }
  std::mt19937_64 random_{seed()};
};

compare::OurInfo our_info(const ModelFile& model, const Backend& backend,
                          const SessionOptions& engine) {
  const BuildInfo build = build_info();
  return {.version = build.version + " (" + build.revision + ")",
          .path = model.path(),
          .id = hex64(model.id()),
          .architecture = model.config().architecture,
          .parameters = model.parameter_count(),
          .bytes = model.file_bytes(),
          .context = backend.info().context,
          .device = backend.info().device,
          .kv_type = engine.kv_type,
          .memory = backend.memory()};
}

// Warm-ups of both, then rounds of A B, B A: what drifts (clocks, heat, other work) meets both
// alike.
void measure(const compare::OurSide& ours, peers::Peer& theirs, compare::Comparison& comparison,
             int rounds) {
  ProgressLine progress;
  const Progress show = progress.callback();
  const auto total = static_cast<uint64_t>(2 * (comparison.warmups + 2 * rounds));
  uint64_t done = 0;
  Nonces nonces;
  peers::CompletionRequest request;
  request.max_tokens = comparison.max_tokens;
  request.context = comparison.ours.context;
  const auto next_prompt = [&] {
    std::string nonce = nonces.next();
    request.prompt = nonce + " " + comparison.prompt;
    return nonce;
  };
  const auto run_ours = [&](const std::string& what) {
    show(what + ": edgellm", done++, total);
    return compare::measure_ours(ours, request);
  };
  const auto run_theirs = [&](const std::string& what) {
    show(what + ": " + comparison.theirs.software, done++, total);
    return compare::measure_theirs(theirs, request);
  };
  for (int i = 0; i < comparison.warmups; ++i) {
    next_prompt();
    run_ours("warm-up");
    comparison.theirs_warmups.push_back(run_theirs("warm-up"));
  }
  for (int i = 0; i < 2 * rounds; ++i) {
    compare::Pair pair;
    pair.nonce = next_prompt();
    pair.ours_first = i % 2 == 0;
    const std::string what = "pair " + std::to_string(i + 1) + " of " + std::to_string(2 * rounds);
    if (pair.ours_first) pair.ours = run_ours(what);
    pair.theirs = run_theirs(what);
    if (!pair.ours_first) pair.ours = run_ours(what);
    comparison.pairs.push_back(std::move(pair));
  }
}

// Of a command without -c.
int default_context(const ModelConfig& config) {
  return std::min(kDefaultContext, config.max_context);
}

int compare_with(const CompareFlags& flags) {
  check_flags(flags);
  const Address address = peer_address(flags);
  if (flags.html) require_writable(*flags.html);
  Session session(flags.model, flags.engine);
  const ModelFile& model = session.model();
  const Tokenizer* const tokenizer = session.tokenizer();
  if (tokenizer == nullptr) fail_without_tokenizer(model);
  PromptText prompt = {kDefaultPrompt, "the built-in text"};
  if (flags.prompt.any()) prompt = read_named_text(flags.prompt);
  require_utf8(prompt);

  // The server first: it is found to be missing at once, a model loads for a while.
  const std::unique_ptr<peers::Peer> peer = connect(flags, address);
  const int context = flags.engine.context != 0 ? 0 : default_context(model.config());
  Backend& backend = session.start(session.engine_options(context));

  compare::Comparison comparison;
  comparison.ours = our_info(model, backend, flags.engine);
  comparison.theirs.software = flags.ollama ? "Ollama" : "the server";
  comparison.theirs_is_local = address.is_loopback();
  comparison.machine = read_machine();
  comparison.prompt_source = prompt.source;
  comparison.prompt = prompt.text;
  comparison.max_tokens = flags.max_tokens;
  comparison.warmups = flags.warmups;
  measure({&backend, tokenizer}, *peer, comparison, flags.rounds);
  // Now the model is loaded there, and our copy of the head built.
  comparison.theirs = peer->info();
  comparison.ours.memory = backend.memory();
  comparison.same_weights = compare::decide_same_weights(
      flags.same_weights, comparison.ours.parameters, comparison.theirs);

  if (flags.html) write_file(*flags.html, compare::to_html(comparison));
  if (flags.json) {
    print_json(compare::to_json(comparison));
  } else {
    write_stdout(compare::to_text(comparison));
  }
  return 0;
}

}  // namespace

void add_compare(Program& program) {
  Command& command = program.add(
      "compare", "Measure a model beside one that Ollama or another server runs",
      "  edgellm compare model.tmac2 --ollama llama3.2\n"
      "  edgellm compare model.tmac2 --url http://127.0.0.1:8080 -n 256 --html compare.html\n"
      "The server must be running; losing is no error.");
  auto flags = std::make_shared<CompareFlags>();
  add_model_argument(command, flags->model);
  const Option ollama =
      command
          .option("--ollama", flags->ollama, "A model of Ollama, at OLLAMA_HOST or on this machine")
          .value("NAME");
  const Option url =
      command.option("--url", flags->url, "An OpenAI-compatible server (llama-server, vLLM, ...)")
          .value("URL")
          .excludes(ollama);
  command.option("--model", flags->peer_model, "The server's model, where it has several")
      .needs(url)
      .value("NAME");
  add_prompt_options(command, flags->prompt, PromptForms::kTextOptions);
  command.option("-n,--max-tokens", flags->max_tokens, "Tokens of an answer [128]")
      .range(1, 1'000'000)
      .value("N");
  command.option("-r,--rounds", flags->rounds, "Rounds of A B B A, two pairs each [3]")
      .range(1, 1000)
      .value("N");
  command.option("--warmup", flags->warmups, "Answers of each side before any is measured [1]")
      .range(0, 1000)
      .value("N");
  command
      .option("--timeout", flags->timeout_s,
              "Seconds that an answer of the server may take, loading included [600]")
      .value("S");
  command.flag("--same-weights", flags->same_weights,
               "You know that both run the same weights; doubted where the server says otherwise");
  command.flag("--json", flags->json, "Print one JSON object");
  command.option("--html", flags->html, "Also write a page with charts to this file")
      .value("OUT.html");
  add_engine_options(command, flags->engine);
  command.find("--ctx").description(
      "Positions of the context, here and in Ollama [4096, or the model's maximum where that is "
      "less]");
  command.runs([flags] { return compare_with(*flags); });
}

}  // namespace edgellm
