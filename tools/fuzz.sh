#!/usr/bin/env bash
# Runs every fuzz target of build/fuzz for SECONDS, two at a time, from the committed corpus:
#
#   cmake --preset fuzz && cmake --build --preset fuzz
#   tools/fuzz.sh 60
#
# One line a target. A finding ends with 1; its input lies in build/fuzz/findings, and
# `build/fuzz/tests/fuzz/TARGET INPUT` shows it again. What was found out is kept in build/fuzz/work,
# so that the next run starts from there.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:?usage: tools/fuzz.sh SECONDS}

fuzz() {
  local target=$1 seconds=$2
  local name log
  name=$(basename "$target")
  log=build/fuzz/$name.log
  mkdir -p "build/fuzz/work/$name" build/fuzz/findings
  # Files in memory: the importer's output is synced to disk.
  [[ -w /dev/shm ]] && export TMPDIR=/dev/shm
  # -timeout is a hang, -rss_limit_mb a giant allocation.
  if "$target" -max_total_time="$seconds" -timeout=25 -rss_limit_mb=2048 -max_len=16384 \
      -print_final_stats=1 -artifact_prefix="build/fuzz/findings/$name-" \
      "build/fuzz/work/$name" "tests/fuzz/corpus/$name" >"$log" 2>&1; then
    echo "$name: $(sed -n 's/^stat::number_of_executed_units: *//p' "$log") inputs," \
      "$(grep -o 'cov: [0-9]*' "$log" | tail -1 | cut -d' ' -f2) edges, no finding"
  else
    echo "$name: FOUND SOMETHING"
    tail -n 50 "$log"
    return 1
  fi
}
export -f fuzz

shopt -s nullglob
targets=(build/fuzz/tests/fuzz/*_fuzz)
if ((${#targets[@]} == 0)); then
  echo "fuzz: no targets in build/fuzz; type: cmake --preset fuzz && cmake --build --preset fuzz" >&2
  exit 2
fi
printf '%s\n' "${targets[@]}" | xargs -P 2 -I{} bash -c 'fuzz "$@"' fuzz {} "$seconds"
