// The layer loop on the CPU.
#include <algorithm>
#include <memory>
#include <numeric>

#include "base/error.h"
#include "engine/backend.h"
#include "engine/choices.h"
#include "engine/cpu/certified_head.h"
#include "engine/cpu/lazy_memory.h"
#include "engine/cpu/local_weights.h"
#include "engine/pass.h"
#include "engine/rope_table.h"
#include "engine/views.h"
#include "kernels/choice.h"
#include "kernels/cpu/affinity.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/machine.h"
#include "kernels/cpu/primitives.h"

namespace edgellm {
namespace {

// A KV cache for a long context costs no more memory than a run fills of it. One of
// kLeastInHugePages to kMostInHugePages bytes asks for pages of 2 MiB: attention reads some pages
// of 4 KiB here and there and would wait for the translation of addresses. A short run may then
// occupy all of it. Of less memory the processor has most translations at hand.
class KvMemory : public LazyMemory {
 public:
  static constexpr size_t kLeastInHugePages = size_t{16} << 20;
  static constexpr size_t kMostInHugePages = size_t{256} << 20;

  explicit KvMemory(size_t n) : LazyMemory(n, "a KV cache", "a smaller context (-c) needs less") {
    if (n >= kLeastInHugePages && n <= kMostInHugePages) prefer_huge_pages();
  }
};

// Rows of floats that are not cleared, so that those that no pass has take no memory.
class RowMemory {
 public:
  void allocate(size_t n) {
    data_ = std::make_unique_for_overwrite<float[]>(n);
    n_ = n;
  }
  float* data() const { return data_.get(); }
  size_t size() const { return n_; }

 private:
  std::unique_ptr<float[]> data_;
  size_t n_ = 0;
};

// The threads of a pool.
struct ThreadPlaces {
  int threads = 1;
  // On a machine of several NUMA nodes, if the weights are to lie near their threads: the cores of
  // each thread, which are those of a node.
  std::vector<std::vector<int>> cpus_of_threads;
  size_t nodes = 1;  // that they are on

  explicit ThreadPlaces(const EngineOptions& options)
      : threads(options.threads > 0 ? options.threads : cpu::usable_cores()) {
    if (options.local_weights == LocalWeightsFor::kNobody || options.low_memory) return;
    const auto of_nodes = cpu::numa_nodes(cpu::allowed_cpus(), options.sysfs);
    const bool is_spread = of_nodes.size() > 1 && threads > 1;
    const bool is_bound = of_nodes.size() == 1;
    if (!is_spread && !(is_bound && options.local_weights == LocalWeightsFor::kEveryEngine)) return;
    cpus_of_threads = cpu::cpus_of_threads(threads, of_nodes);
    nodes = of_nodes.size();
  }
};

// "cpu (AMD EPYC, avx512, 2 threads)", "cpu (AMD EPYC, avx512, 64 threads on 2 NUMA nodes)"
std::string device_name(const ThreadPlaces& places) {
  return "cpu (" + cpu::machine_name() + ", " + cpu::isa_name() + ", " +
         std::to_string(places.threads) + (places.threads == 1 ? " thread" : " threads") +
         (places.nodes > 1 ? " on " + std::to_string(places.nodes) + " NUMA nodes)" : ")");
}

class CpuBackend final : public Backend {
 public:
  CpuBackend(const ModelFile& model, const EngineOptions& options, const ThreadPlaces& places)
      : Backend(model, info_of(model, options, device_name(places), /*is_gpu=*/false)),
        config_(model.config()),
        options_(options),
        cache_(config_, options, info().context),
        table_(cache_, options),
        choices_(config_, options),
        kv_memory_(cache_.bytes(config_.layers)),
        rope_(model.weights().inv_freq, config_.rope_attention_factor()),
        local_(places.cpus_of_threads.empty()
                   ? nullptr
                   : std::make_unique<LocalWeights>(model, places.cpus_of_threads)),
        weights_(local_ != nullptr ? local_->weights() : model.weights()),
        pool_(places.threads, cpu::primitives(), places.cpus_of_threads),
        // A ternary head takes as few bytes as it is.
        certified_head_(view(weights_.head), !options.full_head && weights_.head.data != nullptr) {
    const size_t rows = static_cast<size_t>(options.max_rows);
    x_.allocate(rows * static_cast<size_t>(config_.dim));
    q_.allocate(rows * static_cast<size_t>(config_.q_dim()));
    k_.allocate(rows * static_cast<size_t>(config_.kv_dim()));
    v_.allocate(rows * static_cast<size_t>(config_.kv_dim()));
    attention_.allocate(rows * static_cast<size_t>(config_.q_dim()));
    u_.allocate(rows * static_cast<size_t>(config_.ffn));
    if (config_.input_norms) h_.allocate(rows * static_cast<size_t>(config_.dim));
    log_backend(*this);
  }

