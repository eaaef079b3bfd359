// The options of `edgellm bench`, and the models that they name.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "apps/bench/report.h"
#include "apps/session/sampling_choice.h"
#include "apps/session/session.h"
#include "model/model_file.h"

namespace edgellm {

struct BenchFlags {
  std::vector<std::string> models;
  bool no_cache = false;
  std::vector<std::string> shapes;
  std::vector<int> prompts;                     // empty: the default, as far as the context allows
  std::vector<int> generated;                   // as above
  std::vector<int> depths;                      // as above
  std::vector<int> batches;                     // empty: 1; of --ops: none
  std::vector<std::string> devices = {"auto"};  // as typed; device_lists() reads them
  std::vector<std::string> kv_types = {"i16"};
  std::vector<int> threads = {0};
  std::vector<int> prefill_chunks = {0};
  int layers = 0;           // of shapes; 0: their own
  SamplingChoice sampling;  // of decode tests
  int repeats = 0;          // 0: the default of the kind of measurement
  std::string format;       // empty: a table for a terminal, md elsewhere
  bool json = false;        // as -o json
  std::string html;
  bool ops = false;
  std::vector<int> rows;  // of --ops; empty: the default
  bool no_graph = false;
  bool full_head = false;
  bool no_verify = false;
};

// A model to measure. The file of a random one has no name any more.
struct Subject {
  std::string name;
  std::shared_ptr<const ModelFile> model;
};

// The model that the user names.
Subject open_subject(const ModelChoice& choice);

// A random model of a shape, made for `context` positions. Its file loses its name as soon as it is
// mapped, so that nothing is left behind however the program ends.
Subject make_shape(const std::string& shape, const BenchFlags& flags, int context);

// What is wrong with a word of --device; empty for a good one.
std::string bench_device_problem(const std::string& word);

// What is measured one after the other: a device, or several that work together ("cuda:0,1",
// "cuda:all", "cpu+cpu"), as device_list_problem() has them. Throws Error (kUsage).
std::vector<std::string> device_lists(const std::vector<std::string>& words);

// Fills in the GPU of a run and its sensors, or why there is none.
void describe_gpu(bench::RunSetting& run, const std::vector<Device>& devices);

}  // namespace edgellm
