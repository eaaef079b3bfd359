#!/usr/bin/env bash
# Checks that C++ and CUDA sources are formatted as .clang-format says, and that no section ruler
# (// ---- Title -----) is so long that clang-format breaks it in two. `tools/check_format.sh fix`
# formats them.
set -euo pipefail
cd "$(dirname "$0")/.."
files() { git ls-files -z '*.cpp' '*.h' '*.cu' '*.cuh' '*.inc'; }

if [[ ${1:-} == fix ]]; then
  files | xargs -0 clang-format -i
fi
# One at a time on each core: clang-format is quick, but there are hundreds of files.
if ! files | xargs -0 -n 32 -P "$(nproc)" clang-format --dry-run -Werror; then
  echo "check_format: type tools/check_format.sh fix (clang-format $(clang-format --version | grep -oE '[0-9.]+' | head -1) here; the sources are formatted with 14)" >&2
  exit 1
fi
broken=$(files | xargs -0 grep -nE '^ *// -+$' || true)
if [[ -n $broken ]]; then
  echo "$broken"
  echo "check_format: these section rulers were broken; a ruler has at most 100 columns" >&2
  exit 1
fi
echo "check_format: $(files | tr -cd '\0' | wc -c) files are formatted"
