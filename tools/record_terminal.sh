#!/usr/bin/env bash
# record_terminal.sh PROGRAM_FOLDER: records docs/terminal.svg, the session at the top of README.md, with
# the program of an installed tree (PREFIX/bin). Needs termtosvg from PyPI, and `script`.
set -euo pipefail
if [[ ${1:-} == --session ]]; then
  cd "$(mktemp -d)"
  # Types a command at a person's speed, then runs it.
  show() {
    local i
    printf '\033[1;32m$\033[0m '
    for ((i = 0; i < ${#1}; ++i)); do
      printf '%s' "${1:i:1}"
      sleep 0.035
    done
    sleep 0.3
    printf '\n'
    eval "$1"
    sleep 1.2
  }
  sleep 0.4
  show 'edgellm run storyteller "Once upon a time" --sample --seed 11 -n 70'
  show 'edgellm run storyteller --chat "Tell me a story about a wolf." --sample --seed 3 -n 60'
  show 'edgellm verify storyteller'
  sleep 1
  exit
fi
export PATH=$(realpath "$1"):$PATH
self=$(realpath "$0")
cd "$(dirname "$0")/.."
script -qec "stty cols 100 rows 20; termtosvg docs/terminal.svg -c '$self --session' -g 100x20 \
  -m 30 -M 2000 -D 3000 -t gjm8" /dev/null </dev/null
