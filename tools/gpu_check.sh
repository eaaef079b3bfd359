#!/usr/bin/env bash
# Checks the CUDA engine on a machine with an NVIDIA GPU: the [gpu] tests, then the same under
# compute-sanitizer's memcheck and racecheck. Prints a short table; logs go to the folder given
# (default build/gpu_check). Needs a build of the preset `release` (make build, or cmake --preset).
set -uo pipefail
cd "$(dirname "$0")/.." || exit
build=build/release
logs=${1:-build/gpu_check}
mkdir -p "$logs"

for program in "$build/tests/kernels/kernels_gpu_test" "$build/tests/engine/engine_test"; do
  if [[ ! -x $program ]]; then
    echo "gpu_check: no $program; build it with: cmake --preset release && cmake --build --preset release" >&2
    exit 1
  fi
done
"$build/edgellm" devices
if "$build/edgellm" devices --json | grep -q '"gpus":\[\]'; then
  echo "gpu_check: no usable GPU here" >&2
  exit 1
fi

failed=0
# check NAME COMMAND...: runs it, keeps its output, prints a line of the table.
check() {
  local name=$1
  shift
  if "$@" >"$logs/$name.log" 2>&1; then
    printf '%-22s ok      %s\n' "$name" "$(grep -E 'All tests passed' "$logs/$name.log" | tail -1)"
  else
    printf '%-22s FAILED  see %s\n' "$name" "$logs/$name.log"
    failed=1
  fi
}

kernels=("$build/tests/kernels/kernels_gpu_test")
models=("$build/tests/engine/engine_test" "[gpu]")
check kernels "${kernels[@]}"
check models "${models[@]}"
check kernels_memcheck compute-sanitizer --error-exitcode 9 --tool memcheck "${kernels[@]}"
check kernels_racecheck compute-sanitizer --error-exitcode 9 --tool racecheck "${kernels[@]}"
check models_memcheck compute-sanitizer --error-exitcode 9 --tool memcheck "${models[@]}"
exit $failed
