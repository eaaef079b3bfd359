// edgellm synth: a model of random weights, for tests and measurements.
#include <memory>

#include "apps/common/terminal.h"
#include "apps/common/text_format.h"
#include "apps/flags/flags.h"
#include "apps/inspect/commands.h"
#include "apps/inspect/model_output.h"
#include "base/text.h"
#include "model/convert.h"

namespace edgellm {
namespace {

struct SynthFlags {
  SynthOptions options;
  std::string output;
};

int synth(SynthFlags& flags) {
  const ModelOutput output(flags.output);
  {
    ProgressLine progress;
    flags.options.progress = progress.callback();
    write_synth(flags.options, output.path());
  }
  const ModelFile model = ModelFile::open(output.path());
  output.finish();
  print_note("wrote " + output.name() + ": " + human_count(model.parameter_count()) +
             " random parameters, " + human_bytes(model.file_bytes()));
  return 0;
}

}  // namespace

void add_synth(Program& program) {
  Command& command =
      program.add("synth", "Make a model of random weights, for measuring",
                  "  edgellm synth smollm-135m -o random.tmac2\n"
                  "  edgellm synth llama3-8b --layers 2 --vocab 4099 --seed 1 -o small.tmac2\n"
                  "The same command makes the same file on every machine.");
  auto flags = std::make_shared<SynthFlags>();
  command
      .option("SHAPE", flags->options.shape,
              "Path of a config.json, or one of " + join(synth_shape_names(), ", "))
      .required()
      .check(shape_problem)
      .value(shape_value());
  command
      .option("-o,--output", flags->output,
              "The file to write; an older one is replaced; - is standard output")
      .required()
      .value("OUT.tmac2");
  command.option("--layers", flags->options.layers, "Layers instead of the shape's")
      .range(1, INT32_MAX)
      .value("N");
  command.option("--vocab", flags->options.vocab, "Size of the vocabulary instead of the shape's")
      .range(1, INT32_MAX)
      .value("N");
  command.option("--seed", flags->options.seed, "Seed of the random numbers [0]").value("S");
  command.runs([flags] { return synth(*flags); });
}

}  // namespace edgellm
