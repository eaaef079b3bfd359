#include "apps/bench/ops/op_benchmark.h"

#include <algorithm>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "apps/bench/ops/layer_ops.h"
#include "apps/common/statistics.h"
#include "base/error.h"

namespace edgellm::bench {
namespace {

// ---- Layers -------------------------------------------------------------------------------------

class LayerBenchmark {
 public:
  LayerBenchmark(const ModelConfig& config, const OpOptions& options, OpDevice& device,
                 uint64_t cache_bytes)
      : config_(config),
        options_(options),
        device_(device),
        cache_bytes_(cache_bytes),
        ops_(config, options, device) {}

  void run(const OpSink& sink) {
    for (PassShape pass : options_.passes(0)) {
      for (size_t d = 0; d < options_.depths.size(); ++d) {
        pass.depth = options_.depths[d];
        ops_.set_pass(pass);
        for (const LayerOp op : kLayerOps) {
          // The depth changes nothing for the products except the angles of RoPE.
          if (op != LayerOp::kAttention && d > 0) continue;
          if (op != LayerOp::kAttention) {
            ops_.compare(op, 0);
            ops_.compare(op, ops_.layers() - 1);
          }
          sink(time(to_string(op), {&op, 1}, pass));
        }
        // All ops of a layer, one after the other, as in a pass.
        sink(time("layer", kLayerOps, pass));
      }
    }
  }

 private:
  // Of the ops together.
  OpResult time(const char* name, std::span<const LayerOp> ops, const PassShape& pass) {
    OpResult result{name, pass, ops_.layers(), {}, {}, false};
    const RowPadding padding = device_.facts().padding;
    for (const LayerOp op : ops) {
      const int steps = device_.steps(op, [&] { ops_.fused(op, 0); });
      result.fused.bytes += fused_bytes(config_, op, pass, padding, steps);
    }
    result.fused.time_us = time_us(ops, &LayerOps::fused);
    if (ops.size() > 1 || ops.front() != LayerOp::kAttention) {
      OpTime& unfused = result.unfused.emplace();
      for (const LayerOp op : ops) unfused.bytes += unfused_bytes(config_, op, pass, padding);
      unfused.time_us = time_us(ops, &LayerOps::unfused);
    }
    result.stays_in_cache = stays_in_cache(result.fused.bytes, ops_.layers(), cache_bytes_);
    return result;
  }

  // Of one layer: all layers one after the other, so that each op meets weights that no cache holds
  // any more, as in a pass.
  double time_us(std::span<const LayerOp> ops, void (LayerOps::*execute)(LayerOp, int) const) {
    const std::vector<double> times = device_.run_times_us([&] {
      for (int l = 0; l < ops_.layers(); ++l) {
        for (const LayerOp op : ops) (ops_.*execute)(op, l);
      }
    });
    return summarise(times).median / ops_.layers();
  }

  const ModelConfig& config_;
  const OpOptions& options_;
  OpDevice& device_;
  const uint64_t cache_bytes_;
  LayerOps ops_;
};

// ---- The head -----------------------------------------------------------------------------------

class HeadBenchmark {
 public:
  // For up to `max_rows` rows.
  HeadBenchmark(const ModelConfig& config, int max_rows, OpDevice& device, uint64_t cache_bytes)
      : config_(config),
        device_(device),
        cache_bytes_(cache_bytes),
        operands_(device.prepare_head(max_rows)) {
    const auto n_rows = static_cast<size_t>(max_rows);
    const auto dim = static_cast<size_t>(config.dim);
    const auto vocab = static_cast<size_t>(config.vocab);
    std::vector<int32_t> row_list(n_rows);
    std::iota(row_list.begin(), row_list.end(), 0);
    args_.x = device.random_floats(n_rows * dim);
    args_.row_list = copy_of(row_list);
    args_.gain = operands_.gain;
    args_.eps = config.norm_eps;
    args_.w = operands_.w;
    args_.normed = allocate<float>(n_rows * dim);
    args_.logits = allocate<float>(n_rows * vocab);
    args_.argmax = allocate<int32_t>(n_rows);
    args_.layers = config.layers;
    args_.fault = copy_of(std::vector<int32_t>{0});
    rescored_ = allocate<int32_t>(n_rows);
  }

  void run(int rows, const OpSink& sink) {
    args_.rows = rows;
    const int element_bytes = operands_.w.type == DenseType::kF32 ? 4 : 2;
    const int steps = device_.facts().head_steps;
    const OpResult full = time("head", [&] { device_.head(args_); });
    sink(with_bytes(full, full_head_bytes(config_, rows, element_bytes, steps)));
    if (operands_.copy.codes == nullptr) return;

    const std::vector<int32_t> by_full = download(args_.argmax);
    const OpResult certified = time("head certified", [&] {
      device_.certified_head({args_, operands_.copy, rescored_});
    });
    if (download(args_.argmax) != by_full) {
      throw Error(ExitCode::kVerification,
                  std::string("the certified head chooses other ids than the full head; run ") +
                      device_.facts().kernels_test);
    }
    uint64_t rescored = 0;
    for (const int32_t n : download(rescored_)) rescored += static_cast<uint64_t>(n);
    sink(with_bytes(certified, certified_head_bytes(config_, rows, operands_.copy_row_bytes,
                                                    element_bytes, rescored)));
  }

 private:
  template <class T>
  T* allocate(size_t n) {
    return reinterpret_cast<T*>(device_.allocate(n * sizeof(T)));
  }
  int32_t* copy_of(const std::vector<int32_t>& values) {
    int32_t* const copy = allocate<int32_t>(values.size());
    device_.upload(copy, values.data(), values.size() * sizeof(int32_t));
    return copy;
  }
  // An element for each row of the pass.
  std::vector<int32_t> download(const int32_t* from) {
    std::vector<int32_t> values(static_cast<size_t>(args_.rows));
    device_.download(values.data(), from, values.size() * sizeof(int32_t));
    return values;
  }

  OpResult time(const char* name, const std::function<void()>& head) {
    const int executions = device_.facts().head_executions;
    const std::vector<double> times = device_.run_times_us([&] {
      for (int i = 0; i < executions; ++i) head();
    });
    OpResult result{name, {args_.rows, 0}, executions, {}, {}, false};
    result.fused.time_us = summarise(times).median / executions;
    return result;
  }

  // All executions read the same weights.
  OpResult with_bytes(OpResult result, const OpBytes& bytes) const {
    result.fused.bytes = bytes;
    result.stays_in_cache = stays_in_cache(bytes, 1, cache_bytes_);
    return result;
  }

  const ModelConfig& config_;
  OpDevice& device_;
  const uint64_t cache_bytes_;
  const HeadOperands operands_;
  HeadArgs args_;
  int32_t* rescored_ = nullptr;
};

}  // namespace

void time_ops(const ModelConfig& config, const OpOptions& options, const MakeOpDevice& make_device,
              uint64_t cache_bytes, const OpSink& sink) {
  {
    const std::unique_ptr<OpDevice> device = make_device();
    LayerBenchmark(config, options, *device, cache_bytes).run(sink);
  }
  std::vector<int> head_rows;
  for (const PassShape& pass : options.passes(0)) {
    // The engine makes logits of no more rows at a time.
    if (pass.is_decode() && pass.rows <= 256) head_rows.push_back(pass.rows);
  }
  if (head_rows.empty()) return;
  const std::unique_ptr<OpDevice> device = make_device();
  HeadBenchmark head(config, *std::ranges::max_element(head_rows), *device, cache_bytes);
  for (const int rows : head_rows) head.run(rows, sink);
}

}  // namespace edgellm::bench
