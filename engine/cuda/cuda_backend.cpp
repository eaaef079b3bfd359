// The layer loop on an NVIDIA GPU.
#include <cuda_runtime.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "base/number_format.h"
#include "engine/backend.h"
#include "engine/choices.h"
#include "engine/cuda/device_model.h"
#include "engine/cuda/mailbox.h"
#include "engine/cuda/plan_log.h"
#include "engine/cuda/resources.h"
#include "engine/cuda/step_graphs.h"
#include "engine/pass.h"
#include "engine/views.h"
#include "kernels/choice.h"
#include "kernels/cuda/check.h"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/plan/attention.h"
#include "kernels/cuda/plan/head.h"

namespace edgellm {
namespace {

using cuda::cuda_check;

// Makes the GPU of the options current, and checks that it can run the model before anything is
// allocated. Returns the GPU's name as BackendInfo::device has it.
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
  cuda::require_code();
  if (model.config().head_dim > cuda::kMaxHeadDim) {
    throw Error(ExitCode::kDevice,
                "the model's heads have " + std::to_string(model.config().head_dim) +
                    " dimensions, but on a GPU at most " + std::to_string(cuda::kMaxHeadDim) +
                    " are supported; use --device cpu");
  }
  const ModelConfig& config = model.config();
  if (!cuda::attention_fits(options.kv_type, config.head_dim, cuda::device_traits())) {
    throw Error(ExitCode::kDevice,
                "the model's heads have " + std::to_string(config.head_dim) +
                    " dimensions, for which the shared memory of the GPU " + properties.name +
                    " is too small; use " +
                    (cuda::attention_fits(KvType::kI8, config.head_dim, cuda::device_traits())
                         ? "--kv-type i8, "
                         : "") +
                    "--kv-type f32 or --device cpu");
  }
  const int columns = std::max({config.dim, config.ffn, config.q_dim()});
  if (columns > cuda::kMaxColumns) {
    throw Error(ExitCode::kDevice, "the model's rows have " + std::to_string(columns) +
                                       " columns, but on a GPU at most " +
                                       std::to_string(cuda::kMaxColumns) +
                                       " are supported; use --device cpu");
  }
  if (config.input_norms && config.ffn % 2 != 0) {
    throw Error(ExitCode::kDevice,
                "the model has norms inside its ternary layers and " + std::to_string(config.ffn) +
                    " feed-forward units, but on a GPU such a model needs an even number of them; "
                    "use --device cpu");
  }
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  cuda_check(cudaMemGetInfo(&free_bytes, &total_bytes), "reading the GPU's free memory");
  const std::string problem = cuda_memory_problem(model, options, free_bytes);
  if (!problem.empty()) throw Error(ExitCode::kDevice, problem + "; or use --device cpu");
  if (log_enabled(LogLevel::kDebug)) {
    log(LogLevel::kDebug,
        std::string("GPU ") + properties.name + ": compute capability " +
            std::to_string(properties.major) + "." + std::to_string(properties.minor) + ", " +
            std::to_string(properties.multiProcessorCount) + " SMs with " +
            std::to_string(properties.sharedMemPerMultiprocessor >> 10) +
            " KiB of shared memory each, " +
            std::to_string(properties.sharedMemPerBlockOptin >> 10) + " KiB for a block, L2 " +
            human_bytes(static_cast<uint64_t>(properties.l2CacheSize)) + ", " +
            human_bytes(free_bytes) + " of " + human_bytes(total_bytes) + " free");
  }
  return "cuda:" + std::to_string(options.gpu) + " (" + properties.name + ")";
}

// Waits at the end of its scope, after an exception as well, until the GPU has ended what was
// launched: only then may the inputs be written again.
class InFlight {
 public:
  InFlight(cudaStream_t stream, HostWork& host_work) : stream_(stream), host_work_(host_work) {}
  ~InFlight() {
    cudaStreamSynchronize(stream_);
    ++host_work_.synchronisations;
  }
  InFlight(const InFlight&) = delete;
  InFlight& operator=(const InFlight&) = delete;

