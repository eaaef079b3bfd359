// Times of the ops of a layer and of the head: each fused op by itself and the unfused chain of the
// same work, with the bytes that both move.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "apps/bench/ops/op_bytes.h"
#include "kernels/cpu/pool.h"
#include "model/config.h"
#include "model/model_file.h"

namespace edgellm::bench {

struct OpOptions {
  std::vector<int> rows;       // of a pass
  std::vector<int> sequences;  // of a decode step
  std::vector<int> depths;     // positions in the cache before the pass
  int repeats = 0;             // runs after the warm-up; their median is reported
  std::function<void()> poll;  // called before each run, may throw

  // The passes of `rows` and `sequences`, at this depth.
  std::vector<PassShape> passes(int depth) const;
};

struct OpTime {
  double time_us = 0;  // of one execution: the time of a run over its executions
  OpBytes bytes;

  double gb_s() const { return static_cast<double>(bytes.total()) / time_us / 1000.0; }
};

struct OpResult {
  std::string op;  // "qkv", ..., "layer" (all five), "head", "head certified"
  PassShape pass;
  int executions = 0;  // in a run: each layer's op once, or the same head several times
  OpTime fused;
  std::optional<OpTime> unfused;  // none of attention and heads: nothing is fused there
  bool stays_in_cache = false;    // a whole run reads no more than the largest cache holds
};

// Whether the weights, keys and values of that many executions fit into a cache.
bool stays_in_cache(const OpBytes& bytes, int executions, uint64_t cache_bytes);

using OpSink = std::function<void(const OpResult&)>;

// On the CPU, with the model's own weights. Before an op is timed, the results of the unfused chain
// are compared with those of the fused op. Throws Error (kVerification) where a bit differs.
void time_cpu_ops(const ModelFile& model, const OpOptions& options, cpu::Pool& pool,
                  uint64_t cache_bytes, const OpSink& sink);

// On a GPU, with random weights of the model's shape; compared as on the CPU. Throws Error
// (kUnsupported) for widths that the unfused kernels cannot take, and Error (kDevice) in a build
// without CUDA.
void time_gpu_ops(const ModelConfig& config, const OpOptions& options, int gpu,
                  uint64_t cache_bytes, const OpSink& sink);

// The object of docs/bench.md. `read_gb_s`: the read bandwidth of the memory.
nlohmann::ordered_json to_json(const OpResult& result, double read_gb_s);

}  // namespace edgellm::bench
