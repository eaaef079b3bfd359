// edgellm batch: a file of requests in, a file of answers out.
#include <memory>

#include "apps/batch/merge.h"
#include "apps/batch/run.h"
#include "apps/commands.h"
#include "base/error.h"

namespace edgellm {
namespace {

// Bounds the table of blocks that all sequences share on the device.
constexpr int kMaxSequences = 4096;

int run(const BatchFlags& flags) {
  if (!flags.merge.empty()) {
    if (!flags.model.empty()) {
      throw Error(ExitCode::kUsage,
                  "--merge takes no model: edgellm batch --merge OUT.1.jsonl OUT.2.jsonl -o "
                  "ALL.jsonl");
    }
    return merge_batches(flags);
  }
  if (flags.model.empty()) {
    throw Error(ExitCode::kUsage,
                "MODEL is required; usage: edgellm batch MODEL -i IN.jsonl -o OUT.jsonl (see "
                "edgellm batch --help)");
  }
  if (flags.input.empty()) {
    throw Error(ExitCode::kUsage, "--input is required; -i - reads standard input");
  }
  return run_batch(flags);
}

void add_files(CLI::App& app, BatchFlags& flags) {
  app.add_option("-i,--input", flags.input,
                 "Requests, one a line, in OpenAI's batch form or the short one; - is standard "
                 "input")
      ->option_text("FILE.jsonl");
  app.add_option("-o,--output", flags.output,
                 "Answers, one a line; - is standard output, which cannot be resumed")
      ->required()
      ->option_text("OUT.jsonl");
  app.add_flag("--text", flags.is_text, "A line of the input is a prompt")->option_text(" ");
  app.add_flag("--ordered", flags.ordered, "Answers in the order of the input, not as they come");
  app.add_flag("--strict", flags.strict, "End at the first request that fails");
  app.add_option("--summary", flags.summary, "Write what is printed at the end, and more, as JSON")
      ->option_text("OUT.json");
  CLI::Option* restart = app.add_flag("--restart", flags.restart,
                                      "Begin anew, without the answers that the output holds");
  app.add_flag(
         "--keep-answers", flags.keep_answers,
         "Resume, and keep the answers that the output holds, although model, options or input "
         "are others")
      ->excludes(restart);
  app.add_option_function<std::string>(
         "--shard", [&flags](const std::string& text) { flags.shard = parse_shard(text); },
         "Answer only part I of N of the requests; the others are for other machines")
      ->check([](const std::string& text) {
        return parse_shard(text) ? "" : "'" + text + "' is no shard; use I/N, for example 1/4";
      })
      ->option_text("I/N");
  app.add_option("--merge", flags.merge, "Join the outputs of all shards, and check them")
      ->option_text("FILE.jsonl");
}

void add_size(CLI::App& app, BatchFlags& flags) {
  app.add_option("--kv-memory", flags.kv_memory,
                 "Memory of the KV cache at most, for example 8G or 512MiB [what is left]")
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/true).description(""))
      ->check(CLI::PositiveNumber.description(""))
      ->option_text("SIZE")
      ->group("Engine");
  app.add_option("--sequences", flags.sequences,
                 "Requests that are answered at a time, as far as the KV cache has room; changes "
                 "speed and memory, never the result [CPU 16, GPU 256]")
      ->check(CLI::Range(1, kMaxSequences).description(""))
      ->option_text("N")
      ->group("Engine");
}

}  // namespace

Command add_batch(CLI::App& root) {
  CLI::App* app = root.add_subcommand("batch", "Answer a file of prompts, many at a time");
  app->footer(
      "  edgellm batch model.tmac2 -i in.jsonl -o out.jsonl\n"
      "  edgellm batch model.tmac2 -i prompts.txt --text -n 100 -o out.jsonl\n"
      "  edgellm batch model.tmac2 -i questions.txt --text --chat --system \"Be brief.\" -o "
      "out.jsonl\n"
      "  edgellm batch model.tmac2 -i in.jsonl -o out.1.jsonl --shard 1/4 --device cuda:0\n"
      "  edgellm batch --merge out.1.jsonl out.2.jsonl out.3.jsonl out.4.jsonl -o all.jsonl\n"
      "  The same command again resumes where it was interrupted, and tries again what failed.");
  auto flags = std::make_shared<BatchFlags>();
  app->add_option("MODEL", flags->model,
                  "A .tmac2 file, or the name of one in a model folder (edgellm help environment)")
      ->option_text(" ");
  add_files(*app, *flags);
  app->add_flag("--chat", flags->chat,
                "A prompt of --text or of the short form is a message, put into the model's chat "
                "template")
      ->option_text(" ");
  add_chat_options(*app, flags->chat_flags);
  add_answer_options(*app, flags->answer);
  app->add_flag("--ignore-eos", flags->ignore_eos, "Never choose a token that ends the answer");
  add_engine_options(*app, flags->engine);
  app->get_option("--prefill-chunk")
      ->description(
          "Prompt tokens of one pass, of all requests together; changes speed and memory, "
          "never the result [CPU 256, GPU 4096]");
  add_size(*app, *flags);
  app->add_flag("--full-head", flags->engine.full_head,
                "Compute every logit of every token, without an int8 copy of the head; changes "
                "speed and memory, never the result");
  add_sampling_options(*app, flags->sampling);
  return {app, [flags] { return run(*flags); }};
}

}  // namespace edgellm