 private:
  cudaStream_t stream_;
  HostWork& host_work_;
};

class CudaBackend final : public Backend {
 public:
  CudaBackend(const ModelFile& model, const EngineOptions& options, const Progress& progress)
      : Backend(model, info_of(model, options, claim_gpu(model, options), /*is_gpu=*/true)),
        config_(model.config()),
        options_(options),
        cache_(config_, options, info().context),
        table_(cache_, options),
        choices_(config_, options),
        memory_(plan_cuda_memory(model, options).total()),
        device_(model, options, memory_.data()),
        most_kept_(cuda::most_kept_by_bounds({1, config_.vocab, config_.dim, device_.head.type},
                                             cuda::device_traits())),
        host_(Mailbox::bytes(max_rows()) +
              (result_count(options) + input_count(static_cast<size_t>(config_.vocab))) *
                  sizeof(int32_t)),
        mailbox_(reinterpret_cast<uint64_t*>(host_.data()), max_rows(), stream_, host_work_),
        results_(reinterpret_cast<int32_t*>(host_.data() + Mailbox::bytes(max_rows()))),
        inputs_(results_ + result_count(options), max_rows()),
        step_graphs_(options, [this](const StepSize& size) { run_step(size); }) {
    device_.upload(model, options, stream_, progress);
    log_backend(*this);
    log_plans(model, options, device_.workspace, has_certified_head());
  }

  void set_blocks(int sequence, std::span<const int32_t> blocks) override {
    table_.set(sequence, blocks);
    table_sent_ = false;
  }

  void set_choice(int sequence, const Choice& choice) override {
    choices_.set(sequence, choice);
    rules_sent_ = false;
  }

  void forward(const Batch& batch, const Outputs& outputs) override {
    check_pass(batch, outputs, config_, info(), table_);
    use_gpu();
    const InFlight in_flight(stream_, host_work_);
    const Bans bans = bans_of(choosing_sequences(batch, outputs));
    if (is_decode_step(batch, outputs)) {
      const StepSize size = step_size(batch, bans);
      begin_pass(batch, outputs, bans, size.rows);
      const uint32_t step = launch_step(size, 1);
      if (outputs.meanwhile) outputs.meanwhile();
      await(step, outputs.ids);
    } else {
      begin_pass(batch, outputs, bans, batch.ids.size());
      const int decode_rows = count_decode_rows(batch);
      run_layers(static_cast<int>(batch.ids.size()), decode_rows,
                 reach_of(batch, static_cast<size_t>(decode_rows)), outputs);
      run_head(batch, outputs, bans);
    }
  }

  // The GPU makes its own next inputs (cuda::post_step). The host launches a step before it has
  // seen the ids of the step before, and is never more than one step ahead.
  //
  // A step that a run did not ask for has appended one row to the cache of each sequence, at the
  // position behind its last token. That does no harm: a row attends to positions up to its own,
  // and the next row at that position writes it before any row reads it.
  void decode_rows(const Batch& first, int n_max,
                   const std::function<bool(std::span<const int32_t> ids)>& on_ids) override {
    std::vector<int32_t> row_list(first.ids.size());
    std::iota(row_list.begin(), row_list.end(), 0);
    std::vector<int32_t> chosen(first.ids.size());
    Outputs outputs;
    outputs.rows = row_list;
    outputs.ids = chosen;
    if (!is_decode_step(first, outputs)) {
      Backend::decode_rows(first, n_max, on_ids);
      return;
    }
    if (n_max <= 0) return;
    check_pass(first, outputs, config_, info(), table_);
    // A sequence has the blocks of all positions up to its last one.
    for (size_t row = 0; row < first.ids.size(); ++row) {
      require(table_.covers(first.sequences[row], first.positions[row] + n_max - 1),
              "a position lies in a block that its sequence was not given");
    }

    use_gpu();
    const InFlight in_flight(stream_, host_work_);
    const Bans bans = bans_of(first.sequences);
    StepSize size = step_size(first, bans);
    begin_pass(first, outputs, bans, size.rows);
    const size_t positions = longest(first, first.ids.size());
    uint32_t step = launch_step(size, n_max);
    bool continues = true;
    for (int i = 0; i < n_max && continues; ++i) {
      const bool is_last = i + 1 == n_max;
      size.reach = StepGraphs::step_reach(size.rows, positions + static_cast<size_t>(i) + 1);
      const uint32_t next = is_last ? step : launch_step(size, n_max - i - 1);
      await(step, chosen);
      continues = on_ids(chosen);
      if (!continues && !is_last && !mailbox_.poll_fault(next)) {
        await(next, chosen);
        on_ids(chosen);
      }
      step = next;
    }
    wait();
  }

