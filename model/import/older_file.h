// The two formats of earlier programs that carry our file's name, read as
// checkpoints (docs/format.md, "Older files"): their tensors get the names that
// Hugging Face gives them, and the importer does the rest. What a file lacks
// (how the model computes) comes from a config.json.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/files.h"
#include "model/import/hf_config.h"

namespace edgellm::model_io {

enum class OlderFormat : uint8_t {
  kTm2,   // magic "TM2\0"
  kTmac,  // magic "TMAC"
};

// By the first bytes of a file; empty where it is neither.
std::optional<OlderFormat> older_format(std::string_view head);

// The sizes in the header. Those that a format does not hold are 0.
struct OlderHeader {
  OlderFormat format = OlderFormat::kTm2;
  uint64_t bytes = 0;  // of the header: the tensors begin there
  int64_t dim = 0;
  int64_t ffn = 0;
  int64_t layers = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t vocab = 0;
  int64_t max_context = 0;
};
OlderHeader read_older_header(const InputFile& file);

// How the model computes: config.json at `config_path`, whose sizes must be
// those of the header. Without one (an empty path) a TM2 file is what the
// program that wrote it ran, BitNet-b1.58-2B-4T's kind: ReLU^2, eps 1e-5, RoPE
// theta 500000. A TMAC file needs one: Error (kUsage).
HfConfig older_config(const InputFile& file, const OlderHeader& header,
                      const std::string& config_path, const std::vector<std::string>& ignore_keys);

}  // namespace edgellm::model_io
