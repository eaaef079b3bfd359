#!/usr/bin/env bash
# package_test.sh BUILD_FOLDER: installs the build into an empty place, makes the Debian package,
# and looks at both. As root the package is installed by dpkg too, into a root of its own.
set -euo pipefail
build=$1
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT

fail() {
  echo "package_test: $*" >&2
  exit 1
}

# check_tree PREFIX ZSH_FOLDER: the program runs, and the files beside it are what it says itself.
check_tree() {
  local prefix=$1 zsh_folder=$2 command shell
  local program=$prefix/bin/edgellm
  "$program" --version | grep -q '^edgellm ' || fail "$program does not run"
  local -A scripts=([bash]=bash-completion/completions/edgellm
    [zsh]=zsh/$zsh_folder/_edgellm [fish]=fish/vendor_completions.d/edgellm.fish)
  for shell in "${!scripts[@]}"; do
    "$program" completion "$shell" | cmp - "$prefix/share/${scripts[$shell]}" || fail "$shell"
  done
  "$program" help --man | cmp - <(zcat "$prefix/share/man/man1/edgellm.1.gz") || fail "edgellm.1"
  for command in $("$program" --help | sed -n '/^Commands:/,/^$/s/^  \([a-z][a-z-]*\) .*/\1/p'); do
    "$program" help "$command" --man |
      cmp - <(zcat "$prefix/share/man/man1/edgellm-$command.1.gz") || fail "edgellm-$command.1"
  done
  HOME=/nonexistent "$program" info storyteller >/dev/null || fail "the demo model is not found"
  [[ -s $prefix/share/doc/edgellm/README.md ]] || fail "README.md"
  [[ -s $prefix/share/doc/edgellm/docs/terminal.svg ]] || fail "docs/terminal.svg"
  [[ -s $prefix/share/doc/edgellm/docs/cli.md ]] || fail "docs/cli.md"
  [[ -s $prefix/share/doc/edgellm/examples/ray_batch.py ]] || fail "examples/ray_batch.py"
  grep -q 'Permission is hereby granted' "$prefix/share/doc/edgellm/copyright" || fail "licence"
}

# check_tour PREFIX README: every line of the README's tour runs as it stands, with the installed
# program.
check_tour() {
  local prefix=$1 readme=$2 line lines=0
  mkdir -p "$place/tour"
  while read -r line; do
    (cd "$place/tour" && HOME=$place PATH=$prefix/bin:$PATH timeout 120 bash -o pipefail -c "$line") \
      </dev/null >"$place/stdout" 2>"$place/stderr" ||
      fail "the tour's \"$line\" failed: $(cat "$place/stderr")"
    lines=$((lines + 1))
  done < <(sed -n '/^## A short tour/,/^## A server/p' "$readme" |
    sed -n '/^```$/,/^```$/{/^```$/!p}')
  ((lines >= 15)) || fail "the tour has $lines lines"
}

# check_uninstall: `make uninstall` removes what `make install` brought and nothing else, although
# something was installed elsewhere in between.
check_uninstall() {
  local source
  source=$(realpath "$(dirname "$0")/../..")
  [[ $build == "$source"/build/* ]] || return 0
  local make=(make -C "$source" -o build "PRESET=${build##*/}" "PREFIX=$place/made"
    "INSTALLED=$place/list")
  "${make[@]}" install >/dev/null
  [[ -x $place/made/bin/edgellm ]] || fail "make install"
  cmake --install "$build" --prefix "$place/installed" >/dev/null
  "${make[@]}" uninstall >/dev/null
  [[ -z $(find "$place/made" ! -type d) ]] || fail "make uninstall leaves files behind"
  [[ -x $place/installed/bin/edgellm ]] || fail "make uninstall removes what it did not install"
}

cmake --install "$build" --prefix "$place/installed" >/dev/null
check_uninstall
check_tree "$place/installed" site-functions
check_tour "$place/installed" "$place/installed/share/doc/edgellm/README.md"

for tool in cpack dpkg-deb dpkg-shlibdeps file; do
  if ! command -v "$tool" >/dev/null; then
    echo "[skipped] no $tool"
    exit 0
  fi
done
cpack --config "$build/CPackConfig.cmake" -G DEB -B "$place/package" >/dev/null
packages=("$place"/package/*.deb)
[[ ${#packages[@]} == 1 ]] || fail "expected one package, got ${packages[*]}"
package=${packages[0]}
for library in libc6 libonig libutf8proc libxxhash libcpp-httplib libssl; do
  dpkg-deb --field "$package" Depends | grep -q "$library" || fail "Depends lacks $library"
done
dpkg-deb --extract "$package" "$place/extracted"
check_tree "$place/extracted/usr" vendor-completions

if ((EUID == 0)); then
  root=$place/root
  mkdir -p "$root"/var/lib/dpkg/{info,updates}
  touch "$root"/var/lib/dpkg/{status,available}
  # The libraries it depends on, and the shell of its scripts, which call ldconfig, are outside.
  dpkg --root="$root" --force-depends --force-script-chrootless --install "$package" >/dev/null 2>&1 ||
    fail "dpkg cannot install $package"
  check_tree "$root/usr" vendor-completions
  dpkg --root="$root" --force-script-chrootless --purge edgellm >/dev/null 2>&1 || fail "purge"
  [[ ! -e $root/usr/bin/edgellm && ! -e $root/usr/share/man/man1/edgellm.1.gz ]] ||
    fail "purge leaves files behind"
fi
echo "package_test: $(basename "$package") is in order"
