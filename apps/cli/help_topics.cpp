#include "apps/cli/help_topics.h"

#include "base/error.h"

namespace edgellm {

const std::vector<EnvironmentVariable>& environment_variables() {
  static const std::vector<EnvironmentVariable> variables = {
      {"EDGELLM_MODELS",
       "Folders with models, separated by colons. A MODEL that is not a path is searched for "
       "there, then in the user's model folder, then among the models that were installed with "
       "edgellm."},
      {"XDG_DATA_HOME",
       "The user's model folder is edgellm/models in this folder, ~/.local/share unless set."},
      {"EDGELLM_CACHE",
       "Where conversions of GGUF files and Hugging Face folders are kept that were given as "
       "MODEL, "
       "and downloads until they are converted. Nothing in it is the only copy: edgellm rm --cache "
       "empties it."},
      {"XDG_CACHE_HOME",
       "Where EDGELLM_CACHE is not set, the cache is edgellm in this folder, ~/.cache unless set."},
      {"HOME", "The home folder, for ~/.local/share and ~/.cache."},
      {"CUDA_VISIBLE_DEVICES",
       "Which GPUs to use, in which order; read by NVIDIA's driver. Set and empty: none."},
      {"HF_ENDPOINT",
       "The Hugging Face Hub that pull asks, or a mirror of it; https://huggingface.co unless "
       "set."},
      {"HF_TOKEN",
       "The token that pull sends to that server, for private and gated models. Never printed, and "
       "never sent to a server that it redirects to.",
       /*is_secret=*/true},
      {"HTTPS_PROXY",
       "The HTTP proxy through which pull reaches servers of https: "
       "http://[USER:PASSWORD@]HOST[:PORT]. This variable and the next three are also read in "
       "small letters, which count first.",
       /*is_secret=*/true},
      {"HTTP_PROXY", "The same for servers of http, that is for an HF_ENDPOINT of that kind.",
       /*is_secret=*/true},
      {"ALL_PROXY", "The same for both, where neither of the two is set for it.",
       /*is_secret=*/true},
      {"NO_PROXY",
       "Servers that pull reaches without a proxy, separated by commas: hosts, domains with all "
       "that is below them, networks such as 10.0.0.0/8, or * for all. :PORT may follow a host."},
      {"OLLAMA_HOST",
       "Where compare --ollama finds Ollama, in Ollama's own forms: HOST, HOST:PORT, :PORT or "
       "http://HOST:PORT; 127.0.0.1:11434 unless set."},
      {"EDGELLM_API_KEY",
       "The API key that compare sends to the server of --url, if any, and that serve demands "
       "where no --api-key is given. Never printed.",
       /*is_secret=*/true},
      {"SLURM_ARRAY_TASK_ID",
       "With batch --shard auto: which task of a Slurm array this is, counted from "
       "SLURM_ARRAY_TASK_MIN in steps of SLURM_ARRAY_TASK_STEP."},
      {"SLURM_ARRAY_TASK_MIN", "The array's first id."},
      {"SLURM_ARRAY_TASK_MAX", "Its last."},
      {"SLURM_ARRAY_TASK_STEP", "The distance of two ids; 1 unless set."},
      {"SLURM_ARRAY_TASK_COUNT", "How many tasks the array has."},
      {"SLURM_PROCID",
       "With batch --shard auto: which process of a Slurm step this is, from 0 on."},
      {"SLURM_STEP_NUM_TASKS", "How many processes the step has."},
      {"SLURM_NTASKS", "The same, where that is not set."},
      {"JOB_COMPLETION_INDEX",
       "With batch --shard auto/N: which process of an indexed job of Kubernetes this is, from 0 "
       "on."},
      {"SSL_CERT_FILE",
       "Certificates that pull and compare trust for https, those of the system unless set; read "
       "by "
       "OpenSSL."},
      {"EDGELLM_LOG",
       "Which messages are written to stderr: trace, debug, info, warn, error or off, each with "
       "all that follow it here; info unless set. trace and debug are for finding a fault. The "
       "line "
       "that says why a command failed is written at every level."},
      {"EDGELLM_ISA",
       "Instruction set of the CPU kernels, for comparing them: portable, avx2, avx_vnni, avx512 "
       "or avx512_amx on x86-64; portable, neon, neon_dotprod or neon_i8mm on ARM. The result is "
       "the same."},
      {"EDGELLM_FAIL_DEVICE",
       "A drill for batch and serve on several devices: with I:N, device I, counted from 1, fails "
       "after N passes, and the others take over."},
      {"TMPDIR",
       "Folder for temporary files: bench keeps the random model of a --shape there, batch the "
       "standard input that it must read first; /tmp unless set."},
      {"EDGELLM_NVML",
       "The NVML library that bench reads a GPU's sensors with, instead of the driver's "
       "libnvidia-ml.so.1."},
  };
  return variables;
}

const std::vector<ExitStatus>& exit_statuses() {
  const auto code = [](ExitCode value) { return std::to_string(static_cast<int>(value)); };
  static const std::vector<ExitStatus> statuses = {
      {code(ExitCode::kSuccess), "Success."},
      {code(ExitCode::kRuntime),
       "Runtime failure: an output that cannot be written, memory, a value that is not finite, a "
       "GPU that breaks in "
       "mid-run, an internal error."},
      {code(ExitCode::kUsage),
       "Wrong command line; an input file (-f, -i, --ids-file) that cannot be read; a prompt or "
       "--stop text that is empty or not UTF-8."},
      {code(ExitCode::kModelFile), "Model file missing, corrupt or unreadable."},
      {code(ExitCode::kUnsupported), "Recognised, but not supported."},
      {code(ExitCode::kDevice),
       "No device memory, or no usable GPU where one was demanded. batch, serve: one of several "
       "devices failed; the others have answered all the same."},
      {code(ExitCode::kPromptDoesNotFit), "The prompt does not fit the context."},
      {code(ExitCode::kBatchFailed), "batch: some requests failed; the output says which and why."},
      {code(ExitCode::kVerification),
       "verify: the file is readable, but a check failed. batch --merge: answers are missing."},
      {code(ExitCode::kPeerUnavailable),
       "compare, pull: the server or its model is not there, or one of its answers was not whole "
       "or "
       "not right."},
      {"129, 130, 143", "Ended by SIGHUP, SIGINT, SIGTERM."},
  };
  return statuses;
}

}  // namespace edgellm
