// Reading a `.tmac2` file (docs/format.md). The file is mapped, never copied; everything in it is
// checked before it is believed. A damaged or hostile file throws Error (kModelFile) or, where it
// asks for something this version does not know, Error (kUnsupported).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/progress.h"
#include "model/config.h"
#include "model/weights.h"

namespace edgellm {

// One section as the metadata describes it.
struct Section {
  std::string name;
  DType dtype = DType::kU8;
  std::vector<int64_t> shape;
  int group = 0;        // of a t2 section: columns that share a scale; 0: all of a row
  uint64_t offset = 0;  // from the start of the file, a multiple of 256
  uint64_t bytes = 0;
  uint64_t xxh3 = 0;  // xxh3-64 of the section's bytes
};

struct TokenizerInfo {
  bool present = false;  // a tokenizer.json is in the file
  std::optional<int32_t> bos;
  bool add_bos = false;           // tokenizer_config asks for a BOS before every text
  std::vector<int32_t> stop_ids;  // ascending, without duplicates
  std::string chat_template;      // empty where the model has none
  // What the template calls "bos_token", "eos_token", ... and their text. Empty in files of older
  // versions, which do not say.
  std::optional<std::map<std::string, std::string>> special_tokens;
  std::string sampling_json = "{}";  // defaults of generation_config.json, kept as found
};

// A short greedy run made at conversion; `verify` repeats it.
struct Golden {
  std::vector<int32_t> prompt_ids;
  std::vector<int32_t> greedy_ids;
};

struct Provenance {
  std::string source;                    // name of what was converted, or the synth shape
  std::string converter_version;         // edgellm's version
  std::string licence;                   // text, if known
  std::string source_files_json = "{}";  // file name -> "xxh3:<hex>" of the source files
  bool random = false;                   // made by `synth`: weights are random numbers
};

class ModelFile {
 public:
  // Maps the file and checks header, metadata, and the place, size and shape of every section
  // against the architecture. Reads no weights.
  static ModelFile open(const std::string& path);

  ModelFile(ModelFile&&) noexcept;
  ModelFile& operator=(ModelFile&&) noexcept;
  ~ModelFile();

  // Reads the whole file once: the hash of every section, padding bytes that are not zero, invalid
  // ternary codes, scales that are not finite or are negative. Throws at the first fault.
  void verify_contents(const Progress& progress = {}) const;

  // Lets the system drop the mapped pages of these weights; they come back from the file when next
  // read. For runs that must not keep the model in memory (the golden run of a conversion).
  void release_pages(const LayerWeights& layer) const;
  void release_pages(const DenseTensor& tensor) const;
  void release_pages(const TernaryTensor& tensor) const;

  const std::string& path() const;
  uint64_t file_bytes() const;
  uint64_t id() const;               // xxh3-64 of the metadata: covers every section's hash
  uint64_t parameter_count() const;  // weights of all matrices and norms, a tied head once
  const ModelConfig& config() const;
  const Weights& weights() const;
  const TokenizerInfo& tokenizer() const;
  std::string_view tokenizer_json() const;  // empty where the file holds no tokenizer
  const std::optional<Golden>& golden() const;
  const Provenance& provenance() const;
  std::span<const Section> sections() const;

 private:
  struct Impl;
  explicit ModelFile(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace edgellm
