// Which of the three layouts a file's I2_S matrices have. The file does not say it, and each makes
// valid codes of the same bytes.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "model/config.h"
#include "model/import/gguf/types.h"
#include "model/import/safetensors.h"

namespace edgellm::model_io::gguf {

// "x86", "arm", "rows": the values of --i2s-layout.
const char* i2s_layout_name(Type layout);
std::optional<Type> find_i2s_layout(const std::string& name);

// In a trained model the columns of a matrix that have few zeros are those of inputs with a certain
// gain of the norm before it, and the columns of the down projection go with the rows of gate and
// up. A wrong layout mixes the columns, and nothing of that is left. Empty where no layout shows it
// clearly more than the others, as in a model of random weights.
//
// `tensors` has Hugging Face's names; those of type I2_S may have any layout.
std::optional<Type> probe_i2s_layout(const Checkpoint& checkpoint, const ModelConfig& config);

}  // namespace edgellm::model_io::gguf
