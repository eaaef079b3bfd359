// edgellm synth: a model of random weights, for tests and measurements.
#include <memory>

#include "apps/commands.h"
#include "apps/common/files.h"
#include "apps/common/terminal.h"
#include "apps/common/text_format.h"
#include "apps/session/model_flags.h"
#include "base/text.h"
#include "model/convert.h"

namespace edgellm {
namespace {

struct Flags {
  SynthOptions options;
  std::string output;
};

int synth(Flags& flags) {
  require_writable(flags.output);
  {
    ProgressLine progress;
    flags.options.progress = progress.callback();
    write_synth(flags.options, flags.output);
  }
  const ModelFile model = ModelFile::open(flags.output);
  print_note("wrote " + flags.output + ": " + human_count(model.parameter_count()) +
             " random parameters, " + human_bytes(model.file_bytes()));
  return 0;
}

}  // namespace

Command add_synth(CLI::App& root) {
  CLI::App* app = root.add_subcommand("synth", "Make a model of random weights, for measuring");
  app->footer(
      "  edgellm synth smollm-135m -o random.tmac2\n"
      "  edgellm synth llama3-8b --layers 2 --vocab 4099 --seed 1 -o small.tmac2\n"
      "The same command makes the same file on every machine.");
  auto flags = std::make_shared<Flags>();
  app->add_option("SHAPE", flags->options.shape,
                  "Path of a config.json, or one of " + join(synth_shape_names(), ", "))
      ->required()
      ->check(shape_problem)
      ->option_text(join(synth_shape_names(), "|") + "|FILE.json");
  app->add_option("-o,--output", flags->output, "The file to write; an older one is replaced")
      ->required()
      ->option_text("OUT.tmac2");
  app->add_option("--layers", flags->options.layers, "Layers instead of the shape's")
      ->check(CLI::Range(1, INT32_MAX).description(""))
      ->option_text("N");
  app->add_option("--vocab", flags->options.vocab, "Size of the vocabulary instead of the shape's")
      ->check(CLI::Range(1, INT32_MAX).description(""))
      ->option_text("N");
  app->add_option("--seed", flags->options.seed, "Seed of the random numbers [0]")
      ->option_text("S");
  return {app, [flags] { return synth(*flags); }};
}

}  // namespace edgellm
