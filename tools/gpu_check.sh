#!/usr/bin/env bash
# Checks the CUDA engine on a machine with an NVIDIA GPU: the [gpu] tests; tests and benchmark under
# compute-sanitizer's memcheck, racecheck and initcheck; then `edgellm bench --ops` and
# `edgellm bench`. Prints a short table at the end; logs go to the folder given (default
# build/gpu_check). Needs a build of the preset `release`
# (cmake --preset release && cmake --build --preset release).
set -uo pipefail
cd "$(dirname "$0")/.." || exit
export PATH="$PATH:/usr/local/cuda/bin"
build=build/release
logs=${1:-build/gpu_check}
step_limit=30m # compute-sanitizer runs some tests a hundred times slower; nothing should take longer
mkdir -p "$logs" || exit

kernels=$build/tests/kernels/kernels_gpu_test
engine=$build/tests/engine/engine_test
apps=$build/tests/apps/apps_tests
for program in "$build/edgellm" "$kernels" "$engine" "$apps"; do
  if [[ ! -x $program ]]; then
    echo "gpu_check: no $program; build it with: cmake --preset release && cmake --build --preset release" >&2
    exit 1
  fi
done
if ! command -v compute-sanitizer >/dev/null; then
  echo "gpu_check: no compute-sanitizer on PATH or in /usr/local/cuda/bin; it comes with the CUDA toolkit" >&2
  exit 1
fi
"$build/edgellm" devices
if "$build/edgellm" devices --json | grep -q '"gpus":\[\]'; then
  echo "gpu_check: no usable GPU here" >&2
  exit 5
fi

table=()
failed=0
# check NAME COMMAND...: runs it, keeps its output, adds a line to the table.
check() {
  local name=$1 result seconds=$SECONDS status
  shift
  echo "gpu_check: $name ..." >&2
  timeout "$step_limit" "$@" >"$logs/$name.log" 2>&1
  status=$?
  seconds=$((SECONDS - seconds))
  if [[ $status == 0 ]]; then
    result="ok      $(grep -hoE 'All tests passed.*|ERROR SUMMARY: .*|RACECHECK SUMMARY: .*' "$logs/$name.log" |
      paste -sd ' ')"
  else
    failed=1
    result="FAILED  exit $status, see $logs/$name.log"
    [[ $status == 124 ]] && result="FAILED  not done after $step_limit, see $logs/$name.log"
  fi
  table+=("$(printf '%-18s %5d s  %s' "$name" "$seconds" "$result")")
}

# sanitize NAME COMMAND...: under each of the tools.
sanitize() {
  local name=$1 tool
  shift
  for tool in memcheck racecheck initcheck; do
    check "${name}_$tool" compute-sanitizer --error-exitcode 9 --tool "$tool" "$@"
  done
}

# All ops, heads and prefill passes, except the one case whose sizes only add time; the models that
# are small: upload, eager and graph decode, several sequences, faults.
kernel_cases='[gpu]~*of 512 rows*'
engine_cases='decode on the GPU*,rows of a batch on the GPU*,codes that are no ternary*,progress of the upload*'

check kernels "$kernels"
check engine "$engine" '[gpu]'
check apps "$apps" '[gpu]'
sanitize kernels "$kernels" "$kernel_cases"
sanitize engine "$engine" "$engine_cases"
# The unfused kernels as well: with one, eight and many rows.
ops=("$build/edgellm" bench --ops --device cuda)
sanitize ops "${ops[@]}" --shape smollm-135m --rows 1,8,100 -d 70 --layers 2 -r 1
check ops "${ops[@]}" --shape smollm-135m,bitnet-2b-4t -d 128
check bench "$build/edgellm" bench --device cuda --shape smollm-135m,bitnet-2b-4t --html "$logs/bench.html"

echo
cat "$logs/ops.log" "$logs/bench.log"
echo
printf '%s\n' "${table[@]}"
exit $failed