  MemoryPlan memory() const override { return device_.plan; }
  HeadStats head_stats() const override {
    HeadStats stats = head_stats_;
    if (device_.certified_head.rows == 0) return stats;
    use_gpu();
    std::vector<cuda::RescoredTotals> totals(max_rows());
    cuda_check(cudaMemcpyAsync(totals.data(), device_.rescored_totals,
                               totals.size() * sizeof totals[0], cudaMemcpyDeviceToHost, stream_),
               "reading how many rows were rescored");
    stream_.wait();
    for (const cuda::RescoredTotals& row : totals) {
      stats.steps += row.steps;
      stats.rescored += row.rescored;
      stats.most_rescored = std::max(stats.most_rescored, row.most);
    }
    return stats;
  }
  StepLaunches step_launches(size_t rows) const override { return step_graphs_.launches(rows); }
  HostWork host_work() const override { return host_work_; }

 private:
  enum class HeadKind {
    kLogits,
    kArgmax,           // logits and arg-max
    kCertified,        // arg-max from the certified head
    kChoice,           // logits, and ids by the sequences' rules
    kCertifiedChoice,  // ids by rules from the certified head
  };
  using Bans = Choices::Bans;

  // The current GPU is the calling thread's, which need not be the one that made the backend.
  void use_gpu() const { cuda_check(cudaSetDevice(options_.gpu), "selecting the GPU"); }

  size_t max_rows() const { return static_cast<size_t>(options_.max_rows); }

  size_t input_count(size_t n_banned) const { return StepInputs::count(max_rows(), n_banned); }

  Bans bans_of(std::span<const int32_t> sequences) {
    return choices_.bans_or_rules(sequences, [this](int32_t sequence) { send_marks(sequence); });
  }

  void send_marks(int32_t sequence) {
    const size_t slot = static_cast<size_t>(sequence);
    first_marks_.resize(static_cast<size_t>(config_.vocab));
    choices_.make_marks(sequence, first_marks_);
    send(device_.marks + slot * first_marks_.size(), std::span<const uint16_t>(first_marks_));
    send(device_.biases + slot * static_cast<size_t>(kMaxBiases), choices_.biases(sequence));
    wait();  // the next marks take the place of these
  }

  template <class T>
  void send(T* to, std::span<const T> values) {
    cuda_check(
        cudaMemcpyAsync(to, values.data(), values.size_bytes(), cudaMemcpyHostToDevice, stream_),
        "sending a sequence's data");
    host_work_.to_device_bytes += values.size_bytes();
  }

  // Sends a pass's inputs and clears an earlier fault. The device is idle, so nothing reads the
  // block table or the rules meanwhile. The padding sequence (CacheLayout) gets the rows of `rows`
  // that the batch lacks.
  void begin_pass(const Batch& batch, const Outputs& outputs, const Bans& bans, size_t rows) {
    if (!table_sent_) send(device_.block_table, table_.entries());
    if (!rules_sent_) send(device_.rules, std::span(choices_.rules()));
    table_sent_ = rules_sent_ = true;
    std::copy(batch.ids.begin(), batch.ids.end(), inputs_.ids);
    std::copy(batch.sequences.begin(), batch.sequences.end(), inputs_.sequences);
    std::copy(batch.positions.begin(), batch.positions.end(), inputs_.positions);
    if (bans) std::copy(bans->begin(), bans->end(), inputs_.banned);
    std::copy(outputs.rows.begin(), outputs.rows.end(), inputs_.row_list);
    for (size_t row = batch.ids.size(); row < rows; ++row) {
      inputs_.ids[row] = batch.ids[0];
      inputs_.sequences[row] = options_.sequences;
      inputs_.positions[row] = 0;
      inputs_.row_list[row] = static_cast<int32_t>(row);
    }
    *inputs_.step = next_step_;
    *inputs_.n_used = static_cast<uint32_t>(batch.ids.size());
    const size_t bytes = input_count(bans ? bans->size() : 0) * sizeof(int32_t);
    cuda_check(
        cudaMemcpyAsync(device_.inputs.ids, inputs_.ids, bytes, cudaMemcpyHostToDevice, stream_),
        "sending a pass's inputs");
    host_work_.to_device_bytes += bytes;
    cuda_check(cudaMemsetAsync(device_.fault(), 0, sizeof(int32_t), stream_), "starting a pass");
  }

