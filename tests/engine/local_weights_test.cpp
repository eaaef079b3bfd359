// Weights near their threads, on a machine of two NUMA nodes that exists only as files.
#include "engine/cpu/local_weights.h"

#include <catch2/catch.hpp>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "kernels/cpu/machine.h"
#include "model/convert.h"
#include "model/layout.h"
#include "tests/support/fixtures.h"
#include "tests/support/run_ids.h"
#include "tests/support/temp_dir.h"

namespace edgellm {
namespace {

namespace fs = std::filesystem;
using namespace edgellm::test;

// Both nodes have all cores that this process may use.
void write_two_nodes(const TempDir& sysfs) {
  std::string cores;
  for (const int cpu : cpu::allowed_cpus()) {
    cores += (cores.empty() ? "" : ",") + std::to_string(cpu);
  }
  const fs::path nodes = sysfs.path() / "devices/system/node";
  for (const std::string node : {"node0", "node1"}) {
    fs::create_directories(nodes / node);
    std::ofstream(nodes / node / "cpulist") << cores << "\n";
  }
  std::ofstream(nodes / "online") << "0-1\n";
}

void check_copied(const void* original, const void* copy, size_t bytes) {
  REQUIRE((original == nullptr) == (copy == nullptr));
  if (original == nullptr) return;
  CHECK(copy != original);
  CHECK(std::memcmp(copy, original, bytes) == 0);
}

void check_copied(const TernaryTensor& original, const TernaryTensor& copy) {
  check_copied(original.codes, copy.codes, original.bytes());
  const auto scales = model_io::tensor_bytes(original.group_scale_dtype,
                                             {original.rows, model_io::group_count(original.cols)});
  check_copied(original.group_scale, copy.group_scale, static_cast<size_t>(*scales));
  CHECK(copy.scale.data() == original.scale.data());
}

struct ConvertedModel {
  TempDir temp;
  ModelFile file;

  explicit ConvertedModel(const std::string& name) : file(convert(temp, name)) {}

  static ModelFile convert(const TempDir& temp, const std::string& name) {
    const fs::path folder = fs::path(EDGELLM_SOURCE_DIR) / "tests/data/families" / name;
    convert_hf(folder.string(), temp / "model.tmac2", {});
    return ModelFile::open(temp / "model.tmac2");
  }
};

// Of int8 rows, of groups with their scales, of a ternary head that is tied.
const std::vector<std::string> kFamilies = {"falcon-e", "bonsai", "bonsai-tied-yarn"};

TEST_CASE("weights near their threads are the file's") {
  for (const std::string& name : kFamilies) {
    INFO(name);
    const ConvertedModel model(name);
    // Odd numbers of threads share odd numbers of rows.
    for (const size_t threads : {1u, 3u, 7u, 64u}) {
      const LocalWeights local(model.file, std::vector(threads, cpu::allowed_cpus()));
      const Weights& from = model.file.weights();
      const Weights& to = local.weights();
      REQUIRE(to.layers.size() == from.layers.size());
      for (size_t l = 0; l < from.layers.size(); ++l) {
        for (TernaryTensor LayerWeights::*matrix :
             {&LayerWeights::q, &LayerWeights::k, &LayerWeights::v, &LayerWeights::o,
              &LayerWeights::gate, &LayerWeights::up, &LayerWeights::down}) {
          check_copied(from.layers[l].*matrix, to.layers[l].*matrix);
        }
      }
      const auto head_bytes =
          model_io::tensor_bytes(from.head.dtype, {from.head.rows, from.head.cols});
      check_copied(from.head.data, to.head.data, static_cast<size_t>(*head_bytes));
      check_copied(from.ternary_head, to.ternary_head);
      const bool is_tied = from.embedding.data == from.head.data;
      CHECK((to.embedding.data == (is_tied ? to.head.data : from.embedding.data)));
      const bool is_ternary_tied = from.ternary_embedding.codes == from.ternary_head.codes;
      CHECK((to.ternary_embedding.codes ==
             (is_ternary_tied ? to.ternary_head.codes : from.ternary_embedding.codes)));
    }
  }
}

TEST_CASE("a CPU with two NUMA nodes gives the same logits") {
  const TempDir sysfs;
  write_two_nodes(sysfs);
  for (const std::string& name : kFamilies) {
    INFO(name);
    const ConvertedModel model(name);
    const std::vector<int32_t> ids = {1, 2, 3, 5, 7, 11, 13};
    EngineOptions options;
    options.threads = 3;
    options.context = 16;
    const auto plain = make_cpu_backend(model.file, options);
    options.sysfs = sysfs.path().string();
    const auto spread = make_cpu_backend(model.file, options);
    CHECK(spread->info().device.ends_with("3 threads on 2 NUMA nodes)"));
    CHECK(run_ids(*plain, ids).logits == run_ids(*spread, ids).logits);

    for (const auto& [threads, local] :
         {std::pair(1, LocalWeightsFor::kEveryEngine), std::pair(3, LocalWeightsFor::kNobody)}) {
      options.threads = threads;
      options.local_weights = local;
      CHECK(make_cpu_backend(model.file, options)->info().device.find("NUMA") == std::string::npos);
    }
  }
}

}  // namespace
}  // namespace edgellm
