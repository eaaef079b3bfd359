// edgellm convert: a Hugging Face folder in, one .tmac2 file out.
#include "model/convert.h"

#include <filesystem>
#include <memory>

#include "apps/commands.h"
#include "apps/files.h"
#include "apps/golden.h"
#include "apps/model_flags.h"
#include "apps/terminal.h"
#include "apps/text_format.h"
#include "apps/timings.h"
#include "base/error.h"
#include "tokenizer/tokenizer.h"

namespace edgellm {
namespace {

struct Flags {
  std::string source;
  std::string output;
  std::vector<std::string> ignore_keys;
};

// Only folders are converted; says what a file is where that is known.
void require_folder(const std::string& source) {
  std::error_code ignored;
  if (std::filesystem::is_directory(source, ignored)) return;
  if (!std::filesystem::exists(source, ignored)) {
    throw Error(ExitCode::kModelFile,
                "no folder " + source +
                    "; give a Hugging Face model folder with config.json and *.safetensors");
  }
  const std::string head = read_head(source, 8);
  std::string what = "not a folder";
  if (head.starts_with("TMAC2")) {
    what = "already a .tmac2 file";
  } else if (head.starts_with("GGUF")) {
    what = "a GGUF file, which cannot be converted";
  } else if (head.starts_with("TMAC") || head.starts_with("TM2")) {
    what = "an older .tmac2 file, which cannot be read or converted by this version";
  } else if (source.ends_with(".safetensors") || source.ends_with(".json")) {
    what = "one file of a model; name the folder it lies in";
  }
  throw Error(ExitCode::kUnsupported,
              source + " is " + what +
                  "; supported: a Hugging Face folder with config.json and *.safetensors");
}

int convert(const Flags& flags) {
  const Stopwatch total;
  require_folder(flags.source);
  require_writable(flags.output);
  {
    ProgressLine progress;
    ConvertOptions options;
    options.ignore_keys = flags.ignore_keys;
    options.check_tokenizer = [](std::string_view json, const std::string& path) {
      Tokenizer::from_json(json, path);
    };
    options.make_golden = make_golden;
    options.progress = progress.callback();
    convert_hf(flags.source, flags.output, options);
  }
  const ModelFile model = ModelFile::open(flags.output);
  print_note("wrote " + flags.output + ": " + human_count(model.parameter_count()) +
             " parameters, " + human_bytes(model.file_bytes()) + ", " +
             fixed(static_cast<double>(total.elapsed_ns()) / 1e9, 1) + " s");
  if (!model.tokenizer().present) {
    print_note(flags.source + " has no tokenizer.json, so " + flags.output +
               " takes ids only (--ids-file)");
  }
  return 0;
}

}  // namespace

Command add_convert(CLI::App& root) {
  CLI::App* app = root.add_subcommand("convert", "Make a .tmac2 file from a Hugging Face folder");
  app->footer("  edgellm convert bitnet-b1.58-2B-4T/ -o bitnet-2b.tmac2");
  auto flags = std::make_shared<Flags>();
  app->add_option("SRC", flags->source, "Folder with config.json, *.safetensors, tokenizer.json")
      ->required()
      ->option_text(" ");
  app->add_option("-o,--output", flags->output, "The file to write; an older one is replaced")
      ->required()
      ->option_text("OUT.tmac2");
  app->add_option(
         "--ignore-key", flags->ignore_keys,
         "A key of config.json that edgellm does not know and you declare harmless; may be "
         "given several times")
      ->allow_extra_args(false)
      ->option_text("KEY");
  return {app, [flags] { return convert(*flags); }};
}

}  // namespace edgellm