  // Whether each row is alone in its sequence, and an id of every row is all that is asked for, so
  // that the GPU can make its own next inputs. Such passes run as graphs. More than a few rows need
  // the padding sequence, which a paged cache has.
  bool is_decode_step(const Batch& batch, const Outputs& outputs) const {
    return outputs.ids.size() == batch.ids.size() && outputs.logits.empty() &&
           outputs.hidden.empty() && outputs.normed.empty() && outputs.logprobs.empty() &&
           (batch.ids.size() <= cuda::kMaxInlineRows || options_.kv_blocks > 0) &&
           count_decode_rows(batch) == static_cast<int>(batch.ids.size());
  }

  // The positions that the row with the longest context sees, of the first `rows`.
  static size_t longest(const Batch& batch, size_t rows) {
    return static_cast<size_t>(std::ranges::max(batch.positions.first(rows))) + 1;
  }
  // AttentionArgs::decode_reach for the first rows of a batch, which decode.
  static int reach_of(const Batch& batch, size_t decode_rows) {
    if (decode_rows == 0) return 0;
    return static_cast<int>(StepGraphs::step_reach(decode_rows, longest(batch, decode_rows)));
  }

  StepSize step_size(const Batch& batch, const Bans& bans) const {
    const size_t rows = step_graphs_.step_rows(batch.ids.size());
    return {.rows = rows,
            .n_banned = bans ? bans->size() : 0,
            .reach = StepGraphs::step_reach(rows, longest(batch, batch.ids.size())),
            .by_rules = !bans,
            .keeps_few = !bans && has_certified_head() && keep_few(batch.sequences)};
  }

  // Launches a decode step, whose inputs are on the device, and returns its number. n_ahead:
  // StepGraphs::launch().
  uint32_t launch_step(const StepSize& size, int n_ahead) {
    step_graphs_.launch(size, n_ahead, stream_);
    return next_step_++;
  }

  void run_step(const StepSize& size) {
    const size_t rows = size.rows;
    run_layers(static_cast<int>(rows), static_cast<int>(rows), static_cast<int>(size.reach), {});
    const bool certified = has_certified_head() && (!size.by_rules || size.keeps_few);
    const HeadKind kind = id_kind(size.by_rules, certified);
    for (size_t begin = 0; begin < rows; begin += logit_rows(options_, config_)) {
      launch_head(begin, std::min(logit_rows(options_, config_), rows - begin), size.n_banned,
                  kind);
    }
    cuda::MailboxArgs post;
    post.n_used = device_.inputs.n_used;
    post.chosen = device_.chosen();
    post.ids = device_.inputs.ids;
    post.positions = device_.inputs.positions;
    post.fault = device_.fault();
    post.step = device_.inputs.step;
    post.mailbox = mailbox_.words();
    post.rescored = certified ? device_.rescored() : nullptr;
    post.totals = device_.rescored_totals;
    if (size.by_rules) post.counts = counts_of(rows);
    post.rows = static_cast<int>(rows);
    post.mailbox_rows = options_.max_rows;
    cuda::post_step(post, stream_);
  }

  // Waits for the ids that a step has chosen.
  void await(uint32_t step, std::span<int32_t> ids) {
    throw_on_fault(mailbox_.poll_fault(step), model());
    for (size_t row = 0; row < ids.size(); ++row) ids[row] = mailbox_.poll(step, row);
    host_work_.to_host_bytes += ids.size() * sizeof(uint64_t);
  }

