// The CUDA backend against ref, bit for bit: every op, odd sizes, rows alone and together.
#include <catch2/catch.hpp>

#include "kernels/cuda/cuda.h"
#include "kernels/ref/integer_attention.h"
#include "tests/kernels/gpu_data.h"
#include "tests/kernels/op_data.h"

namespace edgellm {
namespace {

using namespace edgellm::test;

constexpr int kBatches[] = {1, 2, 3, 5, 8, 9, 65};
constexpr KvType kTypes[] = {KvType::kI16, KvType::kI8, KvType::kF32};

TEST_CASE("CUDA attn_out and ffn_down give the bits of ref", "[gpu]") {
  if (no_gpu()) return;
  Random random(21);
  const std::pair<int, int> shapes[] = {{4, 1},     {36, 3},     {124, 33},  {252, 64},
                                        {256, 129}, {576, 65},   {1028, 20}, {2560, 40},
                                        {6912, 24}, {14336, 17}, {23040, 9}};
  for (const auto& [cols, dim] : shapes) {
    for (int rows : kBatches) {
      for (bool sub_norm : {false, true}) {
        INFO("cols " << cols << ", dim " << dim << ", rows " << rows << ", sub-norm " << sub_norm);
        const TernaryData w(random, dim, cols, random.below(2) == 1);
        const std::vector<float> y = activation_rows(random, rows, cols);
        const std::vector<float> gain = gains(random, cols);
        const std::vector<float> x = random.normals(static_cast<size_t>(rows * dim), 3.0f);
        std::vector<float> expected = x;
        int32_t fault = 0;
        ref::attn_out({y.data(), sub_norm ? gain.data() : nullptr, 1e-5f, w.matrix, expected.data(),
                       rows, 0, &fault});
        const TernaryOnDevice device_w(w.matrix);
        const OnDevice<float> device_y(y), device_gain(gain), device_x(x);
        const OnDevice<int32_t> device_fault(std::vector<int32_t>{0});
        const WorkspaceOnDevice workspace(static_cast<size_t>(rows), cols, 1, 1, 1);
        cuda::attn_out({device_y.data(), sub_norm ? device_gain.data() : nullptr, 1e-5f,
                        device_w.matrix, device_x.data(), rows, 0, device_fault.data()},
                       workspace.workspace, nullptr);
        finish();
        REQUIRE(first_difference(expected, device_x.read()) == "");
        REQUIRE(device_fault.read()[0] == 0);
      }
    }
  }
}

TEST_CASE("CUDA ffn_up gives the bits of ref", "[gpu]") {
  if (no_gpu()) return;
  Random random(22);
  for (const auto& [dim, ffn] : {std::pair{36, 31}, {320, 864}, {576, 129}, {2560, 70}}) {
    for (int rows : kBatches) {
      for (GateActivation act : {GateActivation::kRelu2, GateActivation::kSilu}) {
        INFO("dim " << dim << ", ffn " << ffn << ", rows " << rows);
        const TernaryData gate(random, ffn, dim);
        const TernaryData up(random, ffn, dim, true);
        const std::vector<float> x = activation_rows(random, rows, dim);
        const std::vector<float> gain = gains(random, dim);
        int32_t fault = 0;
        std::vector<float> expected(static_cast<size_t>(rows * ffn));
        ref::ffn_up({x.data(), gain.data(), 1e-5f, gate.matrix, up.matrix, act, expected.data(),
                     rows, 0, &fault});
        const TernaryOnDevice device_gate(gate.matrix), device_up(up.matrix);
        const OnDevice<float> device_x(x), device_gain(gain), u(expected.size());
        const OnDevice<int32_t> device_fault(std::vector<int32_t>{0});
        const WorkspaceOnDevice workspace(static_cast<size_t>(rows), dim, 1, 1, 1);
        cuda::ffn_up({device_x.data(), device_gain.data(), 1e-5f, device_gate.matrix,
                      device_up.matrix, act, u.data(), rows, 0, device_fault.data()},
                     workspace.workspace, nullptr);
        finish();
        REQUIRE(first_difference(expected, u.read()) == "");
      }
    }
  }
}

TEST_CASE("CUDA qkv and attention give the bits of ref", "[gpu]") {
  if (no_gpu()) return;
  Random random(23);
  const HeadShape shapes[] = {{6, 2, 64},  {5, 1, 80}, {4, 4, 96},  {2, 1, 100}, {7, 1, 64},
                              {4, 1, 128}, {3, 3, 20}, {2, 2, 256}, {18, 2, 32}, {20, 5, 128}};
  for (const HeadShape& shape : shapes) {
    for (KvType type : kTypes) {
      // In a cache of two chunks, for which a thread block takes both, and in a longer one.
      for (const int positions : {200, 700}) {
        check_qkv_and_attention(random, shape, type, 4 * 31, positions, 3, attention_passes(),
                                [](const QkvArgs& qkv, const AttentionArgs& attention,
                                   const cuda::Workspace& workspace) {
                                  cuda::qkv(qkv, workspace, nullptr);
                                  cuda::attention(attention, workspace, nullptr);
                                });
      }
    }
  }
}

// Keys and values of positions 0 .. lengths[s] - 1 of each sequence s. Dimension 0 of the values is
// so small that its sums can be -0.
void fill_cache(Random& random, const std::vector<int>& lengths, const CacheData& data) {
  const KvCache& cache = data.cache;
  const size_t head_dim = static_cast<size_t>(cache.head_dim);
  constexpr float kSmall[] = {0.0f, -0.0f, -1e-45f};
  for (int s = 0; s < data.sequences; ++s) {
    for (int p = 0; p < lengths[static_cast<size_t>(s)]; ++p) {
      for (int h = 0; h < cache.kv_heads; ++h) {
        const std::vector<float> k = random.normals(head_dim);
        std::vector<float> v = random.normals(head_dim);
        v[0] = kSmall[random.below(3)];
        if (is_coded(cache.type)) {
          REQUIRE(ref::store_codes(cache, s, p, h, k.data(), v.data()));
          continue;
        }
        const size_t tile = cache.tile_offset(s, p, h);
        for (int d = 0; d < cache.head_dim; ++d) {
          const auto i = static_cast<size_t>(d);
          static_cast<float*>(cache.k)[tile + ref::key_index(p, d, cache.head_dim)] = k[i];
          static_cast<float*>(cache.v)[tile + ref::value_index(p, d, cache.head_dim)] = v[i];
        }
      }
    }
  }
}

// Attention over sequences of these lengths: `rounds` rows of each, the first at its last position,
// and rows of a prompt behind them, positions first .. first + count - 1 of a sequence.
struct ManySequences {
  std::vector<int> lengths;
  int rounds = 1;
  int prompt_sequence = 0;
  int prompt_first = 0;
  int prompt_rows = 0;
};

void check_many_sequences(Random& random, const HeadShape& shape, KvType type,
                          const ManySequences& of) {
  const std::vector<int>& lengths = of.lengths;
  const int n_sequences = static_cast<int>(lengths.size());
  const int longest = *std::max_element(lengths.begin(), lengths.end());
  CacheData cache(random, n_sequences, longest, random.below(2) == 0 ? 64 : 192, shape.kv_heads,
                  shape.head_dim, type);
  fill_cache(random, lengths, cache);
  Pass pass;
  for (int r = 0; r < of.rounds * n_sequences; ++r) {
    const int s = (r + 3) % n_sequences;
    pass.sequence.push_back(s);
    pass.position.push_back(
        std::max(0, lengths[static_cast<size_t>(s)] - 1 - 29 * (r / n_sequences)));
  }
  const int n_alone = static_cast<int>(pass.sequence.size());
  for (int p = 0; p < of.prompt_rows; ++p) {
    pass.sequence.push_back(of.prompt_sequence);
    pass.position.push_back(of.prompt_first + p);
  }
  const int rows = static_cast<int>(pass.sequence.size());

  const size_t width = shape.q_width();
  const std::vector<float> q = random.normals(static_cast<size_t>(rows) * width, 2.0f);
  std::vector<float> expected(q.size());
  AttentionArgs args;
  args.q = q.data();
  args.kv = cache.cache;
  args.places = {pass.sequence.data(), pass.position.data()};
  args.out = expected.data();
  args.rows = rows;
  args.heads = shape.heads;
  ref::attention(args);

  const CacheOnDevice device_cache(cache);
  const OnDevice<int32_t> sequence(pass.sequence), position(pass.position);
  const OnDevice<float> device_q(q);
  args.q = device_q.data();
  args.kv = device_cache.cache;
  args.places = {sequence.data(), position.data()};
  const WorkspaceOnDevice memory(static_cast<size_t>(rows), 1, static_cast<size_t>(shape.heads),
                                 static_cast<size_t>(cuda::divide_up(longest, kIntegerChunk)),
                                 static_cast<size_t>(shape.head_dim));

  // {rows, of them decode rows, rows whose chunks blocks may share, the reach that they plan for}:
  // with prompt rows and without, a block a row or many, every row as if of a prompt, contexts that
  // are longer than planned for.
  for (const auto& [n, n_decode, n_shared, reach] :
       {std::tuple{rows, n_alone, 1, 0},
        {rows, std::min(rows, n_alone + 3), 1, 0},
        {n_alone, n_alone, 1, 0},
        {n_alone, std::min(5, n_alone), cuda::kMaxInlineRows, 0},
        {std::min(5, n_alone), std::min(5, n_alone), cuda::kMaxInlineRows, 0},
        {std::min(5, n_alone), std::min(5, n_alone), cuda::kMaxInlineRows, 256},
        {std::min(5, n_alone), std::min(5, n_alone), 1, 0},
        {2, 2, cuda::kMaxInlineRows, 0},
        {1, 1, cuda::kMaxInlineRows, 0},
        {1, 1, cuda::kMaxInlineRows, 500},
        {std::min(5, n_alone), std::min(5, n_alone), 1, 2048},
        {n_alone, n_alone, 1, 2048},
        {1, 1, cuda::kMaxInlineRows, 1},
        {rows, 0, 1, 0}}) {
    INFO("heads " << shape.heads << "/" << shape.kv_heads << " of " << shape.head_dim
                  << (is_coded(type) ? ", codes" : ", f32") << ", rows " << n << ", decode rows "
                  << n_decode << ", shared rows " << n_shared << ", reach " << reach);
    const OnDevice<float> out(static_cast<size_t>(n) * width);
    cuda::Workspace workspace = memory.workspace;
    workspace.attention_rows = n_shared;
    args.rows = n;
    args.decode_rows = n_decode;
    args.decode_reach = reach;
    args.out = out.data();
    // Twice: the counters must come back to zero.
    for (int i = 0; i < 2; ++i) cuda::attention(args, workspace, nullptr);
    finish();
    const std::vector<float> wanted(
        expected.begin(),
        expected.begin() + static_cast<ptrdiff_t>(static_cast<size_t>(n) * width));
    REQUIRE(first_difference(wanted, out.read()) == "");
    REQUIRE(device_cache.difference() == "");
  }
}

TEST_CASE("CUDA attention of rows of many sequences gives the bits of ref", "[gpu]") {
  if (no_gpu()) return;
  Random random(26);
  ManySequences sequences{{1, 63, 64, 65, 127, 128, 300, 1000, 2100}, 1, 6, 30, 100};
  const HeadShape shapes[] = {{3, 3, 64},  {4, 2, 64},   {9, 3, 64},  {8, 1, 64},  {2, 2, 128},
                              {2, 1, 128}, {3, 1, 128},  {4, 1, 128}, {5, 1, 128}, {1, 1, 256},
                              {3, 1, 256}, {4, 1, 256},  {16, 2, 40}, {5, 1, 96},  {2, 1, 100},
                              {3, 1, 20},  {20, 20, 50}, {6, 2, 130}, {9, 1, 64},  {20, 1, 128}};
  for (const HeadShape& shape : shapes) {
    for (KvType type : kTypes) check_many_sequences(random, shape, type, sequences);
  }
  // With so many rows that blocks take whole contexts.
  const HeadShape shapes_of_many[] = {{4, 2, 64},  {9, 3, 64},  {2, 2, 128},
                                      {3, 1, 128}, {3, 1, 256}, {20, 5, 128}};
  sequences.rounds = 8;
  for (const HeadShape& shape : shapes_of_many) {
    for (KvType type : kTypes) check_many_sequences(random, shape, type, sequences);
  }
  // With more blocks than there is room for at once.
  sequences.rounds = 24;
  for (const HeadShape& shape : {HeadShape{9, 3, 64}, {4, 2, 36}, {3, 3, 32}}) {
    for (KvType type : kTypes) check_many_sequences(random, shape, type, sequences);
  }
}

// Rows with new keys and values at rising positions, which end a chunk, begin one, and lie in
// chunks that a thread block fetches first or later.
void check_appends(Random& random, const HeadShape& shape, KvType type, int shared_rows, int reach,
                   int copies = 1) {
  std::vector<int> lengths;
  for (int i = 0; i < copies; ++i) {
    for (const int length : {127, 190, 300, 1000, 62, 1150}) lengths.push_back(length);
  }
  if (copies == 1) lengths.push_back(2046);
  const int rows = static_cast<int>(lengths.size());
  const int longest = *std::max_element(lengths.begin(), lengths.end()) + 4;
  CacheData cache(random, rows, longest, 64, shape.kv_heads, shape.head_dim, type);
  fill_cache(random, lengths, cache);
  const CacheOnDevice device_cache(cache);
  const WorkspaceOnDevice memory(static_cast<size_t>(rows), 1, static_cast<size_t>(shape.heads),
                                 static_cast<size_t>(cuda::divide_up(longest, kIntegerChunk)),
                                 static_cast<size_t>(shape.head_dim));
  cuda::Workspace workspace = memory.workspace;
  workspace.attention_rows = shared_rows;
  for (int step = 0; step < 4; ++step) {
    INFO("heads " << shape.heads << "/" << shape.kv_heads << " of " << shape.head_dim
                  << ", shared rows " << shared_rows << ", reach " << reach << ", step " << step);
    std::vector<int32_t> sequences, positions;
    for (int s = 0; s < rows; ++s) {
      sequences.push_back(s);
      positions.push_back(lengths[static_cast<size_t>(s)] + step);
    }
    const auto n = static_cast<size_t>(rows);
    const std::vector<float> q = random.normals(n * shape.q_width(), 2.0f);
    const std::vector<float> k = random.normals(n * shape.kv_width());
    const std::vector<float> v = random.normals(n * shape.kv_width());
    std::vector<float> expected(q.size());
    int32_t fault = 0;
    AttentionArgs args;
    args.q = q.data();
    args.k = k.data();
    args.v = v.data();
    args.kv = cache.cache;
    args.places = {sequences.data(), positions.data()};
    args.out = expected.data();
    args.rows = rows;
    args.heads = shape.heads;
    args.fault = &fault;
    ref::attention(args);

    const OnDevice<float> device_q(q), device_k(k), device_v(v), out(q.size());
    const OnDevice<int32_t> sequence(sequences), position(positions);
    const OnDevice<int32_t> device_fault(std::vector<int32_t>{0});
    args.q = device_q.data();
    args.k = device_k.data();
    args.v = device_v.data();
    args.kv = device_cache.cache;
    args.places = {sequence.data(), position.data()};
    args.out = out.data();
    args.fault = device_fault.data();
    args.decode_rows = rows;
    args.decode_reach = reach;
    cuda::attention(args, workspace, nullptr);
    finish();
    REQUIRE(first_difference(expected, out.read()) == "");
    REQUIRE(device_cache.difference() == "");
    REQUIRE(device_fault.read()[0] == 0);
  }
}

TEST_CASE("CUDA attention appends keys and values of decode rows wherever they lie", "[gpu]") {
  if (no_gpu()) return;
  Random random(28);
  const HeadShape shapes[] = {{20, 5, 128}, {9, 3, 64},  {2, 1, 100}, {8, 1, 64},
                              {2, 2, 256},  {4, 2, 128}, {4, 2, 64}};
  for (const HeadShape& shape : shapes) {
    for (KvType type : {KvType::kI16, KvType::kI8}) {
      check_appends(random, shape, type, cuda::kMaxInlineRows, 0);  // a block a chunk
      check_appends(random, shape, type, 0, 0);                     // a block a row
      check_appends(random, shape, type, 0, 1);                     // and two chunks at once
      // Clusters of four to sixteen, also for contexts that are longer than planned for.
      check_appends(random, shape, type, 0, 512);
      check_appends(random, shape, type, 0, 1024);
      check_appends(random, shape, type, 0, 2048);
    }
  }
  // More blocks than SMs, so clusters of two or four.
  for (const auto& [shape, copies] : {std::pair{HeadShape{20, 5, 128}, 6},
                                      {{9, 3, 64}, 10},
                                      {{3, 1, 96}, 30},
                                      {{2, 1, 100}, 30},
                                      {{3, 3, 50}, 10},
                                      {{4, 4, 20}, 8}}) {
    for (KvType type : {KvType::kI16, KvType::kI8}) {
      check_appends(random, shape, type, 0, 256, copies);
      check_appends(random, shape, type, 0, 1024, copies);
    }
  }
  // More blocks than there is room for at once, so small ones.
  for (const HeadShape& shape : {HeadShape{9, 3, 64}, {3, 3, 50}, {4, 4, 20}}) {
    for (KvType type : {KvType::kI16, KvType::kI8}) {
      check_appends(random, shape, type, 0, 0, 41);
    }
  }
}

TEST_CASE("CUDA attention over 16,384 positions gives the bits of ref", "[gpu]") {
  if (no_gpu()) return;
  Random random(27);
  const ManySequences sequences{{16384, 4097, 16257}, 1, 0, 16384 - 70, 70};
  for (const HeadShape& shape : {HeadShape{4, 1, 128}, {3, 1, 64}, {2, 2, 100}}) {
    for (KvType type : {KvType::kI16, KvType::kI8}) {
      check_many_sequences(random, shape, type, sequences);
    }
  }
}

TEST_CASE("CUDA embed and head give the bits of ref", "[gpu]") {
  if (no_gpu()) return;
  Random random(24);
  for (DenseType type : {DenseType::kF32, DenseType::kF16, DenseType::kBF16}) {
    for (const auto& [dim, vocab] : {std::pair{4, 1},
                                     {36, 131},
                                     {320, 65},
                                     {628, 1000},
                                     {2564, 33},
                                     {256, 20001},
                                     {8, 3},
                                     {64, 5},
                                     {128, 17},
                                     {136, 31},
                                     {264, 33},
                                     {384, 129},
                                     {576, 262},
                                     {600, 131},
                                     {40, 9001},
                                     {2560, 67}}) {
      for (int rows : {1, 2, 3, 4, 5, 8, 9, 16, 17, 33, 70, 129}) {
        if (rows > 5 && vocab > 1000 && dim > 64) continue;
        if (rows > 70 && dim > 600) continue;
        INFO("dim " << dim << ", vocab " << vocab << ", rows " << rows);
        const DenseData table(random, vocab, dim, type);
        const DenseData w(random, vocab, dim, type);
        const std::vector<float> gain = gains(random, dim);
        std::vector<int32_t> ids, row_list;
        for (int r = 0; r < rows; ++r) {
          ids.push_back(random.below(vocab));
          row_list.push_back(rows - 1 - r);
        }
        const std::vector<int32_t> banned = {random.below(vocab)};
        std::vector<float> x(static_cast<size_t>(rows * dim)), normed(x.size());
        std::vector<float> logits(static_cast<size_t>(rows * vocab));
        std::vector<int32_t> argmax(static_cast<size_t>(rows));
        int32_t fault = 0;
        ref::embed({table.matrix, ids.data(), x.data(), rows});
        HeadArgs args{x.data(),      row_list.data(), gain.data(),   1e-5f, w.matrix, normed.data(),
                      logits.data(), argmax.data(),   banned.data(), 1,     rows,     0,
                      &fault};
        ref::head(args);

        const OnDevice<uint8_t> table_bytes(table.bytes), w_bytes(w.bytes);
        const OnDevice<int32_t> device_ids(ids), device_rows(row_list), device_banned(banned);
        const OnDevice<float> device_gain(gain), device_x(x.size()), device_normed(x.size());
        const OnDevice<float> device_logits(logits.size());
        const OnDevice<int32_t> device_argmax(argmax.size());
        const OnDevice<int32_t> device_fault(std::vector<int32_t>{0});
        const WorkspaceOnDevice workspace(static_cast<size_t>(rows), dim, 1, 1, 1);
        cuda::embed(
            {{table_bytes.data(), type, vocab, dim}, device_ids.data(), device_x.data(), rows},
            nullptr);
        const HeadArgs device{device_x.data(),
                              device_rows.data(),
                              device_gain.data(),
                              1e-5f,
                              {w_bytes.data(), type, vocab, dim},
                              device_normed.data(),
                              device_logits.data(),
                              device_argmax.data(),
                              device_banned.data(),
                              1,
                              rows,
                              0,
                              device_fault.data()};
        // Twice: the counters of the arg-max must come back to zero.
        for (int i = 0; i < 2; ++i) cuda::head(device, workspace.workspace, nullptr);
        finish();
        REQUIRE(first_difference(x, device_x.read()) == "");
        REQUIRE(first_difference(normed, device_normed.read()) == "");
        REQUIRE(first_difference(logits, device_logits.read()) == "");
        REQUIRE(first_difference(argmax, device_argmax.read()) == "");
      }
    }
  }
}

}  // namespace
}  // namespace edgellm
