// edgellm convert: a Hugging Face folder, a GGUF file or an older file in, one .tmac2 file out.
#include "model/convert.h"

#include <cstdio>
#include <filesystem>
#include <memory>

#include "apps/common/terminal.h"
#include "apps/common/text_format.h"
#include "apps/common/timings.h"
#include "apps/inspect/commands.h"
#include "apps/inspect/model_output.h"
#include "apps/session/conversion.h"
#include "base/error.h"

namespace edgellm {
namespace {

struct ConvertFlags {
  ConversionRequest request;
  std::string output;
};

void note_assumptions(const ConversionRequest& request, const ConvertedModel& model) {
  for (const std::string& note : model.notes) print_note(request.source + ": " + note);
}

void warn_of_missing_config(const ConversionRequest& request, const ConvertedModel& model) {
  if (!request.config.empty()) return;
  char eps[32];
  std::snprintf(eps, sizeof eps, "%g", static_cast<double>(model.config.norm_eps));
  print_warning(request.source +
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
  const ConversionRequest& request = flags.request;
  check_request(request);
  const SourceKind kind = source_kind(request.source);
  const ModelOutput output(flags.output);
  ConvertedModel model;
  {
    ProgressLine progress;
    model = convert_source(request, output.path(), progress.callback());
  }
  note_assumptions(request, model);
  if (kind == SourceKind::kOlder) warn_of_missing_config(request, model);
  if (request.dry_run) {
    write_stdout(dry_run_text(output.is_stdout() ? output.name() : flags.output, model));
    return 0;
  }
  output.finish();
  print_note("wrote " + output.name() + ": " + human_count(model.parameter_count) +
             " parameters, " + human_bytes(model.file_bytes) + ", " +
             fixed(static_cast<double>(total.elapsed_ns()) / 1e9, 1) + " s");
  if (!model.tokenizer.present) {
    print_warning(
        request.source +
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
          "SRC", flags->request.source,
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
          "--ignore-key", flags->request.ignore_keys,
          "A key of config.json, or of a GGUF file's metadata, that edgellm does not know and you "
          "declare harmless; may be given several times")
      .value("KEY");
  command.flag("--dry-run", flags->request.dry_run,
               "Read and check everything, say what would be written, write nothing");
  command
      .option("--config", flags->request.config,
              "The config.json of the model that the file was made from; a TM2 file without it "
              "is taken as BitNet-b1.58-2B-4T's kind")
      .value("FILE.json")
      .group("GGUF and older files");
  command
      .option(
          "--tokenizer", flags->request.tokenizer,
          "The tokenizer.json for the file, with what stands beside it "
          "(tokenizer_config.json, generation_config.json, ...), or its folder; a GGUF file has "
          "its own, which this replaces")
      .value("FILE.json|DIR")
      .group("GGUF and older files");
  command
      .option(
          "--i2s-layout", flags->request.i2s_layout,
          "Which of its three layouts I2_S has in a GGUF file, where the weights do not show it")
      .value("x86|arm|rows")
      .group("GGUF and older files");
  command.runs([flags] { return convert(*flags); });
}

}  // namespace edgellm