  // How many of the first rows are decode rows, each alone in its sequence.
  int count_decode_rows(const Batch& batch) const {
    std::vector<int> rows(static_cast<size_t>(options_.sequences));
    for (int32_t sequence : batch.sequences) ++rows[static_cast<size_t>(sequence)];
    const auto first_of_several = std::ranges::find_if(
        batch.sequences, [&](int32_t sequence) { return rows[static_cast<size_t>(sequence)] > 1; });
    return static_cast<int>(first_of_several - batch.sequences.begin());
  }

  void run_layers(int rows, int decode_rows, int decode_reach, const Outputs& outputs) {
    const StepInputs& in = device_.inputs;
    const RowPlaces places{in.sequences, in.positions};
    const cuda::Workspace& workspace = device_.workspace;
    int32_t* const fault = device_.fault();
    const Activations activations = view(config_.activation_quant);
    const auto norm = [this](const NormArgs& args) { cuda::norm(args, stream_); };
    float* x = device_.x;
    cuda::embed({device_.embedding, in.ids, x, rows, device_.ternary_embedding}, stream_);
    keep_hidden(outputs, 0, rows);
    for (int l = 0; l < config_.layers; ++l) {
      const DeviceLayer& w = device_.layers[static_cast<size_t>(l)];
      const KvCache kv =
          cache_.layer(l, device_.kv, device_.block_table, config_, options_.kv_type);
      const NormedInput attn_input = normed_input(config_, x, config_.dim, w.attn_norm,
                                                  w.input_norms.q, device_.h, rows, norm);
      cuda::qkv({attn_input.x,
                 attn_input.gain,
                 attn_input.eps,
                 w.q,
                 w.k,
                 w.v,
                 device_.rope_cos,
                 device_.rope_sin,
                 in.positions,
                 device_.q,
                 device_.k,
                 device_.v,
                 rows,
                 config_.dim,
                 config_.head_dim,
                 l,
                 fault,
                 activations,
                 w.q_norm,
                 w.k_norm,
                 w.input_norms.k,
                 w.input_norms.v},
                workspace, stream_);
      cuda::attention({device_.q, device_.k, device_.v, kv, places, device_.attention, rows,
                       config_.heads, l, fault, decode_rows, decode_reach},
                      workspace, stream_);
      end_layer(w, l, rows);
      if (l + 1 < config_.layers) keep_hidden(outputs, l + 1, rows);
    }
  }

  // attn_out, ffn_up and ffn_down, in one launch where the kernels have one for these sizes.
  void end_layer(const DeviceLayer& w, int l, int rows) {
    const cuda::Workspace& workspace = device_.workspace;
    int32_t* const fault = device_.fault();
    const GateActivation act = view(config_.act);
    const Activations activations = view(config_.activation_quant);
    const auto norm = [this](const NormArgs& args) { cuda::norm(args, stream_); };
    float* const x = device_.x;
    const auto out = [&](const NormedInput& in) {
      return ProjectArgs{in.x, in.gain, in.eps, w.o, x, rows, l, fault, activations};
    };
    const auto up = [&](const NormedInput& in) {
      return FfnUpArgs{in.x,      in.gain, in.eps, w.gate, w.up,        act,
                       device_.u, rows,    l,      fault,  activations, w.input_norms.up};
    };
    const auto down = [&](const NormedInput& in) {
      return ProjectArgs{in.x, in.gain, in.eps, w.down, x, rows, l, fault, activations};
    };
    if (!config_.input_norms &&
        cuda::layer_end(out({device_.attention, w.attn_sub_norm, config_.norm_eps}),
                        up({x, w.ffn_norm, config_.norm_eps}),
                        down({device_.u, w.ffn_sub_norm, config_.norm_eps}), stream_)) {
      return;
    }
    cuda::attn_out(out(normed_input(config_, device_.attention, config_.q_dim(), w.attn_sub_norm,
                                    w.input_norms.o, device_.attention, rows, norm)),
                   workspace, stream_);
    cuda::ffn_up(up(normed_input(config_, x, config_.dim, w.ffn_norm, w.input_norms.gate, device_.h,
                                 rows, norm)),
                 workspace, stream_);
    cuda::ffn_down(down(normed_input(config_, device_.u, config_.ffn, w.ffn_sub_norm,
                                     w.input_norms.down, device_.u, rows, norm)),
                   workspace, stream_);
  }

