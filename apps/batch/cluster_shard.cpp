#include "apps/batch/cluster_shard.h"

#include <cstdint>

#include "base/error.h"
#include "base/text.h"

namespace edgellm {
namespace {

constexpr int kMostShards = 100'000'000;

// Reads variables and keeps in mind which.
class ClusterVariables {
 public:
  explicit ClusterVariables(const Variables& variables) : variables_(variables) {}

  bool has_variable(const char* name) const { return !variables_(name).empty(); }

  int number_variable(const char* name) {
    const std::string text = variables_(name);
    if (text.empty()) {
      throw Error(ExitCode::kUsage,
                  std::string("--shard auto: ") + name + " is not set, but " + used_ + " is");
    }
    const std::optional<int> value = number_of(text);
    if (!value) {
      throw Error(ExitCode::kUsage, std::string("--shard auto: ") + name + " is '" +
                                        printable(text, 40) + "', expected a number from 0 on");
    }
    used_ += (used_.empty() ? "" : " ") + std::string(name) + "=" + text;
    return *value;
  }

  const std::string& used() const { return used_; }

  [[noreturn]] void fail(const std::string& what) const {
    throw Error(ExitCode::kUsage, "--shard auto: " + what + " (" + used_ + ")");
  }

 private:
  static std::optional<int> number_of(const std::string& text) {
    if (text.size() > 9 || text.find_first_not_of("0123456789") != std::string::npos) return {};
    return std::stoi(text);
  }

  const Variables& variables_;
  std::string used_;
};

// Index from 0, of a Slurm array; 0 of 1 where there is none.
Shard array_part(ClusterVariables& variables) {
  if (!variables.has_variable("SLURM_ARRAY_TASK_ID")) return {.index = 0, .count = 1};
  const int id = variables.number_variable("SLURM_ARRAY_TASK_ID");
  const int first = variables.number_variable("SLURM_ARRAY_TASK_MIN");
  const int count = variables.number_variable("SLURM_ARRAY_TASK_COUNT");
  const int step = variables.has_variable("SLURM_ARRAY_TASK_STEP")
                       ? variables.number_variable("SLURM_ARRAY_TASK_STEP")
                       : 1;
  const int last = variables.has_variable("SLURM_ARRAY_TASK_MAX")
                       ? variables.number_variable("SLURM_ARRAY_TASK_MAX")
                       : first + (count - 1) * step;
  // The ids of --array=1,5,6 tell no place.
  const bool is_even = step > 0 && first + int64_t{count - 1} * step == last && id >= first &&
                       id <= last && (id - first) % step == 0;
  if (!is_even) {
    variables.fail("the array's ids have no even distance; use --array=1-N, or --shard I/N");
  }
  return {.index = (id - first) / step, .count = count};
}

// Index from 0, of the tasks that srun has started; 0 of 1 where it has not.
Shard step_part(ClusterVariables& variables) {
  if (variables.has_variable("SLURM_STEP_NUM_TASKS")) {
    const int index = variables.number_variable("SLURM_PROCID");
    return {.index = index, .count = variables.number_variable("SLURM_STEP_NUM_TASKS")};
  }
  // A job's script is one process, with a SLURM_PROCID of 0, whatever number of tasks the job has.
  if (variables.has_variable("SLURM_PROCID")) variables.number_variable("SLURM_PROCID");
  if (variables.has_variable("SLURM_NTASKS") && variables.number_variable("SLURM_NTASKS") > 1) {
    variables.fail(
        "the job has several tasks, but srun has not started this process; write srun "
        "before edgellm");
  }
  return {.index = 0, .count = 1};
}

}  // namespace

ClusterShard cluster_shard(std::optional<int> count, const Variables& variables) {
  ClusterVariables cluster(variables);
  const bool is_slurm =
      cluster.has_variable("SLURM_ARRAY_TASK_ID") || cluster.has_variable("SLURM_PROCID");
  const bool is_kubernetes = cluster.has_variable("JOB_COMPLETION_INDEX");
  if (is_slurm == is_kubernetes) {
    throw Error(ExitCode::kUsage,
                is_slurm ? "--shard auto: variables of Slurm and of Kubernetes are set; use "
                           "--shard I/N"
                         : "--shard auto: neither SLURM_ARRAY_TASK_ID, SLURM_PROCID nor "
                           "JOB_COMPLETION_INDEX is set; use --shard I/N");
  }
  int64_t index = 0, n = 0;
  if (is_kubernetes) {
    index = cluster.number_variable("JOB_COMPLETION_INDEX");
    if (!count) {
      cluster.fail("Kubernetes does not say how many processes there are; use --shard auto/N");
    }
    n = *count;
  } else {
    const Shard outer = array_part(cluster);
    const Shard inner = step_part(cluster);
    index = int64_t{outer.index} * inner.count + inner.index;
    n = int64_t{outer.count} * inner.count;
    if (inner.index >= inner.count) cluster.fail("the process is none of the step's");
    if (count && *count != n) {
      cluster.fail("there are " + std::to_string(n) + " processes, not " + std::to_string(*count));
    }
  }
  if (n < 1 || n > kMostShards || index >= n) {
    cluster.fail("process " + std::to_string(index) + " from 0 on is none of " + std::to_string(n));
  }
  return {.shard = {.index = static_cast<int>(index) + 1, .count = static_cast<int>(n)},
          .source = cluster.used()};
}

}  // namespace edgellm
