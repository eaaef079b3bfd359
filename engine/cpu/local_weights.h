// The matrices of a model on a machine with several NUMA nodes: a copy, of which each thread's part
// lies in the memory of its own node. The pages of a mapped file lie where they were first read, by
// this program or another: often all on one node, whose memory then has to serve all cores.
//
// A page belongs to the node of the thread that first writes it, so threads on the nodes' cores
// copy.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "engine/cpu/lazy_memory.h"
#include "model/model_file.h"

namespace edgellm {

class LocalWeights {
 public:
  // For a pool of as many threads, each with the share of a matrix's rows that cpu::Pool gives it.
  // The pages of the file leave memory, as far as no other process has them. Throws Error
  // (kRuntime) where there is no memory.
  LocalWeights(const ModelFile& model, const std::vector<std::vector<int>>& cpus_of_threads);

  // The copied matrices; all else is the model's. An embedding that is not the head stays where it
  // is: few of its rows are read.
  const Weights& weights() const { return weights_; }
  size_t bytes() const { return memory_->bytes(); }

 private:
  Weights weights_;
  std::optional<LazyMemory> memory_;
};

}  // namespace edgellm
