#!/usr/bin/env bash
# Runs a part of the build and says how many CPU seconds it took, beside the figure that is committed:
#
#   tools/build_seconds.sh NAME COMMAND...
#
# tools/build_seconds.txt has a line "NAME SECONDS SECONDS_WITH_NVCC" for each part. Nothing fails here:
# machines differ, and a reader of the log sees a build that grows.
set -euo pipefail
name=${1:?usage: tools/build_seconds.sh NAME COMMAND...}
shift
times_file=$(mktemp)
trap 'rm -f "$times_file"' EXIT
TIMEFORMAT='%U %S'
status=0
{ time "$@" 2>&3; } 3>&2 2>"$times_file" || status=$?
seconds=$(tail -n 1 "$times_file" | awk '{ printf "%.0f", $1 + $2 }')
column=2
if PATH=$PATH:/usr/local/cuda/bin command -v nvcc >/dev/null; then column=3; fi
committed=$(awk -v name="$name" -v column="$column" '$1 == name { print $column }' "$(dirname "$0")/build_seconds.txt")
echo "build_seconds: $name took $seconds CPU seconds, tools/build_seconds.txt says ${committed:-nothing}"
exit $status