  void set_blocks(int sequence, std::span<const int32_t> blocks) override {
    table_.set(sequence, blocks);
  }

  void set_choice(int sequence, const Choice& choice) override { choices_.set(sequence, choice); }

  void forward(const Batch& batch, const Outputs& outputs) override {
    check_pass(batch, outputs, config_, info(), table_);
    const int rows = static_cast<int>(batch.ids.size());
    rope_.grow(*std::max_element(batch.positions.begin(), batch.positions.end()) + 1);
    const RowPlaces places{batch.sequences.data(), batch.positions.data()};
    const GateActivation act = view(config_.act);
    int32_t fault = 0;

    const Activations activations = view(config_.activation_quant);
    const auto norm = [this](const NormArgs& args) { cpu::norm(args, pool_); };
    cpu::embed({view(weights_.embedding), batch.ids.data(), x_.data(), rows,
                view(weights_.ternary_embedding)},
               pool_);
    keep_hidden(outputs, 0, rows);
    for (int l = 0; l < config_.layers; ++l) {
      const LayerWeights& w = weights_.layers[static_cast<size_t>(l)];
      const KvCache kv =
          cache_.layer(l, kv_memory_.data(), table_.entries().data(), config_, options_.kv_type);
      const NormedInput attn_input =
          normed_input(config_, x_.data(), config_.dim, gain_or_null(w.attn_norm),
                       gain_or_null(w.input_norms.q), h_.data(), rows, norm);
      cpu::qkv({attn_input.x,
                attn_input.gain,
                attn_input.eps,
                view(w.q),
                view(w.k),
                view(w.v),
                rope_.cosine(),
                rope_.sine(),
                batch.positions.data(),
                q_.data(),
                k_.data(),
                v_.data(),
                rows,
                config_.dim,
                config_.head_dim,
                l,
                &fault,
                activations,
                gain_or_null(w.q_norm),
                gain_or_null(w.k_norm),
                gain_or_null(w.input_norms.k),
                gain_or_null(w.input_norms.v)},
               pool_);
      cpu::attention({q_.data(), k_.data(), v_.data(), kv, places, attention_.data(), rows,
                      config_.heads, l, &fault},
                     pool_);
      const NormedInput out_input =
          normed_input(config_, attention_.data(), config_.q_dim(), gain_or_null(w.attn_sub_norm),
                       gain_or_null(w.input_norms.o), attention_.data(), rows, norm);
      cpu::attn_out({out_input.x, out_input.gain, out_input.eps, view(w.o), x_.data(), rows, l,
                     &fault, activations},
                    pool_);
      const NormedInput ffn_input =
          normed_input(config_, x_.data(), config_.dim, gain_or_null(w.ffn_norm),
                       gain_or_null(w.input_norms.gate), h_.data(), rows, norm);
      cpu::ffn_up({ffn_input.x, ffn_input.gain, ffn_input.eps, view(w.gate), view(w.up), act,
                   u_.data(), rows, l, &fault, activations, gain_or_null(w.input_norms.up)},
                  pool_);
      const NormedInput down_input =
          normed_input(config_, u_.data(), config_.ffn, gain_or_null(w.ffn_sub_norm),
                       gain_or_null(w.input_norms.down), u_.data(), rows, norm);
      cpu::ffn_down({down_input.x, down_input.gain, down_input.eps, view(w.down), x_.data(), rows,
                     l, &fault, activations},
                    pool_);
      if (l + 1 < config_.layers) keep_hidden(outputs, l + 1, rows);
      if (options_.low_memory) model().release_pages(w);
      throw_on_fault(fault, model());
    }
    run_head(batch, outputs, fault);
    throw_on_fault(fault, model());
    if (options_.low_memory) {
      model().release_pages(weights_.head);
      model().release_pages(weights_.embedding);
      model().release_pages(weights_.ternary_head);
      model().release_pages(weights_.ternary_embedding);
    }
  }

