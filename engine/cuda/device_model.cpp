#include "engine/cuda/device_model.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <numeric>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/number_format.h"
#include "engine/cuda/resources.h"
#include "engine/pass.h"
#include "engine/rope_table.h"
#include "engine/views.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/machine.h"
#include "kernels/cpu/pool.h"
#include "kernels/cuda/plan/choose.h"
#include "kernels/cuda/plan/head.h"
#include "kernels/integer_sizes.h"

namespace edgellm {
namespace {

using cuda::cuda_check;

// Bytes of one copy to the device, or those of a row of codes where it is longer: enough for the
// bus. Larger staging buffers make a start slow: the driver takes half a millisecond to pin a
// megabyte, and does so for one engine after the other.
constexpr size_t kPieceBytes = size_t{1} << 20;

// One thread reads the page cache at 5 to 10 GB/s, the bus takes up to 50.
constexpr int kCopyThreads = 6;

// Bytes of a workspace. Attention's states get what the rest of the workspace leaves, but at least
// one row's: for all rows of a long context they would take hundreds of megabytes.
constexpr size_t kWorkspaceBytes = size_t{64} << 20;

// Two staging buffers of a thread: one is filled while the other is on its way.
class Stager {
 public:
  explicit Stager(size_t buffer_bytes) : buffer_bytes_(buffer_bytes), memory_(2 * buffer_bytes) {}
  // Where another thread has failed, the bus may still be reading the buffers.
  ~Stager() { cudaStreamSynchronize(stream_); }

  std::byte* next() {
    turn_ = 1 - turn_;
    sent_[turn_].wait("uploading the model");
    return memory_.data() + static_cast<size_t>(turn_) * buffer_bytes_;
  }
  void send(std::byte* to, const std::byte* staged, size_t bytes) {
    cuda_check(cudaMemcpyAsync(to, staged, bytes, cudaMemcpyHostToDevice, stream_),
               "uploading the model");
    sent_[turn_].record(stream_);
  }
  void finish() const {
    for (const Event& event : sent_) event.wait("uploading the model");
  }

