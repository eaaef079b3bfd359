// The layer loop on an NVIDIA GPU.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "base/error.h"
#include "engine/backend.h"
#include "engine/pass.h"
#include "engine/rope_table.h"
#include "engine/views.h"
#include "kernels/cuda/check.h"
#include "kernels/cuda/cuda.h"

namespace edgellm {
namespace {

using cuda::cuda_check;

// Rows of logits that one launch of the head writes.
constexpr size_t kLogitRows = 8;

class DeviceMemory {
 public:
  explicit DeviceMemory(size_t bytes) {
    cuda_check(cudaMalloc(&data_, bytes), "allocating device memory");
  }
  ~DeviceMemory() { cudaFree(data_); }
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
  std::byte* data() const { return static_cast<std::byte*>(data_); }

 private:
  void* data_ = nullptr;
};

// Host memory that the device reads and writes in place.
class PinnedMemory {
 public:
  explicit PinnedMemory(size_t count) {
    cuda_check(cudaHostAlloc(&data_, count * sizeof(int32_t), cudaHostAllocMapped),
               "allocating pinned memory");
    std::memset(data_, 0, count * sizeof(int32_t));
  }
  ~PinnedMemory() { cudaFreeHost(data_); }
  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;
  int32_t* data() const { return static_cast<int32_t*>(data_); }

 private:
  void* data_ = nullptr;
};

class Stream {
 public:
  Stream() {
    cuda_check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "creating a stream");
  }
  ~Stream() { cudaStreamDestroy(stream_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  operator cudaStream_t() const { return stream_; }
  void wait() const { cuda_check(cudaStreamSynchronize(stream_), "running the model"); }

 private:
  cudaStream_t stream_ = nullptr;
};

// A captured step that can be launched again and again. Takes over `graph`.
class GraphExec {
 public:
  explicit GraphExec(cudaGraph_t graph) {
    const cudaError_t status = cudaGraphInstantiate(&exec_, graph, 0);
    cudaGraphDestroy(graph);
    cuda_check(status, "instantiating a graph");
  }
  ~GraphExec() {
    if (exec_ != nullptr) cudaGraphExecDestroy(exec_);
  }
  GraphExec(GraphExec&& other) noexcept : exec_(std::exchange(other.exec_, nullptr)) {}
  GraphExec& operator=(GraphExec&&) = delete;
  void launch(cudaStream_t stream) const {
    cuda_check(cudaGraphLaunch(exec_, stream), "launching a graph");
  }

 private:
  cudaGraphExec_t exec_ = nullptr;
};

struct DeviceLayer {
  const float* attn_norm;
  TernaryMatrix q, k, v;
  const float* attn_sub_norm;  // null where the model has none
  TernaryMatrix o;
  const float* ffn_norm;
  TernaryMatrix gate, up;
  const float* ffn_sub_norm;  // null where the model has none
  TernaryMatrix down;
};

// Hands out 256-aligned places of one allocation. Without memory it only counts.
class Placer {
 public:
  explicit Placer(std::byte* base) : base_(base) {}

  std::byte* take(size_t bytes) {
    std::byte* place = base_ == nullptr ? nullptr : base_ + used_;
    used_ += (bytes + 255) / 256 * 256;
    return place;
  }
  template <class T>
  T* take(size_t count) {
    return reinterpret_cast<T*>(take(count * sizeof(T)));
  }
  size_t used() const { return used_; }

 private:
  std::byte* base_;
  size_t used_ = 0;
};

// Everything on the device, placed in one allocation. The same constructor runs without memory to
// plan (`uploads` false) and with it to place and upload.
struct DeviceState {
  DenseMatrix embedding, head;
  const float* final_norm = nullptr;
  std::vector<DeviceLayer> layers;

  std::byte* kv = nullptr;    // per layer: keys, then values
  int32_t* inputs = nullptr;  // what forward() writes on the host, in its order
  int32_t* block_table = nullptr;
  float* rope_cos = nullptr;  // [context, head_dim / 2]
  float* rope_sin = nullptr;
  float* x = nullptr;          // [max_rows, dim] residual stream
  float* q = nullptr;          // [max_rows, q_dim]
  float* attention = nullptr;  // [max_rows, q_dim]
  float* u = nullptr;          // [max_rows, ffn]
  float* normed = nullptr;     // [max_rows, dim]
  float* logits = nullptr;     // [kLogitRows, vocab]
  cuda::Workspace workspace;
  MemoryPlan plan;

  DeviceState(const ModelFile& model, const EngineOptions& options, std::byte* memory,
              cudaStream_t stream)
      : placer_(memory), uploads_(memory != nullptr), stream_(stream) {
    const ModelConfig& config = model.config();
    const Weights& weights = model.weights();
    invalid_ = placer_.take<int32_t>(1);
    embedding = put(weights.embedding);
    head = config.tied_head ? embedding : put(weights.head);
    final_norm = put(weights.final_norm);
    for (const LayerWeights& w : weights.layers) {
      layers.push_back({put(w.attn_norm), put(w.q), put(w.k), put(w.v), put(w.attn_sub_norm),
                        put(w.o), put(w.ffn_norm), put(w.gate), put(w.up), put(w.ffn_sub_norm),
                        put(w.down)});
    }
    plan.weights = placer_.used();

    const int context = context_of(model, options);
    const ContiguousCache cache(config, options, context);
    kv = placer_.take(2 * static_cast<size_t>(config.layers) * cache.layer_bytes);
    plan.kv_cache = placer_.used() - plan.weights;

    place_workspace(config, options, context, cache.block_size / kAttentionChunk);
    plan.workspace = placer_.used() - plan.weights - plan.kv_cache;
    if (uploads_) upload_tables(model, options, context);
  }

 private:
  void upload(void* to, const void* from, size_t bytes) const {
    cuda_check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream_),
               "uploading the model");
  }
  const float* put(std::span<const float> values) {
    if (values.empty()) return nullptr;
    float* place = placer_.take<float>(values.size());
    if (uploads_) upload(place, values.data(), values.size_bytes());
    return place;
  }
  DenseMatrix put(const DenseTensor& tensor) {
    DenseMatrix matrix = view(tensor);
    const size_t bytes = static_cast<size_t>(tensor.rows) * static_cast<size_t>(tensor.cols) *
                         (tensor.dtype == DType::kF32 ? 4 : 2);
    std::byte* place = placer_.take(bytes);
    if (uploads_) upload(place, tensor.data, bytes);
    matrix.data = place;
    return matrix;
  }
  TernaryMatrix put(const TernaryTensor& tensor) {
    TernaryMatrix matrix = view(tensor);
    const size_t pitch = cuda::ternary_pitch(tensor.cols);
    const size_t rows = static_cast<size_t>(tensor.rows);
    uint8_t* place = placer_.take<uint8_t>(pitch * rows);
    if (uploads_) {
      // The padding of the rows must be zero codes; where there is none, rows are copied whole.
      if (pitch != tensor.row_bytes()) {
        cuda_check(cudaMemsetAsync(place, 0, pitch * rows, stream_), "clearing padding");
      }
      cuda_check(cudaMemcpy2DAsync(place, pitch, tensor.codes, tensor.row_bytes(),
                                   tensor.row_bytes(), rows, cudaMemcpyHostToDevice, stream_),
                 "uploading the model");
      cuda::repack(place, tensor.rows, tensor.cols, invalid_, stream_);
    }
    matrix.codes = place;
    matrix.scale = put(tensor.scale);
    return matrix;
  }