  // The arguments of the head for `rows` rows, which a list on the device names.
  HeadArgs head_args(const int32_t* row_list, size_t rows) const {
    HeadArgs head;
    head.x = device_.x;
    head.row_list = row_list;
    head.gain = device_.final_norm;
    head.eps = config_.norm_eps;
    head.w = device_.head;
    head.ternary = device_.ternary_head;
    head.normed = device_.normed;
    head.logits = device_.logits;
    head.rows = static_cast<int>(rows);
    head.layers = config_.layers;
    head.fault = device_.fault();
    return head;
  }

  bool has_certified_head() const { return device_.certified_head.rows > 0; }

  // Whether the certified head can choose for these sequences, which have rules.
  bool keep_few(std::span<const int32_t> sequences) const {
    return std::ranges::all_of(sequences, [this](int32_t sequence) {
      const ChoiceRule& rule = choices_.rules()[static_cast<size_t>(sequence)];
      return keeps_few(rule, config_.vocab) && most_kept(rule) <= most_kept_;
    });
  }

  static HeadKind id_kind(bool by_rules, bool certified) {
    if (by_rules) return certified ? HeadKind::kCertifiedChoice : HeadKind::kChoice;
    return certified ? HeadKind::kCertified : HeadKind::kArgmax;
  }

  // Launches the head for at most logit_rows() output rows from `begin` on. The next launch
  // overwrites the logits.
  void launch_head(size_t begin, size_t rows, size_t n_banned, HeadKind kind) {
    HeadArgs head = head_args(device_.inputs.row_list + begin, rows);
    const bool takes_argmax = kind == HeadKind::kArgmax || kind == HeadKind::kCertified;
    head.argmax = takes_argmax ? device_.chosen() + begin : nullptr;
    head.banned = device_.inputs.banned;
    head.n_banned = static_cast<int>(n_banned);
    const ChooseArgs choice{device_.logits,
                            head.row_list,
                            {device_.inputs.sequences, device_.inputs.positions},
                            device_.rules,
                            device_.marks,
                            device_.biases,
                            device_.chosen() + begin,
                            head.rows,
                            config_.vocab};
    int32_t* const rescored = device_.rescored() + begin;
    switch (kind) {
      case HeadKind::kCertified:
        return cuda::certified_head({head, device_.certified_head, rescored}, device_.workspace,
                                    stream_);
      case HeadKind::kCertifiedChoice:
        return cuda::certified_choose({head, device_.certified_head, choice, rescored},
                                      device_.workspace, stream_);
      case HeadKind::kChoice:
        cuda::head(head, device_.workspace, stream_);
        return cuda::choose(choice, stream_);
      default:
        return cuda::head(head, device_.workspace, stream_);
    }
  }

  // What the first `rows` output rows of a pass have chosen by rules.
  CountArgs counts_of(size_t rows) const {
    CountArgs counts;
    counts.ids = device_.chosen();
    counts.row_list = device_.inputs.row_list;
    counts.sequences = device_.inputs.sequences;
    counts.rules = device_.rules;
    counts.marks = device_.marks;
    counts.fault = device_.fault();
    counts.rows = static_cast<int>(rows);
    counts.vocab = config_.vocab;
    return counts;
  }

  // The log-probabilities of the rows that launch_head() had last, which are output rows from
  // `begin` on.
  void run_logprobs(const Outputs& outputs, size_t begin, size_t rows) {
    const size_t n_top = outputs.top.size() / outputs.logprobs.size();
    cuda::logprobs({device_.logits, device_.chosen() + begin, device_.sums, device_.top,
                    static_cast<int>(n_top), static_cast<int>(rows), config_.vocab},
                   stream_);
    read(outputs.logprobs.data() + begin, device_.sums, rows);
    read(outputs.top.data() + begin * n_top, device_.top, rows * n_top);
  }

  template <class T>
  void read(T* to, const T* from, size_t count) {
    cuda_check(cudaMemcpyAsync(to, from, count * sizeof(T), cudaMemcpyDeviceToHost, stream_),
               "reading results");
    host_work_.to_host_bytes += count * sizeof(T);
  }

