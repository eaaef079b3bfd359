// The tensors of a TM2 or TMAC file, under the names that Hugging Face gives
// them.
#pragma once

#include "base/files.h"
#include "model/config.h"
#include "model/import/older_file.h"
#include "model/import/safetensors.h"

namespace edgellm::model_io {

// Each tensor placed and measured against the file's size. Their contents are
// not read.
Checkpoint older_checkpoint(InputFile file, const OlderHeader& header, const ModelConfig& config);

}  // namespace edgellm::model_io