  void place_workspace(const ModelConfig& config, const EngineOptions& options, int context,
                       int chunks) {
    const size_t rows = static_cast<size_t>(options.max_rows);
    const size_t dim = static_cast<size_t>(config.dim);
    const size_t q_dim = static_cast<size_t>(config.q_dim());
    const size_t angles = static_cast<size_t>(context) * static_cast<size_t>(config.head_dim / 2);
    const size_t inline_rows = cuda::kMaxInlineRows;
    inputs = placer_.take<int32_t>(4 * rows + static_cast<size_t>(config.vocab));
    block_table = placer_.take<int32_t>(static_cast<size_t>(options.sequences));
    rope_cos = placer_.take<float>(angles);
    rope_sin = placer_.take<float>(angles);
    x = placer_.take<float>(rows * dim);
    q = placer_.take<float>(rows * q_dim);
    attention = placer_.take<float>(rows * q_dim);
    u = placer_.take<float>(rows * static_cast<size_t>(config.ffn));
    normed = placer_.take<float>(rows * dim);
    logits = placer_.take<float>(kLogitRows * static_cast<size_t>(config.vocab));
    const int widest = std::max({config.dim, config.q_dim(), config.ffn});
    workspace.codes = placer_.take<int8_t>(rows * cuda::quantised_row_bytes(widest));
    workspace.row_s = placer_.take<float>(rows);
    workspace.row_r = placer_.take<float>(rows);
    workspace.row_sum = placer_.take<int32_t>(rows);
    workspace.max_chunks = chunks;
    workspace.attention =
        placer_.take<float>(inline_rows * static_cast<size_t>(config.heads) *
                            static_cast<size_t>(chunks) * static_cast<size_t>(cuda::attention_state(config.head_dim)));
    workspace.attention_done =
        placer_.take<int32_t>(inline_rows * static_cast<size_t>(config.heads));
    workspace.best = placer_.take<unsigned long long>(kLogitRows);
    workspace.head_done = placer_.take<int32_t>(1);
    if (!uploads_) return;
    const auto clear = [&](void* at, size_t bytes) {
      cuda_check(cudaMemsetAsync(at, 0, bytes, stream_), "clearing counters");
    };
    clear(workspace.attention_done,
          inline_rows * static_cast<size_t>(config.heads) * sizeof(int32_t));
    clear(workspace.best, kLogitRows * sizeof(unsigned long long));
    clear(workspace.head_done, sizeof(int32_t));
  }

