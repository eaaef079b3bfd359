// edgellm convert: a Hugging Face folder, a GGUF file or an older file in, one .tmac2 file out.
#include "model/convert.h"

#include <cstdio>
#include <filesystem>
#include <memory>

#include "apps/common/files.h"
#include "apps/common/terminal.h"
#include "apps/common/text_format.h"
#include "apps/common/timings.h"
#include "apps/inspect/commands.h"
#include "apps/inspect/golden.h"
#include "apps/inspect/model_output.h"
#include "base/error.h"
#include "tokenizer/tokenizer.h"

namespace edgellm {
namespace {

struct ConvertFlags {
  std::string source;
  std::string output;
  std::vector<std::string> ignore_keys;
  std::string config;
  std::string tokenizer;
  std::string i2s_layout;
  bool dry_run = false;
};

enum class SourceKind { kFolder, kGguf, kOlder };

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

SourceKind kind_of(const std::string& source) {
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

// Refuses options that this kind of source does not read.
void check_options(const ConvertFlags& flags, SourceKind kind) {
  if (kind == SourceKind::kFolder && (!flags.config.empty() || !flags.tokenizer.empty())) {
    throw Error(ExitCode::kUsage, "--config and --tokenizer are for older files; the folder " +
                                      flags.source +
                                      " is converted with its own config.json and tokenizer.json");
  }
  if (kind == SourceKind::kGguf && !flags.config.empty()) {
    throw Error(ExitCode::kUsage, "--config is for older files; the GGUF file " + flags.source +
                                      " is converted with its own metadata");
  }
  if (kind != SourceKind::kGguf && !flags.i2s_layout.empty()) {
    throw Error(ExitCode::kUsage,
                "--i2s-layout is for GGUF files, and " + flags.source + " is none; leave it out");
  }
}

void note_assumptions(const ConvertFlags& flags, const ConvertedModel& model) {
  for (const std::string& note : model.notes) print_note(flags.source + ": " + note);
}

void warn_of_missing_config(const ConvertFlags& flags, const ConvertedModel& model) {
  if (!flags.config.empty()) return;
  char eps[32];
  std::snprintf(eps, sizeof eps, "%g", static_cast<double>(model.config.norm_eps));
  print_warning(flags.source +
                " does not say how its model computes; taken as BitNet-b1.58-2B-4T does: " +
                "ReLU^2, eps " + eps + ", RoPE theta " + fixed(model.config.rope_theta, 0) +
                "; for any other model add --config config.json");
}

// What a dry run found, for people.
std::string dry_run_text(const std::string& output, const ConvertedModel& model) {
  constexpr size_t kColumn = 16;
  const size_t width = help_columns();
  const ModelConfig& config = model.config;
  uint64_t ternary_bytes = 0;
  uint64_t table_bytes = 0;
  for (const Section& section : model.sections) {
    if (section.dtype == DType::kT2) ternary_bytes += section.bytes;
    if (section.name == "embedding" || section.name == "head") table_bytes += section.bytes;
  }
  std::string target = output;
  std::error_code error;
  const auto old_bytes = std::filesystem::file_size(output, error);
  if (!error) target += ", replacing a file of " + human_bytes(old_bytes);
  const auto row = [&](const char* name, const std::string& text) {
    return definition(name, text, kColumn, width);
  };
  return row("would write", target) +
         row("size", human_bytes(model.file_bytes) + " (" + std::to_string(model.file_bytes) +
                         " bytes in " + std::to_string(model.sections.size()) +
                         " sections); there is room for it") +
         row("model", config.architecture + ", " + std::to_string(config.layers) + " layers, " +
                          human_count(model.parameter_count) + " parameters, vocabulary " +
                          std::to_string(config.vocab) + ", context " +
                          std::to_string(config.max_context)) +
         row("weights", human_bytes(ternary_bytes) + " ternary, " + human_bytes(table_bytes) +
                            (config.tied_head ? " embedding, which is also the head"
                                              : " embedding and head")) +
         row("tokenizer", model.tokenizer.present
                              ? std::to_string(model.tokenizer.stop_ids.size()) + " stop ids, " +
                                    (model.tokenizer.chat_template.empty() ? "no chat template"
                                                                           : "chat template")
                              : "none: the file would take ids only") +
         row("checked", "configuration, tokenizer, every tensor, free space; nothing was written");
}

int convert(const ConvertFlags& flags) {
  const Stopwatch total;
  const SourceKind kind = kind_of(flags.source);
  check_options(flags, kind);
  const ModelOutput output(flags.output);
  ConvertedModel model;
  {
    ProgressLine progress;
    ConvertOptions options;
    options.ignore_keys = flags.ignore_keys;
    options.dry_run = flags.dry_run;
    options.check_tokenizer = [](std::string_view json, const std::string& path) {
      Tokenizer::from_json(json, path);
    };
    options.make_golden = make_golden;
    options.progress = progress.callback();
    if (kind == SourceKind::kFolder) {
      model = convert_hf(flags.source, output.path(), options);
    } else if (kind == SourceKind::kGguf) {
      model =
          convert_gguf(flags.source, output.path(), {flags.tokenizer, flags.i2s_layout}, options);
    } else {
      model = convert_older(flags.source, output.path(), {flags.config, flags.tokenizer}, options);
    }
  }
  note_assumptions(flags, model);
  if (kind == SourceKind::kOlder) warn_of_missing_config(flags, model);
  if (flags.dry_run) {
    write_stdout(dry_run_text(output.is_stdout() ? output.name() : flags.output, model));
    return 0;
  }
  output.finish();
  print_note("wrote " + output.name() + ": " + human_count(model.parameter_count) +
             " parameters, " + human_bytes(model.file_bytes) + ", " +
             fixed(static_cast<double>(total.elapsed_ns()) / 1e9, 1) + " s");
  if (!model.tokenizer.present) {
    print_warning(
        flags.source +
        (kind == SourceKind::kGguf ? " has no tokenizer, so " : " has no tokenizer.json, so ") +
        output.name() + " takes ids only (--ids-file)" +
        (kind == SourceKind::kFolder ? "" : "; add --tokenizer tokenizer.json for text"));
  }
  return 0;
}

}  // namespace

void add_convert(Program& program) {
  Command& command =
      program.add("convert", "Make a .tmac2 file from a Hugging Face folder, a GGUF or older file",
                  "  edgellm convert bitnet-b1.58-2B-4T/ -o bitnet-2b.tmac2\n"
                  "  edgellm convert bitnet-2b-TQ2_0.gguf -o bitnet-2b.tmac2\n"
                  "  edgellm convert bitnet-b1.58-2B-4T/ -o bitnet-2b.tmac2 --dry-run\n"
                  "  edgellm convert old.tmac2.bin --tokenizer tokenizer.json -o new.tmac2");
  auto flags = std::make_shared<ConvertFlags>();
  command
      .option(
          "SRC", flags->source,
          "Folder with config.json, *.safetensors, tokenizer.json; or a GGUF file, the first part "
          "of a split one; or a file that begins with TM2 or TMAC")
      .required();
  command
      .option("-o,--output", flags->output,
              "The file to write; an older one is replaced; - is standard output")
      .required()
      .value("OUT.tmac2");
  command
      .repeated_option(
          "--ignore-key", flags->ignore_keys,
          "A key of config.json, or of a GGUF file's metadata, that edgellm does not know and you "
          "declare harmless; may be given several times")
      .value("KEY");
  command.flag("--dry-run", flags->dry_run,
               "Read and check everything, say what would be written, write nothing");
  command
      .option("--config", flags->config,
              "The config.json of the model that the file was made from; a TM2 file without it "
              "is taken as BitNet-b1.58-2B-4T's kind")
      .value("FILE.json")
      .group("GGUF and older files");
  command
      .option(
          "--tokenizer", flags->tokenizer,
          "The tokenizer.json for the file, with what stands beside it "
          "(tokenizer_config.json, generation_config.json, ...), or its folder; a GGUF file has "
          "its own, which this replaces")
      .value("FILE.json|DIR")
      .group("GGUF and older files");
  command
      .option(
          "--i2s-layout", flags->i2s_layout,
          "Which of its three layouts I2_S has in a GGUF file, where the weights do not show it")
      .value("x86|arm|rows")
      .group("GGUF and older files");
  command.runs([flags] { return convert(*flags); });
}

}  // namespace edgellm
