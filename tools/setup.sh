#!/usr/bin/env bash
# Installs the Debian packages that are needed: only the missing ones, and nothing at all where none
# is missing. This list is the only one.
#
#   tools/setup.sh           to build the program
#   tools/setup.sh test      also to build and run the tests
#   tools/setup.sh clients   also to test the server with clients from PyPI
#   tools/setup.sh fuzz      also to fuzz
#   tools/setup.sh package   also to make a Debian package
#   tools/setup.sh arm64     also to build, test and package for arm64 on another machine
set -euo pipefail

libraries=(
  libspdlog-dev      # messages
  nlohmann-json3-dev # JSON
  libonig-dev        # regular expressions of tokenizers
  libutf8proc-dev    # Unicode normalisation
  libxxhash-dev      # checksums
  libedit-dev        # line editing of chat
  libcpp-httplib-dev # HTTP: to serve, to download models, to compare with other programs' servers
  libssl-dev         # TLS and hashes of downloads
)
packages=(build-essential g++ make cmake ninja-build pkg-config "${libraries[@]}")
package=(file)
test_libraries=(catch2 zlib1g-dev)
test=(
  "${package[@]}"
  "${test_libraries[@]}" python3
  clang-format git      # checks of the sources
  groff-base zsh fish   # tests of man pages and completions
  parallel              # test of the recipe in docs/batch.md
  openssl               # certificate of the server that pull is tested with
)
clients=("${test[@]}" python3-venv chromium)
# The libraries themselves come into a folder (tools/arm64_sysroot.sh).
arm64=("${test[@]}" g++-aarch64-linux-gnu qemu-user)
fuzz=("${test[@]}" clang libclang-rt-dev llvm)  # libFuzzer, the sanitizers, names in their reports
case ${1:-} in
  "") ;;
  test) packages+=("${test[@]}") ;;
  clients) packages+=("${clients[@]}") ;;
  fuzz) packages+=("${fuzz[@]}") ;;
  package) packages+=("${package[@]}") ;;
  arm64) packages+=("${arm64[@]}") ;;
  *)
    echo "usage: tools/setup.sh [test | clients | fuzz | package | arm64]" >&2
    exit 2
    ;;
esac

if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
  echo "setup: not a Debian system; what is needed, by Debian's names: ${packages[*]}" >&2
  exit 0
fi

missing=()
for name in "${packages[@]}"; do
  status=$(dpkg-query --show --showformat='${db:Status-Status}' "$name" 2>/dev/null || true)
  [[ $status == installed ]] || missing+=("$name")
done
if ((${#missing[@]} > 0)); then
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
fi
if [[ ${1:-} == arm64 ]]; then
  tools/arm64_sysroot.sh "${libraries[@]}" "${test_libraries[@]}"
fi
