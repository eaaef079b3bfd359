#include "apps/commands.h"

#include "apps/batch/commands.h"
#include "apps/bench/commands.h"
#include "apps/cli/commands.h"
#include "apps/common/log.h"
#include "apps/compare/commands.h"
#include "apps/generate/commands.h"
#include "apps/inspect/commands.h"
#include "apps/pull/commands.h"
#include "apps/serve/commands.h"
#include "base/text.h"

namespace edgellm {

namespace {

void add_log_level(Command& command) {
  command
      .parsed_option(
          "--log-level", [](const std::string& name) { set_log_level(name); },
          "Messages on standard error: those of this level and above [info]")
      .check(one_of(log_level_names()))
      .value(join(log_level_names(), "|"))
      .group("Messages");
}

}  // namespace

void add_commands(Program& program) {
  add_run(program);
  add_chat(program);
  add_batch(program);
  add_serve(program);
  add_convert(program);
  add_pull(program);
  add_info(program);
  add_verify(program);
  add_list(program);
  add_rm(program);
  add_tokenize(program);
  add_detokenize(program);
  add_perplexity(program);
  add_logits(program);
  add_synth(program);
  add_bench(program);
  add_plan(program);
  add_compare(program);
  add_devices(program);
  add_completion(program);
  add_help(program);  // the last: it looks at the others
  for (Command& command : program.commands()) add_log_level(command);
  // Ollama's names.
  program.add_alias("show", "info");
  program.add_alias("ls", "list");
}

}  // namespace edgellm
