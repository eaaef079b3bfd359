#!/usr/bin/env bash
# Installs the Debian packages that building and testing needs: only the missing ones, and nothing
# at all where none is missing. This list is the only one. `tools/setup.sh fuzz` takes what fuzzing
# needs besides.
set -euo pipefail

packages=(
  build-essential g++ make cmake ninja-build pkg-config git
  libcli11-dev       # command line
  libspdlog-dev      # messages
  nlohmann-json3-dev # JSON
  libonig-dev        # regular expressions of tokenizers
  libutf8proc-dev    # Unicode normalisation
  libxxhash-dev      # checksums
  libedit-dev        # line editing of chat
  libcpp-httplib-dev # HTTP, to compare with other programs' servers
  catch2 zlib1g-dev python3  # tests
  groff-base zsh fish  # tests of man pages and completions
  parallel           # test of the recipe in docs/batch.md
  file               # Debian package
)
if [[ ${1:-} == fuzz ]]; then
  packages+=(clang libclang-rt-dev llvm)  # libFuzzer, the sanitizers, names in their reports
fi

if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
  echo "setup: not a Debian system; what is needed, by Debian's names: ${packages[*]}" >&2
  exit 0
fi

missing=()
for package in "${packages[@]}"; do
  status=$(dpkg-query --show --showformat='${db:Status-Status}' "$package" 2>/dev/null || true)
  [[ $status == installed ]] || missing+=("$package")
done
if ((${#missing[@]} == 0)); then
  exit 0
fi

as_root=()
if ((EUID != 0)); then
  if ! command -v sudo >/dev/null; then
    echo "setup: missing packages; as root, type: apt-get install ${missing[*]}" >&2
    exit 1
  fi
  as_root=(sudo)
fi
echo "setup: installing ${missing[*]}"
"${as_root[@]}" apt-get update -q
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
  apt-get install -y -q --no-install-recommends "${missing[@]}"
