// The shard of a process that a cluster has started many of: by the variables that Slurm and
// Kubernetes set.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "apps/batch/manifest.h"

namespace edgellm {

struct ClusterShard {
  Shard shard;
  std::string source;  // the variables that it comes from, with their values, for people
};

// The value of an environment variable; empty where it is not set.
using Variables = std::function<std::string(const char* name)>;

// - Slurm arrays: SLURM_ARRAY_TASK_ID of _MIN, _MAX, _STEP and _COUNT.
//   https://slurm.schedmd.com/job_array.html
// - Slurm steps: SLURM_PROCID of SLURM_STEP_NUM_TASKS. With an array of several tasks, both: each
//   task of the array is cut again. Without SLURM_STEP_NUM_TASKS the process is a job's script: one
//   task, where SLURM_NTASKS does not say more.
//   https://slurm.schedmd.com/srun.html
// - Kubernetes' indexed jobs: JOB_COMPLETION_INDEX, of `count`, which no variable tells.
//   https://kubernetes.io/docs/concepts/workloads/controllers/job/
//
// `count` is N of auto/N: where variables tell another number, that is an error. Throws Error
// (kUsage) as well where the variables are missing, are no numbers, or contradict each other.
ClusterShard cluster_shard(std::optional<int> count, const Variables& variables);

}  // namespace edgellm