  void keep_hidden(const Outputs& outputs, int index, int rows) {
    if (outputs.hidden.empty()) return;
    const size_t values = static_cast<size_t>(rows) * static_cast<size_t>(config_.dim);
    read(outputs.hidden.data() + static_cast<size_t>(index) * values, device_.x, values);
  }

  void run_head(const Batch& batch, const Outputs& outputs, const Bans& bans) {
    const size_t values = batch.ids.size() * static_cast<size_t>(config_.dim);
    const std::vector<float*> normed_places = normed_outputs(outputs, values);
    if (!normed_places.empty()) {
      // The final norm of every row of the batch; no logits are asked for here.
      HeadArgs norm_only = head_args(device_.all_rows, batch.ids.size());
      norm_only.w.rows = 0;
      cuda::head(norm_only, device_.workspace, stream_);
      for (float* place : normed_places) read(place, device_.normed, values);
    }
    const size_t vocab = static_cast<size_t>(config_.vocab);
    const size_t ids_only = ids_only_rows(outputs, config_);
    // The certified head gives ids and no logits.
    const bool certifies = has_certified_head() && outputs.logprobs.empty() &&
                           (bans || keep_few(choosing_sequences(batch, outputs)));
    for (size_t begin = 0; begin < outputs.rows.size();) {
      const bool is_id_only = begin < ids_only;
      const bool gives_id = begin < outputs.ids.size();
      const size_t end = std::min(begin + logit_rows(options_, config_),
                                  is_id_only ? ids_only : outputs.rows.size());
      const size_t n = end - begin;
      const HeadKind kind = gives_id ? id_kind(!bans, is_id_only && certifies) : HeadKind::kLogits;
      launch_head(begin, n, bans ? bans->size() : 0, kind);
      if (gives_id && !outputs.logprobs.empty()) run_logprobs(outputs, begin, n);
      if (!is_id_only) {
        read(outputs.logits.data() + (begin - ids_only) * vocab, device_.logits, n * vocab);
      }
      begin = end;
    }
    if (!bans) cuda::count_choices(counts_of(outputs.ids.size()), stream_);
    if (outputs.meanwhile) outputs.meanwhile();
    read_results();
    std::copy_n(results_ + 1, outputs.ids.size(), outputs.ids.data());
    if (certifies) head_stats_.add({results_ + 1 + options_.max_rows, ids_only});
  }

  void wait() {
    stream_.wait();
    ++host_work_.synchronisations;
  }

  // Waits for the pass, and throws where it met a fault.
  void read_results() {
    cuda_check(cudaMemcpyAsync(results_, device_.results, result_count(options_) * sizeof(int32_t),
                               cudaMemcpyDeviceToHost, stream_),
               "reading results");
    host_work_.to_host_bytes += result_count(options_) * sizeof(int32_t);
    wait();
    throw_on_fault(results_[0], model());
  }

  const ModelConfig& config_;
  const EngineOptions options_;
  const CacheLayout cache_;
  BlockTable table_;
  bool table_sent_ = false;  // the device's copy is equal
  Choices choices_;
  bool rules_sent_ = false;            // likewise
  std::vector<uint16_t> first_marks_;  // [vocab], on their way to the device
  Stream stream_;
  DeviceMemory memory_;
  DeviceModel device_;
  const int most_kept_;  // ids, by a choice that the certified head serves
  PinnedMemory host_;    // for the mailbox, the results and the inputs, in this order
  HostWork host_work_;
  Mailbox mailbox_;
  int32_t* results_;  // [result_count()], a copy of the device's
  // Written before a pass and sent to the device: kernels that read the host's memory would wait
  // for the bus, each for itself.
  StepInputs inputs_;
  uint32_t next_step_ = 1;  // the mailbox starts with zeros
  StepGraphs step_graphs_;
  HeadStats head_stats_;  // of all passes but decode steps, which the GPU counts
};

}  // namespace

std::unique_ptr<Backend> make_cuda_backend(const ModelFile& model, const EngineOptions& options,
                                           const Progress& progress) {
  return std::make_unique<CudaBackend>(model, options, progress);
}

}  // namespace edgellm
