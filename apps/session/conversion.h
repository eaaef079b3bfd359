// From what a user has to a `.tmac2` file. `convert`, `pull` and every command that is given
// something else than a `.tmac2` file convert alike.
#pragma once

#include <string>
#include <vector>

#include "base/progress.h"
#include "model/convert.h"

namespace edgellm {

// What can be converted.
enum class SourceKind {
  kFolder,  // of Hugging Face
  kGguf,
  kOlder,  // a TM2 or TMAC file
};

struct ConversionRequest {
  std::string source;                    // the path of a folder or a file
  std::vector<std::string> ignore_keys;  // ConvertOptions::ignore_keys
  std::string config;                    // of older files: OlderFileOptions
  std::string tokenizer;                 // the same, or GgufOptions
  std::string i2s_layout;                // GgufOptions
  std::string source_name;               // ConvertOptions::source_name
  bool dry_run = false;
};

// What stands at the path, by its contents. Throws Error for what cannot be converted.
SourceKind source_kind(const std::string& source);

// Throws Error (kUsage) where the request says what this kind of source does not take.
void check_request(const ConversionRequest& request);

// Writes the model with its golden to `output`; a dry run checks and writes nothing.
ConvertedModel convert_source(const ConversionRequest& request, const std::string& output,
                              const Progress& progress);

}  // namespace edgellm
