// A GGUF model as the source of a conversion: its tensors get the names that Hugging Face gives
// them, and the importer does the rest.
#pragma once

#include <string>
#include <vector>

#include "model/convert.h"
#include "model/import/source.h"

namespace edgellm::model_io {

ImportSource gguf_source(const std::string& path, const GgufOptions& options,
                         const std::vector<std::string>& ignore_keys);

}  // namespace edgellm::model_io