  void upload_tables(const ModelFile& model, const EngineOptions& options, int context) const {
    std::vector<int32_t> table;
    for (int s = 0; s < options.sequences; ++s) table.push_back(s);
    upload(block_table, table.data(), table.size() * sizeof(int32_t));
    RopeTable rope(model.weights().inv_freq);
    rope.grow(context);
    const size_t bytes =
        static_cast<size_t>(context) * model.weights().inv_freq.size() * sizeof(float);
    upload(rope_cos, rope.cosine(), bytes);
    upload(rope_sin, rope.sine(), bytes);
    // The host's copies go away now.
    cuda_check(cudaStreamSynchronize(stream_), "uploading the model");
  }

  Placer placer_;
  bool uploads_;
  cudaStream_t stream_;
  int32_t* invalid_ = nullptr;
};

// Makes the GPU of the options current and checks that the model fits, before anything is
// allocated.
std::string claim_gpu(const ModelFile& model, const EngineOptions& options) {
  cuda_check(cudaSetDevice(options.gpu), "selecting the GPU");
  cudaDeviceProp properties;
  cuda_check(cudaGetDeviceProperties(&properties, options.gpu), "reading the GPU's properties");
  if (properties.major * 10 + properties.minor < 75) {
    throw Error(ExitCode::kDevice,
                std::string("the GPU ") + properties.name + " has compute capability " +
                    std::to_string(properties.major) + "." + std::to_string(properties.minor) +
                    ", but 7.5 or newer is needed; use --device cpu");
  }
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  cuda_check(cudaMemGetInfo(&free_bytes, &total_bytes), "reading the GPU's free memory");
  const MemoryPlan plan = plan_cuda_memory(model, options);
  if (plan.total() > free_bytes) {
    const auto mib = [](uint64_t bytes) { return std::to_string(bytes >> 20) + " MiB"; };
    const uint64_t fixed = plan.weights + plan.workspace;
    const uint64_t per_position = plan.kv_cache / static_cast<uint64_t>(context_of(model, options));
    const std::string hint = free_bytes > fixed && per_position > 0
                                 ? "a context of " +
                                       std::to_string((free_bytes - fixed) / per_position) +
                                       " would fit (-c), or use --device cpu"
                                 : "use --device cpu";
    throw Error(ExitCode::kDevice, "the model needs " + mib(plan.total()) + " on the GPU (" +
                                       mib(plan.weights) + " weights, " + mib(plan.kv_cache) +
                                       " KV cache, " + mib(plan.workspace) + " workspace), but " +
                                       mib(free_bytes) + " are free; " + hint);
  }
  return "cuda:" + std::to_string(options.gpu) + " (" + properties.name + ")";
}

class CudaBackend final : public Backend {
 public:
  CudaBackend(const ModelFile& model, const EngineOptions& options)
      : model_(model),
        config_(model.config()),
        options_(options),
        context_(context_of(model, options)),
        cache_(config_, options, context_),
        name_(claim_gpu(model, options)),
        memory_(plan_cuda_memory(model, options).total()),
        state_(model, options, memory_.data(), stream_),
        host_(4 * static_cast<size_t>(options.max_rows) + static_cast<size_t>(config_.vocab) +
              kLogitRows + 1) {
    require(options.sequences >= 1 && options.max_rows >= 1,
            "a backend needs a row and a sequence");
    const size_t rows = static_cast<size_t>(options.max_rows);
    const size_t vocab = static_cast<size_t>(config_.vocab);
    in_ = Inputs(host_.data(), rows);
    device_in_ = Inputs(state_.inputs, rows);
    argmax_ = in_.banned + vocab;
    fault_ = argmax_ + kLogitRows;
  }

