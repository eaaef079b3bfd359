// Making `.tmac2` files: from a Hugging Face folder, from a GGUF file, from a file of an earlier
// program, or from nothing but a shape and a seed.
//
// All stream: peak memory is one tensor, not the model. The output is written under a temporary
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
  // What the file's provenance names as its source. Empty: the name of the folder or file.
  std::string source_name;
  // Called with the text and the path of the folder's tokenizer.json, if there is one, before
  // anything is written; throws Error where it could not be used. The folder `model` knows no
  // tokenizers. Empty: any text will do.
  std::function<void(std::string_view json, const std::string& path)> check_tokenizer;
  // Reads and checks all that a conversion would, and writes nothing.
  bool dry_run = false;
  // Called with the path of the finished but unnamed file to make its golden; the folder `model`
  // cannot run a model itself. At most 64 ids, prompt and answer together (room is reserved for
  // them in the metadata). Empty: the file gets no golden.
  std::function<Golden(const std::string& path)> make_golden;
  Progress progress;
};

// What was written, or by a dry run would have been.
struct ConvertedModel {
  ModelConfig config;
  TokenizerInfo tokenizer;
  std::vector<Section> sections;
  uint64_t file_bytes = 0;
  uint64_t parameter_count = 0;
  // What the source did not say and was concluded from it, a line each.
  std::vector<std::string> notes;
};

// Converts the Hugging Face folder `source` (config.json, safetensors, tokenizer files).
ConvertedModel convert_hf(const std::string& source, const std::string& output,
                          const ConvertOptions& options);

// What a file of an earlier program lacks.
struct OlderFileOptions {
  // A config.json; may be empty for a TM2 file, which is then what that program ran (BitNet-2B).
  std::string config;
  // A tokenizer.json or the folder of one. What stands beside it under the names that Hugging Face
  // uses (tokenizer_config.json, generation_config.json, ...) belongs to it. Empty: no tokenizer.
  std::string tokenizer;
};

// Whether a file with these first bytes (8 suffice) is one for convert_older.
bool is_older_file(std::string_view head);

// Converts a TM2 or TMAC file (docs/format.md, "Older files").
ConvertedModel convert_older(const std::string& source, const std::string& output,
                             const OlderFileOptions& older, const ConvertOptions& options);

struct GgufOptions {
  // A tokenizer.json or the folder of one, in place of what the file's metadata says. Empty: that.
  std::string tokenizer;
  // "x86", "arm" or "rows": the layout of I2_S matrices. Empty: the weights show it, or the file is
  // refused.
  std::string i2s_layout;
};

// Whether a file with these first bytes (4 suffice) is one for convert_gguf.
bool is_gguf_file(std::string_view head);

// Converts a GGUF file (docs/gguf.md), or all parts of a split one, whose first part is named.
ConvertedModel convert_gguf(const std::string& source, const std::string& output,
                            const GgufOptions& gguf, const ConvertOptions& options);

struct SynthOptions {
  std::string shape;  // a name of synth_shape_names(), or the path of a config.json
  std::optional<int> layers;
  std::optional<int> vocab;
  std::optional<int> context;  // positions instead of the shape's maximum
  uint64_t seed = 0;
  Progress progress;
};

std::vector<std::string> synth_shape_names();

// The sizes of a known shape, or of a config.json. Throws Error (kUsage) for any other name.
ModelConfig synth_config(const std::string& shape);

// Writes a model of random weights. The same options give the same bytes on every machine.
void write_synth(const SynthOptions& options, const std::string& output);

}  // namespace edgellm
