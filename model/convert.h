// Making `.tmac2` files: from a Hugging Face folder, or from nothing but a shape and a seed.
//
// Both stream: peak memory is one tensor, not the model. The output is written under a temporary
// name beside the target and renamed when it is whole; a failure leaves nothing behind.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/progress.h"
#include "model/config.h"
#include "model/model_file.h"

namespace edgellm {

struct ConvertOptions {
  // Keys of config.json that edgellm does not know and the user declares harmless.
  std::vector<std::string> ignore_keys;
  // Called with the text and the path of the folder's tokenizer.json, if there is one, before
  // anything is written; throws Error where it could not be used. The folder `model` knows no
  // tokenizers. Empty: any text will do.
  std::function<void(std::string_view json, const std::string& path)> check_tokenizer;
  // Called with the path of the finished but unnamed file to make its golden; the folder `model`
  // cannot run a model itself. At most 64 ids, prompt and answer together (room is reserved for
  // them in the metadata). Empty: the file gets no golden.
  std::function<Golden(const std::string& path)> make_golden;
  Progress progress;
};

// Converts the Hugging Face folder `source` (config.json, safetensors, tokenizer files).
void convert_hf(const std::string& source, const std::string& output,
                const ConvertOptions& options);

struct SynthOptions {
  std::string shape;  // a name of synth_shape_names(), or the path of a config.json
  std::optional<int> layers;
  std::optional<int> vocab;
  uint64_t seed = 0;
  Progress progress;
};

std::vector<std::string> synth_shape_names();

// The sizes of a known shape, or of a config.json. Throws Error (kUsage) for any other name.
ModelConfig synth_config(const std::string& shape);

// Writes a model of random weights. The same options give the same bytes on every machine.
void write_synth(const SynthOptions& options, const std::string& output);

}  // namespace edgellm
