#!/usr/bin/env bash
# Unpacks Debian's arm64 packages of the libraries named, and of all that they depend on, where the
# arm64 preset looks for them. The packages of this machine stay as they are: not every library can
# be installed for two architectures, and those that can have to be of one version. apt works in
# folders of its own and no root is needed.
#
#   tools/arm64_sysroot.sh PACKAGE...
set -euo pipefail
cd "$(dirname "$0")/.."
sysroot=build/arm64-sysroot
wanted="$*"
if [[ -e $sysroot/packages && $(<"$sysroot/packages") == "$wanted" ]]; then
  exit 0
fi

echo "setup: unpacking arm64 libraries into $sysroot: $wanted"
rm -rf "$sysroot"
mkdir -p "$sysroot/apt"
apt=$PWD/$sysroot/apt
mkdir -p "$apt"/state/lists/partial "$apt"/cache/archives/partial
cat > "$apt/apt.conf" <<END
APT::Architecture "arm64";
APT::Architectures { "arm64"; };
APT::Sandbox::User "";
Dir::State "$apt/state";
Dir::State::status "/dev/null";
Dir::Cache "$apt/cache";
END
export APT_CONFIG=$apt/apt.conf
apt-get update -q
apt-get install -y -q --no-install-recommends --download-only "$@"
for package in "$apt"/cache/archives/*.deb; do
  dpkg-deb --extract "$package" "$sysroot"
  # Which package has which library, for `make package`.
  dpkg-deb --info "$package" shlibs 2>/dev/null | sed '/^udeb:/d' >> "$sysroot/shlibs" || true
done
# Links to /lib mean this sysroot's.
find "$sysroot" -type l -lname '/*' -printf '%l %p\0' | while read -r -d '' target link; do
  ln -srf "$sysroot$target" "$link"
done
rm -rf "$apt"
echo "$wanted" > "$sysroot/packages"  # last: a sysroot that was interrupted is made anew
