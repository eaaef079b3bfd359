#include "apps/commands.h"

#include "apps/batch/commands.h"
#include "apps/bench/commands.h"
#include "apps/cli/commands.h"
#include "apps/compare/commands.h"
#include "apps/generate/commands.h"
#include "apps/inspect/commands.h"

namespace edgellm {

void add_commands(Program& program) {
  add_run(program);
  add_chat(program);
  add_batch(program);
  add_convert(program);
  add_info(program);
  add_verify(program);
  add_tokenize(program);
  add_perplexity(program);
  add_logits(program);
  add_synth(program);
  add_bench(program);
  add_compare(program);
  add_devices(program);
  add_completion(program);
  add_help(program);  // the last: it looks at the others
}

}  // namespace edgellm