  void forward(const Batch& batch, const Outputs& outputs) override {
    check_pass(batch, outputs, config_, options_, context_);
    std::copy(batch.ids.begin(), batch.ids.end(), in_.ids);
    std::copy(batch.sequences.begin(), batch.sequences.end(), in_.sequences);
    std::copy(batch.positions.begin(), batch.positions.end(), in_.positions);
    std::copy(outputs.banned.begin(), outputs.banned.end(), in_.banned);
    *fault_ = 0;
    if (is_decode_step(batch, outputs)) {
      replay(batch, outputs);
    } else {
      send_inputs(outputs.banned.size());
      run_layers(static_cast<int>(batch.ids.size()), outputs);
      run_head(batch, outputs);
    }
    throw_on_fault(*fault_, model_);
  }

  std::string device_name() const override { return name_; }
  MemoryPlan memory() const override { return state_.plan; }
  int context() const override { return context_; }
  int max_rows() const override { return options_.max_rows; }
  const ModelFile& model() const override { return model_; }

 private:
  // What changes from pass to pass, as it lies in host_ and in DeviceState::inputs.
  struct Inputs {
    int32_t* ids = nullptr;        // [max_rows]
    int32_t* sequences = nullptr;  // [max_rows]
    int32_t* positions = nullptr;  // [max_rows]
    int32_t* row_list = nullptr;   // [max_rows]
    int32_t* banned = nullptr;     // [vocab]

    Inputs() = default;
    Inputs(int32_t* base, size_t rows)
        : ids(base),
          sequences(base + rows),
          positions(base + 2 * rows),
          row_list(base + 3 * rows),
          banned(base + 4 * rows) {}
  };

  void send_inputs(size_t n_banned) {
    const size_t count = 4 * static_cast<size_t>(options_.max_rows) + n_banned;
    cuda_check(cudaMemcpyAsync(device_in_.ids, in_.ids, count * sizeof(int32_t),
                               cudaMemcpyHostToDevice, stream_),
               "sending a step's inputs");
  }

  // A step that comes again and again: an arg-max of every row and nothing else.
  bool is_decode_step(const Batch& batch, const Outputs& outputs) const {
    return options_.use_graph && batch.ids.size() <= cuda::kMaxInlineRows &&
           outputs.argmax.size() == batch.ids.size() && outputs.logits.empty() &&
           outputs.hidden.empty();
  }