 private:
  const size_t buffer_bytes_;
  PinnedMemory memory_;
  Stream stream_;
  Event sent_[2];
  int turn_ = 0;
};

}  // namespace

DeviceModel::DeviceModel(const ModelFile& model, const EngineOptions& options, std::byte* memory)
    : max_rows(static_cast<size_t>(options.max_rows)),
      arena_(memory),
      has_memory_(memory != nullptr) {
  const ModelConfig& config = model.config();
  const Weights& weights = model.weights();
  embedding = put(weights.embedding);
  ternary_embedding = put(weights.ternary_embedding);
  head = config.tied_head ? embedding : put(weights.head);
  ternary_head = config.tied_head ? ternary_embedding : put(weights.ternary_head);
  final_norm = put(weights.final_norm);
  for (const LayerWeights& w : weights.layers) {
    layers.push_back(
        {put(w.attn_norm),
         put(w.q),
         put(w.k),
         put(w.v),
         put(w.q_norm),
         put(w.k_norm),
         put(w.attn_sub_norm),
         put(w.o),
         put(w.ffn_norm),
         put(w.gate),
         put(w.up),
         put(w.ffn_sub_norm),
         put(w.down),
         {put(w.input_norms.q), put(w.input_norms.k), put(w.input_norms.v), put(w.input_norms.o),
          put(w.input_norms.gate), put(w.input_norms.up), put(w.input_norms.down)}});
  }
  plan.weights = arena_.used();
  // A ternary head takes as few bytes as it is.
  if (!options.full_head && weights.head.data != nullptr && head.cols <= kMaxCertifiedCols) {
    allocate_certified_head();
  }
  plan.certified_head = arena_.used() - plan.weights;

  const int context = context_of(model, options);
  const CacheLayout cache(config, options, context);
  const size_t kv_bytes = cache.bytes(config.layers);
  kv = arena_.allocate(kv_bytes);
  // Units that no row has written yet must be finite (docs/numerics.md).
  if (has_memory_) zeroed_.push_back({kv, kv_bytes});
  plan.kv_cache = arena_.used() - plan.weights - plan.certified_head;

  block_table = arena_.allocate<int32_t>(static_cast<size_t>(cache.table_rows) *
                                         static_cast<size_t>(cache.blocks_per_sequence));
  workspace.max_chunks = cuda::divide_up(context, kIntegerChunk);
  allocate_workspace(config, options, context);
  plan.workspace = arena_.used() - plan.weights - plan.certified_head - plan.kv_cache;
}

void DeviceModel::add_bytes(void* to, const void* from, size_t bytes) {
  if (!has_memory_) return;
  auto* target = static_cast<std::byte*>(to);
  const auto* source = static_cast<const std::byte*>(from);
  for (size_t at = 0; at < bytes; at += kPieceBytes) {
    const size_t length = std::min(kPieceBytes, bytes - at);
    pieces_.push_back({target + at, source + at, 1, length, length});
  }
}

void DeviceModel::add_rows(void* to, const void* from, size_t rows, size_t row_bytes,
                           size_t pitch) {
  if (row_bytes == pitch) {
    add_bytes(to, from, rows * pitch);
    return;
  }
  if (!has_memory_) return;
  auto* target = static_cast<std::byte*>(to);
  const auto* source = static_cast<const std::byte*>(from);
  const size_t rows_per_piece = std::max<size_t>(1, kPieceBytes / pitch);
  for (size_t row = 0; row < rows; row += rows_per_piece) {
    pieces_.push_back({target + row * pitch, source + row * row_bytes,
                       std::min(rows_per_piece, rows - row), row_bytes, pitch});
  }
}

const float* DeviceModel::put(std::span<const float> values) {
  if (values.empty()) return nullptr;
  float* data = arena_.allocate<float>(values.size());
  add_bytes(data, values.data(), values.size_bytes());
  return data;
}

DenseMatrix DeviceModel::put(const DenseTensor& tensor) {
  DenseMatrix matrix = view(tensor);
  if (tensor.data == nullptr) return matrix;
  const size_t bytes = static_cast<size_t>(tensor.rows) * static_cast<size_t>(tensor.cols) *
                       (tensor.dtype == DType::kF32 ? 4 : 2);
  std::byte* data = arena_.allocate(bytes);
  add_bytes(data, tensor.data, bytes);
  matrix.data = data;
  return matrix;
}

TernaryMatrix DeviceModel::put(const TernaryTensor& tensor) {
  TernaryMatrix matrix = view(tensor);
  if (tensor.codes == nullptr) return matrix;
  const size_t pitch = cuda::ternary_pitch(tensor.cols);
  const size_t rows = static_cast<size_t>(tensor.rows);
  uint8_t* data = arena_.allocate<uint8_t>(pitch * rows);
  add_rows(data, tensor.codes, rows, tensor.row_bytes(), pitch);
  if (has_memory_) ternary_.push_back({data, tensor.rows, tensor.cols});
  matrix.codes = data;
  matrix.scale = put(tensor.scale);
  if (tensor.group_scale != nullptr) {
    const size_t bytes = rows * static_cast<size_t>(group_count(tensor.cols)) *
                         (tensor.group_scale_dtype == DType::kF32 ? 4 : 2);
    std::byte* scales = arena_.allocate(bytes);
    add_bytes(scales, tensor.group_scale, bytes);
    matrix.group_scale = scales;
  }
  return matrix;
}

void DeviceModel::allocate_certified_head() {
  const size_t rows = static_cast<size_t>(head.rows);
  head_codes_ = arena_.allocate<int8_t>(rows * CertifiedHead::pitch_of(head.cols));
  head_bounds_ = arena_.allocate<CertifiedRow>(rows);
  certified_head = {head_codes_, head_bounds_, head.rows, head.cols};
}

void DeviceModel::allocate_workspace(const ModelConfig& config, const EngineOptions& options,
                                     int context) {
  const size_t rows = static_cast<size_t>(options.max_rows);
  const size_t vocab = static_cast<size_t>(config.vocab);
  const size_t dim = static_cast<size_t>(config.dim);
  const size_t q_dim = static_cast<size_t>(config.q_dim());
  const size_t angles = static_cast<size_t>(context) * static_cast<size_t>(config.head_dim / 2);
  const auto zeroed = [this](auto* data, size_t count) {
    if (has_memory_) zeroed_.push_back({data, count * sizeof(*data)});
    return data;
  };
  int32_t* block = arena_.allocate<int32_t>(StepInputs::count(rows, vocab));
  if (has_memory_) inputs = StepInputs(block, rows);
  all_rows = arena_.allocate<int32_t>(rows);
  rope_cos = arena_.allocate<float>(angles);
  rope_sin = arena_.allocate<float>(angles);
  x = arena_.allocate<float>(rows * dim);
  // The head comes after the last layer: it writes where the layers had their q and u.
  q = arena_.allocate<float>(rows * std::max(q_dim, dim));
  normed = q;
  k = arena_.allocate<float>(rows * static_cast<size_t>(config.kv_dim()));
  v = arena_.allocate<float>(rows * static_cast<size_t>(config.kv_dim()));
  attention = arena_.allocate<float>(rows * q_dim);
  if (config.input_norms) {
    h = arena_.allocate<float>(rows * dim);
    workspace.up = arena_.allocate<float>(rows * static_cast<size_t>(config.ffn));
  }
  const size_t before_choices = arena_.used();
  const size_t choosers = static_cast<size_t>(options.sequences) + 1;
  rules = arena_.allocate<ChoiceRule>(choosers);
  marks = arena_.allocate<uint16_t>(choosers * vocab);
  biases = arena_.allocate<LogitBias>(choosers * static_cast<size_t>(kMaxBiases));
  const size_t choice_bytes = arena_.used() - before_choices;
  const size_t head_rows = logit_rows(options, config);
  sums = arena_.allocate<LogprobSums>(head_rows);
  top = arena_.allocate<LogprobLogit>(head_rows * static_cast<size_t>(kMaxTopLogprobs));
  const size_t u_floats = rows * static_cast<size_t>(config.ffn);
  u = arena_.allocate<float>(std::max(u_floats, head_rows * vocab));
  logits = u;
  results = zeroed(arena_.allocate<int32_t>(result_count(options)), result_count(options));
  rescored_totals = zeroed(arena_.allocate<cuda::RescoredTotals>(rows), rows);
  const int widest = std::max({config.dim, config.q_dim(), config.ffn});
  const bool in_groups = config.activation_quant == ActivationQuant::kInt16Group;
  workspace.codes = arena_.allocate<int8_t>(
      rows * std::max(cuda::quantised_row_bytes(widest) * (in_groups ? 2 : 1),
                      cuda::attention_row_bytes(options.kv_type, config.heads, config.head_dim)));
  if (in_groups) {
    const size_t units = static_cast<size_t>(group_count(widest)) *
                         static_cast<size_t>(cuda::group_stride(options.max_rows));
    workspace.group_unit = arena_.allocate<float>(units);
    workspace.group_sum = arena_.allocate<int32_t>(units);
  }
  workspace.row_s = arena_.allocate<float>(rows);
  workspace.row_r = arena_.allocate<float>(rows);
  workspace.row_sum = arena_.allocate<int32_t>(rows);
  workspace.rms = zeroed(arena_.allocate<uint32_t>(rows), rows);
  workspace.rms_read = zeroed(arena_.allocate<int32_t>(rows), rows);
  workspace.best = zeroed(arena_.allocate<unsigned long long>(head_rows), head_rows);
  workspace.head_done = zeroed(arena_.allocate<int32_t>(1), 1);
  workspace.steps = arena_.allocate<int16_t>(head_rows * CertifiedHead::pitch_of(config.dim));
  workspace.hidden = arena_.allocate<HiddenBound>(head_rows);
  workspace.lower = zeroed(arena_.allocate<uint32_t>(head_rows), head_rows);
  workspace.rescored = zeroed(arena_.allocate<int32_t>(head_rows), head_rows);
  workspace.group_lower =
      arena_.allocate<float>(head_rows * static_cast<size_t>(cuda::max_bound_groups(config.vocab)));
  workspace.least = arena_.allocate<float>(head_rows);
  workspace.listed =
      arena_.allocate<uint32_t>(head_rows * static_cast<size_t>(cuda::listed_words(config.vocab)));

  const size_t heads = static_cast<size_t>(config.heads);
  const size_t state_bytes = heads * static_cast<size_t>(workspace.max_chunks) *
                             static_cast<size_t>(cuda::attention_state(config.head_dim)) *
                             sizeof(float);
  // The logits, rules and marks of many sequences do not count against kWorkspaceBytes.
  const size_t few_floats = std::max(u_floats, size_t{cuda::kMaxInlineRows} * vocab);
  const size_t on_top =
      (std::max(few_floats, head_rows * vocab) - few_floats) * sizeof(float) + choice_bytes;
  const size_t used = arena_.used() - plan.weights - plan.certified_head - plan.kv_cache - on_top;
  // A paged cache serves many sequences, whose rows alone can need more than kWorkspaceBytes: there
  // the states get as much again.
  const size_t left = options.kv_blocks > 0    ? kWorkspaceBytes
                      : used < kWorkspaceBytes ? kWorkspaceBytes - used
                                               : 0;
  const size_t state_rows = std::clamp<size_t>(left / (state_bytes + 4096), 1, rows);
  workspace.attention_rows = static_cast<int>(state_rows);
  workspace.attention = reinterpret_cast<float*>(arena_.allocate(state_rows * state_bytes));
  workspace.attention_done =
      zeroed(arena_.allocate<int32_t>(state_rows * heads), state_rows * heads);
}

void DeviceModel::upload(const ModelFile& model, const EngineOptions& options, cudaStream_t stream,
                         const Progress& progress) {
  require(has_memory_, "a model is uploaded to memory that it was given");
  const int64_t start_ns = now_ns();
  std::vector<int32_t> counted(static_cast<size_t>(options.max_rows));
  std::iota(counted.begin(), counted.end(), 0);
  add_bytes(all_rows, counted.data(), static_cast<size_t>(options.max_rows) * sizeof(int32_t));
  RopeTable rope(model.weights().inv_freq, model.config().rope_attention_factor());
  const int context = context_of(model, options);
  rope.grow(context);
  const size_t rope_bytes =
      static_cast<size_t>(context) * model.weights().inv_freq.size() * sizeof(float);
  add_bytes(rope_cos, rope.cosine(), rope_bytes);
  add_bytes(rope_sin, rope.sine(), rope_bytes);
  for (const Range& range : zeroed_) {
    cuda_check(cudaMemsetAsync(range.begin, 0, range.bytes, stream), "clearing counters");
  }

  copy_pieces(options, progress);
  const int64_t copied_ns = now_ns();
  if (certified_head.rows > 0) cuda::build_certified_head(head, head_codes_, head_bounds_, stream);
  repack_codes(model, stream);
  if (log_enabled(LogLevel::kDebug)) {
    log(LogLevel::kDebug, "uploaded " + human_bytes(plan.weights) + " of weights in " +
                              human_ms(copied_ns - start_ns) + ", prepared them in " +
                              human_ms(now_ns() - copied_ns));
  }
  for (const LayerWeights& layer : model.weights().layers) model.release_pages(layer);
  model.release_pages(model.weights().embedding);
  model.release_pages(model.weights().ternary_embedding);
  if (!model.config().tied_head) {
    model.release_pages(model.weights().head);
    model.release_pages(model.weights().ternary_head);
  }
  pieces_ = {};
  ternary_ = {};
}

void DeviceModel::copy_pieces(const EngineOptions& options, const Progress& progress) const {
  const int threads =
      std::min({kCopyThreads, cpu::usable_cores(), static_cast<int>(pieces_.size())});
  uint64_t total = 0;
  size_t largest = 0;
  for (const Piece& piece : pieces_) {
    total += piece.rows * piece.row_bytes;
    largest = std::max(largest, piece.rows * piece.pitch);
  }
  std::vector<std::unique_ptr<Stager>> stagers;
  for (int t = 0; t < threads; ++t) stagers.push_back(std::make_unique<Stager>(largest));
  std::atomic<uint64_t> done{0};
  std::atomic<bool> stopped{false};
  cpu::Pool pool(threads, cpu::primitives());
  pool.for_each(static_cast<int>(pieces_.size()), 1, [&](int begin, int end, int thread) {
    if (stopped) return;
    try {
      cuda_check(cudaSetDevice(options.gpu), "selecting the GPU");
      Stager& stager = *stagers[static_cast<size_t>(thread)];
      for (int i = begin; i < end; ++i) {
        const Piece& piece = pieces_[static_cast<size_t>(i)];
        std::byte* staged = stager.next();
        for (size_t row = 0; row < piece.rows; ++row) {
          std::byte* at = staged + row * piece.pitch;
          std::memcpy(at, piece.from + row * piece.row_bytes, piece.row_bytes);
          std::memset(at + piece.row_bytes, 0, piece.pitch - piece.row_bytes);
        }
        stager.send(piece.to, staged, piece.rows * piece.pitch);
        done += piece.rows * piece.row_bytes;
      }
      if (thread == 0 && progress) progress("copying to the GPU", done, total);
    } catch (...) {
      stopped = true;
      throw;
    }
  });
  for (const auto& stager : stagers) stager->finish();
  if (progress) progress("copied to the GPU", total, total);
}

void DeviceModel::repack_codes(const ModelFile& model, cudaStream_t stream) const {
  // The word of the fault, which is zero between passes, counts the invalid codes.
  int32_t* const invalid = results;
  for (const Codes& matrix : ternary_) {
    cuda::repack(matrix.codes, matrix.rows, matrix.cols, invalid, stream);
  }
  int32_t found = 0;
  cuda_check(cudaMemcpyAsync(&found, invalid, sizeof found, cudaMemcpyDeviceToHost, stream),
             "reading the number of invalid codes");
  cuda_check(cudaStreamSynchronize(stream), "repacking the weights");
  if (found != 0) {
    throw Error(ExitCode::kModelFile,
                model.path() + ": " + std::to_string(found) +
                    " ternary weights have the code 10, which is no ternary value; `edgellm "
                    "verify` names the section; copy or convert the file again");
  }
}

MemoryPlan plan_cuda_memory(const ModelFile& model, const EngineOptions& options) {
  return DeviceModel(model, options).plan;
}

}  // namespace edgellm