  MemoryPlan memory() const override {
    MemoryPlan plan;
    plan.weights = model().file_bytes();  // of copied matrices only the copy is in memory
    plan.certified_head = certified_head_.bytes();
    plan.kv_cache = kv_memory_.bytes();
    plan.workspace = pool_.scratch_bytes() + rope_.bytes() +
                     (x_.size() + q_.size() + k_.size() + v_.size() + attention_.size() +
                      u_.size() + h_.size() + normed_.capacity() + logits_.capacity()) *
                         sizeof(float) +
                     marks_.capacity() * sizeof(uint16_t) + biases_.capacity() * sizeof(LogitBias);
    return plan;
  }

  HeadStats head_stats() const override { return head_stats_; }

 private:
  static const float* gain_or_null(std::span<const float> gain) {
    return gain.empty() ? nullptr : gain.data();
  }

  void keep_hidden(const Outputs& outputs, int index, int rows) const {
    if (outputs.hidden.empty()) return;
    const size_t values = static_cast<size_t>(rows) * static_cast<size_t>(config_.dim);
    std::copy_n(x_.data(), values, outputs.hidden.data() + static_cast<size_t>(index) * values);
  }

  void run_head(const Batch& batch, const Outputs& outputs, int32_t& fault) {
    const size_t dim = static_cast<size_t>(config_.dim);
    const size_t values = batch.ids.size() * dim;
    const std::vector<float*> normed_places = normed_outputs(outputs, values);
    if (outputs.rows.empty() && normed_places.empty()) return;
    HeadArgs head;
    head.x = x_.data();
    head.gain = weights_.final_norm.data();
    head.eps = config_.norm_eps;
    head.w = view(weights_.head);
    head.ternary = view(weights_.ternary_head);
    head.layers = config_.layers;
    head.fault = &fault;
    if (!normed_places.empty()) {
      // The final norm of every row of the batch; no logits are asked for here.
      std::vector<int32_t> all(batch.ids.size());
      for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<int32_t>(i);
      HeadArgs norm_only = head;
      norm_only.row_list = all.data();
      norm_only.rows = static_cast<int>(all.size());
      norm_only.w.rows = 0;
      norm_only.normed = normed_places.front();
      cpu::head(norm_only, pool_);
      for (float* place : std::span(normed_places).subspan(1)) {
        std::copy_n(norm_only.normed, values, place);
      }
    }
    const size_t vocab = static_cast<size_t>(config_.vocab);
    const size_t ids_only = ids_only_rows(outputs, config_);
    const Choices::Bans bans = choices_.bans_or_rules(
        choosing_sequences(batch, outputs), [this](int32_t sequence) { make_marks(sequence); });
    if (bans) {
      head.banned = bans->data();
      head.n_banned = static_cast<int>(bans->size());
    }
    const bool can_certify = outputs.logprobs.empty();
    for (size_t begin = 0; begin < outputs.rows.size();) {
      const bool is_id_only = begin < ids_only;
      const bool gives_id = begin < outputs.ids.size();
      const size_t end = std::min(begin + kHeadRows, is_id_only ? ids_only : outputs.rows.size());
      const size_t rows = end - begin;
      normed_.resize(rows * dim);
      head.row_list = outputs.rows.data() + begin;
      head.rows = static_cast<int>(rows);
      head.normed = normed_.data();
      head.argmax = gives_id && bans ? outputs.ids.data() + begin : nullptr;
      if (is_id_only) {
        logits_.resize(rows * vocab);
        head.logits = logits_.data();
      } else {
        head.logits = outputs.logits.data() + (begin - ids_only) * vocab;
      }
      if (is_id_only && can_certify) {
        const std::span<int32_t> ids = outputs.ids.subspan(begin, rows);
        if (bans) {
          run_certified_head(head);
        } else {
          run_choices(batch, head, ids, fault);
        }
      } else {
        cpu::head(head, pool_);
        throw_on_fault(fault, model());
        if (gives_id && !bans) run_choice(batch, head, outputs.ids.subspan(begin, rows));
        if (gives_id && !outputs.logprobs.empty()) run_logprobs(head, begin, outputs);
      }
      begin = end;
    }
    if (!bans) count_choices(batch, outputs, fault);
  }

