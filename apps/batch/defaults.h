// What a batch's command line says about its answers.
#pragma once

#include <nlohmann/json.hpp>

#include "apps/batch/flags.h"
#include "apps/batch/line.h"
#include "model/model_file.h"

namespace edgellm {

// Throws Error as sampling_options() does.
BatchDefaults batch_defaults(const BatchFlags& flags, const ModelFile& model);

// The flags that change answers, for the manifest: all others may differ from one run to the next.
nlohmann::json batch_answer_flags(const BatchFlags& flags, const BatchDefaults& defaults,
                                  int context);

}  // namespace edgellm
