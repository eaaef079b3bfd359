// Which kernels a model's passes run with, for people who look for a fault.
#pragma once

#include "engine/backend.h"
#include "kernels/cuda/cuda.h"
#include "model/model_file.h"

namespace edgellm {

// Lines of the level debug: for each op, the plan of a decode step of one sequence, of as many as
// steps may have, and of the longest pass of a prompt.
void log_plans(const ModelFile& model, const EngineOptions& options,
               const cuda::Workspace& workspace, bool has_certified_head);

}  // namespace edgellm