  void make_marks(int32_t sequence) {
    const size_t slot = static_cast<size_t>(sequence);
    const size_t vocab = static_cast<size_t>(config_.vocab);
    marks_.resize(choices_.rules().size() * vocab);
    biases_.resize(choices_.rules().size() * static_cast<size_t>(kMaxBiases));
    choices_.make_marks(sequence, std::span(marks_).subspan(slot * vocab, vocab));
    std::ranges::copy(choices_.biases(sequence),
                      biases_.begin() + static_cast<ptrdiff_t>(sequence) * kMaxBiases);
  }

  ChooseArgs choose_args(const Batch& batch, const HeadArgs& head, int32_t* ids) const {
    ChooseArgs args;
    args.logits = head.logits;
    args.row_list = head.row_list;
    args.places = {batch.sequences.data(), batch.positions.data()};
    args.rules = choices_.rules().data();
    args.marks = marks_.data();
    args.biases = biases_.data();
    args.ids = ids;
    args.rows = head.rows;
    args.vocab = config_.vocab;
    return args;
  }

  // Chooses the ids of the head's rows from their logits.
  void run_choice(const Batch& batch, const HeadArgs& head, std::span<int32_t> ids) {
    cpu::choose(choose_args(batch, head, ids.data()), pool_);
  }

  // Logits and ids of the head's rows, by rules. The certified head serves the rows whose rules
  // keep few ids, the full head the others.
  void run_choices(const Batch& batch, const HeadArgs& head, std::span<int32_t> ids,
                   const int32_t& fault) {
    const auto keeps_few_ids = [&](int32_t row) {
      const auto sequence = static_cast<size_t>(batch.sequences[static_cast<size_t>(row)]);
      const ChoiceRule& rule = choices_.rules()[sequence];
      return keeps_few(rule, config_.vocab) || keeps_by_weight(rule);
    };
    // Those first whose rules keep few.
    std::vector<size_t> order(ids.size());
    std::iota(order.begin(), order.end(), size_t{0});
    const auto few_end = std::stable_partition(
        order.begin(), order.end(), [&](size_t i) { return keeps_few_ids(head.row_list[i]); });
    const auto n_few = static_cast<size_t>(few_end - order.begin());
    const CertifiedHead* certified =
        n_few == 0 ? nullptr : certified_head_.next_step(static_cast<int>(n_few), pool_);
    std::vector<int32_t> row_list(ids.size());
    std::vector<int32_t> chosen(ids.size());
    for (size_t i = 0; i < order.size(); ++i) row_list[i] = head.row_list[order[i]];
    const auto part = [&](size_t begin, size_t end) {
      HeadArgs rows = head;
      rows.row_list = row_list.data() + begin;
      rows.rows = static_cast<int>(end - begin);
      return rows;
    };
    const size_t n_certified = certified == nullptr ? 0 : n_few;
    if (n_certified > 0) {
      const HeadArgs rows = part(0, n_certified);
      rescored_.resize(n_certified);
      cpu::certified_choose(
          {rows, *certified, choose_args(batch, rows, chosen.data()), rescored_.data()}, pool_);
      throw_on_fault(fault, model());
      head_stats_.add(rescored_);
    }
    if (n_certified < ids.size()) {
      const HeadArgs rows = part(n_certified, ids.size());
      cpu::head(rows, pool_);
      throw_on_fault(fault, model());
      run_choice(batch, rows, std::span(chosen).subspan(n_certified));
    }
    for (size_t i = 0; i < order.size(); ++i) ids[order[i]] = chosen[i];
  }

