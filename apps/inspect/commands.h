// What looks at models: convert, info, verify, list, rm, tokenize, detokenize, perplexity, logits,
// synth, devices.
#pragma once

#include "apps/cli/program.h"

namespace edgellm {

void add_convert(Program& program);
void add_info(Program& program);
void add_verify(Program& program);
void add_list(Program& program);
void add_rm(Program& program);
void add_tokenize(Program& program);
void add_detokenize(Program& program);
void add_perplexity(Program& program);
void add_logits(Program& program);
void add_synth(Program& program);
void add_devices(Program& program);

}  // namespace edgellm
