// Which kernels a model's passes run with, for people who look for a fault.
#pragma once

#include <initializer_list>

#include "kernels/cuda/cuda.h"
#include "model/model_file.h"

namespace edgellm {

// A line of the level debug for each op and number of rows, which belong to a sequence each. On the
// current GPU.
void log_plans(const ModelFile& model, KvType kv_type, const cuda::Workspace& workspace,
               std::initializer_list<int> numbers_of_rows);

}  // namespace edgellm