  void count_choices(const Batch& batch, const Outputs& outputs, const int32_t& fault) {
    CountArgs args;
    args.ids = outputs.ids.data();
    args.row_list = outputs.rows.data();
    args.sequences = batch.sequences.data();
    args.rules = choices_.rules().data();
    args.marks = marks_.data();
    args.fault = &fault;
    args.rows = static_cast<int>(outputs.ids.size());
    args.vocab = config_.vocab;
    for (int row = 0; row < args.rows; ++row) count_choice(args, row);
  }

  // Of the head's rows, which are output rows from `begin` on.
  void run_logprobs(const HeadArgs& head, size_t begin, const Outputs& outputs) {
    const size_t n_top = outputs.top.size() / outputs.logprobs.size();
    LogprobArgs args;
    args.logits = head.logits;
    args.ids = outputs.ids.data() + begin;
    args.sums = outputs.logprobs.data() + begin;
    args.top = outputs.top.data() + begin * n_top;
    args.n_top = static_cast<int>(n_top);
    args.rows = head.rows;
    args.vocab = config_.vocab;
    cpu::logprobs(args, pool_);
  }

  void run_certified_head(const HeadArgs& head) {
    const CertifiedHead* certified = certified_head_.next_step(head.rows, pool_);
    if (certified == nullptr) {
      cpu::head(head, pool_);
      return;
    }
    rescored_.resize(static_cast<size_t>(head.rows));
    cpu::certified_head({head, *certified, rescored_.data()}, pool_);
    head_stats_.add(rescored_);
  }

  // Output rows of one call of the head: it bounds the memory of their logits.
  static constexpr size_t kHeadRows = 32;

  const ModelConfig& config_;
  const EngineOptions options_;
  const CacheLayout cache_;
  BlockTable table_;
  Choices choices_;
  std::vector<uint16_t> marks_;    // [sequences + 1, vocab], where a rule has asked for marks
  std::vector<LogitBias> biases_;  // [sequences + 1, kMaxBiases], likewise
  KvMemory kv_memory_;             // per layer: keys, then values
  RopeTable rope_;
  std::unique_ptr<const LocalWeights> local_;  // if each NUMA node has its part
  const Weights& weights_;                     // of it, or of the file
  cpu::Pool pool_;
  LazyCertifiedHead certified_head_;
  HeadStats head_stats_;
  std::vector<int32_t> rescored_;  // [output rows] of a step of the certified head
  RowMemory x_;                    // [max_rows, dim] residual stream
  RowMemory q_;                    // [max_rows, q_dim]
  RowMemory k_;                    // [max_rows, kv_dim]
  RowMemory v_;                    // [max_rows, kv_dim]
  RowMemory attention_;            // [max_rows, q_dim]
  RowMemory u_;                    // [max_rows, ffn]
  RowMemory h_;                    // [max_rows, dim] x through a norm, of a model with input norms
  std::vector<float> normed_;      // [output rows, dim]
  std::vector<float> logits_;      // [output rows, vocab], where the caller wants none
};

}  // namespace

std::unique_ptr<Backend> make_cpu_backend(const ModelFile& model, const EngineOptions& options) {
  return std::make_unique<CpuBackend>(model, options, ThreadPlaces(options));
}

}  // namespace edgellm
