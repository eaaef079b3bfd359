// The bytes that the benchmark of the ops counts, against two other counts: lists of arrays, added
// up by hand for a small model, and what a profiler saw on a GPU for a large one.
#include "apps/bench/ops/op_bytes.h"

#include <catch2/catch.hpp>
#include <initializer_list>

#include "model/convert.h"

namespace edgellm::bench {
namespace {

constexpr RowPadding kGpu{.weights = 64, .activations = 64};
constexpr RowPadding kAvx2{.weights = 4, .activations = 128};

// ---- By hand ------------------------------------------------------------------------------------

// Widths that are no multiple of 64, and all different: 6 heads make 120 columns of q, 2 heads 40
// of k and of v. In the cache a head of a key or a value is 32 codes of 2 bytes, and both together
// have three units: a position is 128 bytes of keys, 128 of values and 24 of units.
//
//   columns                     100   120   300
//   float32                     400   480  1200 bytes
//   ternary codes on a GPU       32    32    80 bytes: 16 for each 64 columns begun
//   int8 codes on a GPU         128   128   320 bytes: 64 for each 64 columns begun
//   with scale, RMS factor, sum 140   140   332 bytes
ModelConfig small_config() {
  ModelConfig config;
  config.dim = 100;
  config.ffn = 300;
  config.heads = 6;
  config.kv_heads = 2;
  config.head_dim = 20;
  config.vocab = 1000;
  return config;
}

// An array that an op reads or writes.
struct Array {
  const char* what;
  uint64_t bytes;
};

uint64_t sum(std::initializer_list<Array> arrays) {
  uint64_t bytes = 0;
  for (const Array& array : arrays) bytes += array.bytes;
  return bytes;
}

void check(const OpBytes& bytes, std::initializer_list<Array> weights,
           std::initializer_list<Array> kv, std::initializer_list<Array> activations) {
  CHECK(bytes.weights == sum(weights));
  CHECK(bytes.kv == sum(kv));
  CHECK(bytes.activations == sum(activations));
  CHECK(bytes.total() == sum(weights) + sum(kv) + sum(activations));
}

TEST_CASE("bytes of an op in one launch: weights, inputs, results") {
  const ModelConfig config = small_config();
  const PassShape one{1, 70};
  check(fused_bytes(config, LayerOp::kQkv, one, kGpu, 1),
        {{"gain", 400},
         {"120 rows of q", 3840},
         {"40 rows of k", 1280},
         {"40 rows of v", 1280},
         {"three scales", 12}},
        {},
        {{"x in", 400},
         {"cosines", 40},
         {"sines", 40},
         {"q out", 480},
         {"k out", 160},
         {"v out", 160}});
  check(fused_bytes(config, LayerOp::kAttention, one, kGpu, 1), {},
        {{"key, value and units appended", 280},
         {"71 keys", 9088},
         {"71 values", 9088},
         {"71 times 6 units", 1704}},
        {{"q in", 480}, {"k in", 160}, {"v in", 160}, {"result out", 480}});
  check(fused_bytes(config, LayerOp::kAttnOut, one, kGpu, 1),
        {{"100 rows of 120", 3200}, {"scale", 4}}, {},
        {{"row in", 480}, {"x in", 400}, {"x out", 400}});
  check(fused_bytes(config, LayerOp::kFfnUp, one, kGpu, 1),
        {{"gain", 400}, {"300 rows of gate", 9600}, {"300 rows of up", 9600}, {"two scales", 8}},
        {}, {{"x in", 400}, {"u out", 1200}});
  check(fused_bytes(config, LayerOp::kFfnDown, one, kGpu, 1),
        {{"100 rows of 300", 8000}, {"scale", 4}}, {},
        {{"u in", 1200}, {"x in", 400}, {"x out", 400}});
}

TEST_CASE("bytes of an op in one launch: three rows share the weights, and nothing lies between") {
  const ModelConfig config = small_config();
  const PassShape three{3, 70};
  check(fused_bytes(config, LayerOp::kQkv, three, kGpu, 1), {{"gain, codes and scales", 6812}}, {},
        {{"x in", 1200},
         {"cosines", 120},
         {"sines", 120},
         {"q out", 1440},
         {"k out", 480},
         {"v out", 480}});
  check(fused_bytes(config, LayerOp::kFfnDown, three, kGpu, 1), {{"codes and scale", 8004}}, {},
        {{"u in", 3600}, {"x in", 1200}, {"x out", 1200}});
}

TEST_CASE("bytes of an op in two launches: the quantised rows go through memory") {
  const ModelConfig config = small_config();
  const PassShape three{3, 70};
  check(fused_bytes(config, LayerOp::kQkv, three, kGpu, 2), {{"gain, codes and scales", 6812}}, {},
        {{"x in", 1200},
         {"quantised out", 420},
         {"quantised in", 420},
         {"cosines", 120},
         {"sines", 120},
         {"q out", 1440},
         {"k out", 480},
         {"v out", 480}});
  check(fused_bytes(config, LayerOp::kFfnDown, three, kGpu, 2), {{"codes and scale", 8004}}, {},
        {{"u in", 3600},
         {"quantised out", 996},
         {"quantised in", 996},
         {"x in", 1200},
         {"x out", 1200}});
}

TEST_CASE("decode rows have caches of their own, rows of a prompt share one") {
  const ModelConfig config = small_config();
  // 8 caches of 71 positions, one of 79, and a position appended for each row; a position is 280
  // bytes.
  CHECK(fused_bytes(config, LayerOp::kAttention, {8, 70}, kGpu, 1).kv == 161280);
  CHECK(fused_bytes(config, LayerOp::kAttention, {9, 70}, kGpu, 1).kv == 24640);
}

TEST_CASE("bytes of the unfused chain: every kernel reads and writes its rows") {
  const ModelConfig config = small_config();
  const PassShape one{1, 70};
  check(unfused_bytes(config, LayerOp::kQkv, one, kGpu), {{"gain, codes and scales", 6812}}, {},
        {{"norm in", 400},
         {"norm out", 400},
         {"quantise in", 400},
         {"quantise out", 140},
         {"three products in", 420},
         {"q out", 480},
         {"k out", 160},
         {"v out", 160},
         {"RoPE, q in and out", 960},
         {"RoPE, k in and out", 320},
         {"cosines and sines", 80}});
  // There is no norm.
  check(unfused_bytes(config, LayerOp::kAttnOut, one, kGpu), {{"codes and scale", 3204}}, {},
        {{"quantise in", 480},
         {"quantise out", 140},
         {"product in", 140},
         {"product out", 400},
         {"add, product in", 400},
         {"add, x in", 400},
         {"add, x out", 400}});
  check(unfused_bytes(config, LayerOp::kFfnUp, one, kGpu), {{"gain, codes and scales", 19608}}, {},
        {{"norm in", 400},
         {"norm out", 400},
         {"quantise in", 400},
         {"quantise out", 140},
         {"two products in", 280},
         {"gate out", 1200},
         {"up out", 1200},
         {"activation, both in", 2400},
         {"activation, u out", 1200}});
  check(unfused_bytes(config, LayerOp::kFfnDown, one, kGpu), {{"codes and scale", 8004}}, {},
        {{"quantise in", 1200},
         {"quantise out", 332},
         {"product in", 332},
         {"product out", 400},
         {"add, product in", 400},
         {"add, x in", 400},
         {"add, x out", 400}});
}

TEST_CASE("a sub-norm adds its gain to both, its rows to the unfused chain only") {
  ModelConfig config = small_config();
  const PassShape one{1, 70};
  const OpBytes fused = fused_bytes(config, LayerOp::kFfnDown, one, kGpu, 1);
  const OpBytes unfused = unfused_bytes(config, LayerOp::kFfnDown, one, kGpu);
  config.ffn_sub_norm = true;
  check(fused_bytes(config, LayerOp::kFfnDown, one, kGpu, 1),
        {{"as before", fused.weights}, {"gain", 1200}}, {}, {{"as before", fused.activations}});
  check(unfused_bytes(config, LayerOp::kFfnDown, one, kGpu),
        {{"as before", unfused.weights}, {"gain", 1200}}, {},
        {{"as before", unfused.activations}, {"norm in", 1200}, {"norm out", 1200}});
  // The other sub-norm is the other op's.
  CHECK(fused_bytes(config, LayerOp::kAttnOut, one, kGpu, 1).weights == 3204);
  config.attn_sub_norm = true;
  CHECK(fused_bytes(config, LayerOp::kAttnOut, one, kGpu, 1).weights == 3684);
}

TEST_CASE("only activations differ between fused and unfused, and the fused are fewer") {
  struct Device {
    RowPadding padding;
    int qkv_steps, steps;
  };
  for (const Device& device : {Device{kGpu, 1, 1}, Device{kGpu, 2, 2}, Device{kAvx2, 3, 2}}) {
    for (const std::string& shape : synth_shape_names()) {
      const ModelConfig config = synth_config(shape);
      for (const int rows : {1, 8, 512}) {
        for (const LayerOp op : kLayerOps) {
          INFO(shape << ", " << to_string(op) << ", rows " << rows << ", steps " << device.steps);
          const int steps = op == LayerOp::kQkv ? device.qkv_steps : device.steps;
          const OpBytes fused = fused_bytes(config, op, {rows, 128}, device.padding, steps);
          const OpBytes unfused = unfused_bytes(config, op, {rows, 128}, device.padding);
          CHECK(fused.weights == unfused.weights);
          CHECK(fused.kv == unfused.kv);
          if (op == LayerOp::kAttention) {
            CHECK(fused.activations == unfused.activations);
          } else {
            CHECK(fused.activations < unfused.activations);
          }
        }
      }
    }
  }
}

TEST_CASE("bytes of the head: bfloat16 rows, or codes of them and the rescored ones") {
  const ModelConfig config = small_config();
  check(full_head_bytes(config, 2, 2, 2), {{"1000 rows of 100", 200000}, {"gain", 400}}, {},
        {{"x in", 800}, {"normed out", 800}, {"normed in", 800}, {"logits out", 8000}});
  check(certified_head_bytes(config, 2, 96, 2, 5),
        {{"1000 rows of 96 bytes of codes", 96000},
         {"1000 bounds", 16000},
         {"gain", 400},
         {"5 rows of 100", 1000}},
        {},
        {{"x in", 800},
         {"normed out", 800},
         {"normed in", 800},
         {"steps out", 512},
         {"steps in", 512},
         {"upper bounds out", 8000},
         {"upper bounds in", 8000}});
}

TEST_CASE("on the CPU codes end with their last byte, and loops hand over rows through memory") {
  ModelConfig config = small_config();
  config.dim = 102;  // 26 bytes of codes, 408 of floats
  const PassShape one{1, 70};
  check(fused_bytes(config, LayerOp::kQkv, one, kAvx2, 3),
        {{"gain", 408},
         {"120 rows of q", 3120},
         {"40 rows of k", 1040},
         {"40 rows of v", 1040},
         {"three scales", 12}},
        {},
        {{"x in", 408},
         {"quantised out", 140},
         {"quantised in", 140},
         {"q, k and v out", 800},
         {"RoPE, q and k in", 640},
         {"RoPE, q and k out", 640},
         {"cosines and sines", 80}});
  check(fused_bytes(config, LayerOp::kFfnDown, one, kAvx2, 2),
        {{"102 rows of 300", 7650}, {"scale", 4}}, {},
        {{"u in", 1200},
         {"quantised out", 396},
         {"quantised in", 396},
         {"x in", 408},
         {"x out", 408}});
  check(unfused_bytes(config, LayerOp::kFfnDown, one, kAvx2),
        {{"102 rows of 300", 7650}, {"scale", 4}}, {},
        {{"quantise in", 1200},
         {"quantise out", 396},
         {"product in", 396},
         {"product out", 408},
         {"add, product in", 408},
         {"add, x in", 408},
         {"add, x out", 408}});
  check(full_head_bytes(config, 1, 4, 3), {{"1000 rows of 102", 408000}, {"gain", 408}}, {},
        {{"x in", 408},
         {"normed out", 408},
         {"normed in", 408},
         {"logits out", 4000},
         {"logits in", 4000}});
}

// ---- By a profiler ------------------------------------------------------------------------------

// An op of bitnet-2b-4t as Nsight Compute sees it on an H200, from an empty L2 cache:
//
//   ncu --clock-control none --cache-control all --kernel-name-base demangled
//       --kernel-name 'regex:edgellm::cuda::.*(ProjectOp|FfnUpOp|quantise_kernel)'
//       --metrics dram__bytes_read.sum,smsp__sass_data_bytes_mem_global_op_st.sum
//       --csv --page raw --print-units base
//       edgellm bench --ops --device cuda --shape bitnet-2b-4t --rows 1,8 -d 128 --layers 2 -r 1
struct Profiled {
  LayerOp op;
  int rows;
  uint64_t inputs;     // by hand: what it reads apart from weights
  uint64_t dram_read;  // dram__bytes_read.sum, the median of all launches
  uint64_t stored;     // smsp__sass_data_bytes_mem_global_op_st.sum, the same in all launches
};

// dim 2560, ffn 6912, 20 heads of 128, both sub-norms. Of a row x and the attention's result are
// 10,240 bytes each, u is 27,648. Not in the table: attn_out of one row, where the counter has
// about 1,000 bytes more than the results, probably stores to shared memory through generic
// addresses; and qkv, which has not been profiled since it writes rows of k and v.
constexpr Profiled kProfiled[] = {
    {LayerOp::kFfnUp, 1, 10240, 8900352, 27648},    {LayerOp::kFfnDown, 1, 37888, 4522752, 10240},
    {LayerOp::kAttnOut, 8, 163840, 1839616, 81920}, {LayerOp::kFfnUp, 8, 81920, 8968192, 221184},
    {LayerOp::kFfnDown, 8, 303104, 4787200, 81920},
};

TEST_CASE("a profiler sees the bytes that are counted") {
  const ModelConfig config = synth_config("bitnet-2b-4t");
  for (const Profiled& seen : kProfiled) {
    INFO(to_string(seen.op) << " of " << seen.rows << " rows");
    const OpBytes bytes = fused_bytes(config, seen.op, {seen.rows, 128}, kGpu, 1);
    // Exact: the counter adds up the bytes of each thread's stores, and every result is stored
    // once. Quantised rows in memory would add 2,560 bytes a row or more.
    CHECK(bytes.activations + bytes.kv == seen.inputs + seen.stored);
    // All that is read comes from DRAM, and only once, as the L2 cache has room for all of it.
    // Below: 1 % for the counter, which passes over several replays. Above: DRAM is read 64 bytes
    // at a time, and the kernel's code, constants and page tables come from there.
    const auto must_read = static_cast<double>(bytes.weights + seen.inputs);
    CHECK(static_cast<double>(seen.dram_read) > 0.99 * must_read);
    CHECK(static_cast<double>(seen.dram_read) < 1.03 * must_read + 128 * 1024);
  }
}

}  // namespace
}  // namespace edgellm::bench
