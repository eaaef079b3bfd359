// edgellm batch: a file of requests in, a file of answers out.
#include <memory>
#include <optional>
#include <string>

#include "apps/batch/cluster_shard.h"
#include "apps/batch/commands.h"
#include "apps/batch/merge.h"
#include "apps/batch/run.h"
#include "apps/common/environment.h"
#include "apps/common/terminal.h"
#include "apps/flags/flags.h"
#include "base/error.h"
#include "base/text.h"

namespace edgellm {
namespace {

void read_shard(const std::string& text, BatchFlags& flags) {
  const std::string automatic = "auto";
  flags.shard = parse_shard(text);
  if (flags.shard) return;
  // auto/N is read as 1/N.
  const std::optional<Shard> counted =
      text.starts_with(automatic) ? parse_shard("1" + text.substr(automatic.size())) : std::nullopt;
  if (text != automatic && !counted) {
    throw Error(ExitCode::kUsage, "--shard: '" + printable(text) +
                                      "' is not a shard; use I/N, for example 1/4, or auto");
  }
  const ClusterShard found =
      cluster_shard(counted ? std::optional(counted->count) : std::nullopt,
                    [](const char* name) { return environment_variable(name); });
  flags.shard = found.shard;
  flags.shard_source = found.source;
}

// "{shard}" in the name of a file that each shard writes becomes the shard's number.
void name_shard(const BatchFlags& flags, std::string& path) {
  const std::string mark = "{shard}";
  for (size_t at = 0; flags.shard && (at = path.find(mark, at)) != std::string::npos;) {
    const std::string number = std::to_string(flags.shard->index);
    path.replace(at, mark.size(), number);
    at += number.size();
  }
}

int run(const BatchFlags& flags) {
  if (!flags.merge.empty()) {
    if (!flags.model.name.empty()) {
      throw Error(ExitCode::kUsage,
                  "--merge takes no model: edgellm batch --merge OUT.1.jsonl OUT.2.jsonl -o "
                  "ALL.jsonl");
    }
    return merge_batches(flags);
  }
  if (flags.model.name.empty()) {
    throw Error(ExitCode::kUsage,
                "MODEL is required; usage: edgellm batch MODEL -i IN.jsonl -o OUT.jsonl (see "
                "edgellm batch --help)");
  }
  if (flags.input.empty()) {
    throw Error(ExitCode::kUsage, "--input is required; -i - reads standard input");
  }
  BatchFlags of_shard = flags;
  of_shard.engine.fault = parse_device_fault(environment_variable("EDGELLM_FAIL_DEVICE"));
  name_shard(flags, of_shard.output);
  name_shard(flags, of_shard.summary);
  if (!flags.shard_source.empty()) {
    print_note("shard " + to_string(*flags.shard) + ", by " + flags.shard_source);
  }
  return run_batch(of_shard);
}

void add_files(Command& command, BatchFlags& flags) {
  command
      .option("-i,--input", flags.input,
              "Requests, one a line, in OpenAI's batch form or the short one; - is standard "
              "input")
      .value("FILE.jsonl");
  command
      .option("-o,--output", flags.output,
              "Answers, one a line; - is standard output, which cannot be resumed")
      .required()
      .value("OUT.jsonl");
  command.flag("--text", flags.is_text, "A line of the input is a prompt");
  command.flag("--ordered", flags.ordered, "Answers in the order of the input, not as they come");
  command.flag("--strict", flags.strict, "End at the first request that fails");
  command
      .option(
          "--grace", flags.grace_s,
          "After SIGTERM, seconds in which the answers that are being made may be finished [10]")
      .range(0, 3600)
      .value("S");
  command.option("--summary", flags.summary, "Write what is printed at the end, and more, as JSON")
      .value("OUT.json");
  const Option restart = command.flag("--restart", flags.restart,
                                      "Start over and drop the answers that the output holds");
  command
      .flag("--keep-answers", flags.keep_answers,
            "Resume and keep the answers that the output holds, although model, options or input "
            "differ")
      .excludes(restart);
  command
      .parsed_option(
          "--shard", [&flags](const std::string& text) { read_shard(text, flags); },
          "Answer only part I of N of the requests; the others are for other machines. auto: the "
          "part that Slurm has given this process; auto/N: Kubernetes")
      .value("I/N|auto|auto/N");
  command.words("--merge", flags.merge, "Join the outputs of all shards, and check them")
      .value("FILE.jsonl");
}

}  // namespace

void add_batch(Program& program) {
  Command& command = program.add(
      "batch", "Answer a file of prompts, many at a time",
      "  edgellm batch model.tmac2 -i in.jsonl -o out.jsonl\n"
      "  edgellm batch model.tmac2 -i prompts.txt --text -n 100 -o out.jsonl\n"
      "  edgellm batch model.tmac2 -i questions.txt --text --chat --system \"Be brief.\" -o "
      "out.jsonl\n"
      "  edgellm batch model.tmac2 -i in.jsonl -o out.jsonl --device cuda:all\n"
      "  edgellm batch model.tmac2 -i in.jsonl -o out.1.jsonl --shard 1/4 --device cuda:0\n"
      "  srun edgellm batch model.tmac2 -i in.jsonl -o out.{shard}.jsonl --shard auto\n"
      "  edgellm batch --merge out.1.jsonl out.2.jsonl out.3.jsonl out.4.jsonl -o all.jsonl\n"
      "  The same command again resumes where it was interrupted, and retries what failed.");
  auto flags = std::make_shared<BatchFlags>();
  add_optional_model_argument(command, flags->model);
  add_files(command, *flags);
  command.flag("--chat", flags->chat,
               "A prompt of --text or of the short form is a message, put into the model's chat "
               "template");
  add_chat_options(command, flags->chat_options);
  add_answer_options(command, flags->answer);
  command.flag("--ignore-eos", flags->ignore_eos, "Never choose a token that ends the answer");
  add_engine_options(command, flags->engine, DeviceForms::kSeveral);
  add_sequences_options(command, flags->sequences);
  add_full_head_flag(command, flags->engine);
  add_sampling_options(command, flags->sampling);
  command.runs([flags] { return run(*flags); });
}

}  // namespace edgellm