  void replay(const Batch& batch, const Outputs& outputs) {
    const size_t rows = batch.ids.size();
    std::copy(outputs.rows.begin(), outputs.rows.end(), in_.row_list);
    // The launches' arguments depend on these two numbers only.
    const auto key = std::pair(rows, outputs.banned.size());
    auto graph = graphs_.find(key);
    if (graph == graphs_.end()) {
      cuda_check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeRelaxed),
                 "starting a capture");
      send_inputs(outputs.banned.size());
      run_layers(static_cast<int>(rows), outputs);
      launch_head(rows, outputs.banned.size(), /*with_argmax=*/true);
      cudaGraph_t captured = nullptr;
      cuda_check(cudaStreamEndCapture(stream_, &captured), "ending a capture");
      graph = graphs_.emplace(key, GraphExec(captured)).first;
    }
    graph->second.launch(stream_);
    stream_.wait();
    std::copy_n(argmax_, rows, outputs.argmax.data());
  }

  void run_layers(int rows, const Outputs& outputs) {
    const RowPlaces places{device_in_.sequences, device_in_.positions};
    const float eps = config_.norm_eps;
    const GateActivation act = view(config_.act);
    const cuda::Workspace& workspace = state_.workspace;
    float* x = state_.x;
    cuda::embed({state_.embedding, device_in_.ids, x, rows}, stream_);
    keep_hidden(outputs, 0, rows);
    for (int l = 0; l < config_.layers; ++l) {
      const DeviceLayer& w = state_.layers[static_cast<size_t>(l)];
      const KvCache kv = cache_.layer(l, state_.kv, state_.block_table, config_, options_.kv_type);
      cuda::qkv({x, w.attn_norm, eps, w.q, w.k, w.v, state_.rope_cos, state_.rope_sin, places,
                 state_.q, kv, rows, config_.dim, config_.heads, l, fault_},
                workspace, stream_);
      cuda::attention({state_.q, kv, places, state_.attention, rows, config_.heads}, workspace,
                      stream_);
      cuda::attn_out({state_.attention, w.attn_sub_norm, eps, w.o, x, rows, l, fault_}, workspace,
                     stream_);
      cuda::ffn_up({x, w.ffn_norm, eps, w.gate, w.up, act, state_.u, rows, l, fault_}, workspace,
                   stream_);
      cuda::ffn_down({state_.u, w.ffn_sub_norm, eps, w.down, x, rows, l, fault_}, workspace,
                     stream_);
      if (l + 1 < config_.layers) keep_hidden(outputs, l + 1, rows);
    }
  }

  HeadArgs head_args(size_t rows) const {
    HeadArgs head;
    head.x = state_.x;
    head.row_list = device_in_.row_list;
    head.gain = state_.final_norm;
    head.eps = config_.norm_eps;
    head.w = state_.head;
    head.normed = state_.normed;
    head.logits = state_.logits;
    head.rows = static_cast<int>(rows);
    head.layers = config_.layers;
    head.fault = fault_;
    return head;
  }

  void launch_head(size_t rows, size_t n_banned, bool with_argmax) {
    HeadArgs head = head_args(rows);
    head.argmax = with_argmax ? argmax_ : nullptr;
    head.banned = device_in_.banned;
    head.n_banned = static_cast<int>(n_banned);
    cuda::head(head, state_.workspace, stream_);
  }

  void read(float* to, const float* from, size_t count) {
    cuda_check(cudaMemcpyAsync(to, from, count * sizeof(float), cudaMemcpyDeviceToHost, stream_),
               "reading results");
  }

  void keep_hidden(const Outputs& outputs, int index, int rows) {
    if (outputs.hidden.empty()) return;
    const size_t values = static_cast<size_t>(rows) * static_cast<size_t>(config_.dim);
    read(outputs.hidden.data() + static_cast<size_t>(index) * values, state_.x, values);
  }

  void run_head(const Batch& batch, const Outputs& outputs) {
    if (!outputs.hidden.empty()) {
      // The final norm of every row of the batch; no logits are asked for here.
      const size_t rows = batch.ids.size();
      stream_.wait();  // nothing still reads the row list
      for (size_t i = 0; i < rows; ++i) in_.row_list[i] = static_cast<int32_t>(i);
      send_inputs(0);
      HeadArgs norm_only = head_args(rows);
      norm_only.w.rows = 0;
      cuda::head(norm_only, state_.workspace, stream_);
      const size_t values = rows * static_cast<size_t>(config_.dim);
      read(outputs.hidden.data() + static_cast<size_t>(config_.layers) * values, state_.normed,
           values);
    }
    stream_.wait();
    const size_t vocab = static_cast<size_t>(config_.vocab);
    for (size_t begin = 0; begin < outputs.rows.size(); begin += kLogitRows) {
      const size_t n = std::min(kLogitRows, outputs.rows.size() - begin);
      std::copy_n(outputs.rows.begin() + static_cast<ptrdiff_t>(begin), n, in_.row_list);
      send_inputs(outputs.banned.size());
      launch_head(n, outputs.banned.size(), !outputs.argmax.empty());
      if (!outputs.logits.empty()) {
        read(outputs.logits.data() + begin * vocab, state_.logits, n * vocab);
      }
      stream_.wait();
      if (!outputs.argmax.empty()) std::copy_n(argmax_, n, outputs.argmax.data() + begin);
    }
  }

  const ModelFile& model_;
  const ModelConfig& config_;
  const EngineOptions options_;
  const int context_;
  const ContiguousCache cache_;
  const std::string name_;
  Stream stream_;
  DeviceMemory memory_;
  DeviceState state_;
  PinnedMemory host_;
  // in_, argmax_ and fault_ lie in host_. in_ is written before a pass is launched and sent to
  // device_in_: kernels that read the host's memory would wait for the bus, each for itself.
  Inputs in_;
  Inputs device_in_;
  int32_t* argmax_;
  int32_t* fault_;
  std::map<std::pair<size_t, size_t>, GraphExec> graphs_;  // by rows and banned ids
};

}  // namespace

std::unique_ptr<Backend> make_cuda_backend(const ModelFile& model, const EngineOptions& options) {
  return std::make_unique<CudaBackend>(model, options);
}

MemoryPlan plan_cuda_memory(const ModelFile& model, const EngineOptions& options) {
  return DeviceState(model, options, nullptr, nullptr).plan;
}

}  // namespace edgellm
