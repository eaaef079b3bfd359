#include "apps/session/conversion.h"

#include <filesystem>
#include <string_view>

#include "apps/common/files.h"
#include "apps/session/golden.h"
#include "base/error.h"
#include "tokenizer/tokenizer.h"

namespace edgellm {
namespace {

// Says what a source is that cannot be converted.
[[noreturn]] void fail_unknown(const std::string& source, const std::string& head) {
  std::string what = "neither a folder nor a file of GGUF or of an earlier program";
  if (head.starts_with("TMAC2")) {
    what = "already a .tmac2 file";
  } else if (source.ends_with(".safetensors") || source.ends_with(".json")) {
    what = "one file of a model; name the folder it lies in";
  }
  throw Error(ExitCode::kUnsupported,
              source + " is " + what +
                  "; supported: a Hugging Face folder with config.json and *.safetensors, a GGUF "
                  "file, or an older .tmac2.bin file (TM2 or TMAC)");
}

}  // namespace

SourceKind source_kind(const std::string& source) {
  std::error_code ignored;
  if (std::filesystem::is_directory(source, ignored)) return SourceKind::kFolder;
  if (!std::filesystem::exists(source, ignored)) {
    throw Error(ExitCode::kModelFile,
                "no folder " + source +
                    "; give a Hugging Face model folder with config.json and *.safetensors, or a "
                    "GGUF file");
  }
  if (!std::filesystem::is_regular_file(source, ignored)) fail_unknown(source, "");
  const std::string head = read_head(source, 8);
  if (is_gguf_file(head)) return SourceKind::kGguf;
  if (!is_older_file(head)) fail_unknown(source, head);
  return SourceKind::kOlder;
}

void check_request(const ConversionRequest& request) {
  const SourceKind kind = source_kind(request.source);
  if (kind == SourceKind::kFolder && (!request.config.empty() || !request.tokenizer.empty())) {
    throw Error(ExitCode::kUsage, "--config and --tokenizer are for older files; the folder " +
                                      request.source +
                                      " is converted with its own config.json and tokenizer.json");
  }
  if (kind == SourceKind::kGguf && !request.config.empty()) {
    throw Error(ExitCode::kUsage, "--config is for older files; the GGUF file " + request.source +
                                      " is converted with its own metadata");
  }
  if (kind != SourceKind::kGguf && !request.i2s_layout.empty()) {
    throw Error(ExitCode::kUsage,
                "--i2s-layout is for GGUF files, and " + request.source + " is none; leave it out");
  }
}

ConvertedModel convert_source(const ConversionRequest& request, const std::string& output,
                              const Progress& progress) {
  const SourceKind kind = source_kind(request.source);
  ConvertOptions options;
  options.ignore_keys = request.ignore_keys;
  options.source_name = request.source_name;
  options.dry_run = request.dry_run;
  options.check_tokenizer = [](std::string_view json, const std::string& path) {
    Tokenizer::from_json(json, path);
  };
  options.make_golden = make_golden;
  options.progress = progress;
  if (kind == SourceKind::kGguf) {
    return convert_gguf(request.source, output, {request.tokenizer, request.i2s_layout}, options);
  }
  if (kind == SourceKind::kOlder) {
    return convert_older(request.source, output, {request.config, request.tokenizer}, options);
  }
  return convert_hf(request.source, output, options);
}

}  // namespace edgellm
