#!/usr/bin/env bash
# mali_root.sh FOLDER: makes a root file system of aarch64 with Mesa's OpenCL compiler for Mali of Debian 13, for
# BURNISH_MALI_ROOT. Needs apt, dpkg and Debian's keys; changes nothing else on this machine.
set -euo pipefail

folder=$(realpath -m "$1")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$folder" "$work"/{state/lists/partial,cache/archives/partial,debs,none}
: >"$work/status"
keys=/usr/share/keyrings/debian-archive-keyring.gpg
echo "deb [arch=arm64 signed-by=$keys] ${DEBIAN_MIRROR:-http://deb.debian.org/debian} trixie main" >"$work/sources.list"
cat >"$work/apt.conf" <<EOF
APT::Architecture "arm64";
APT::Architectures { "arm64"; };
APT::Install-Recommends "false";
APT::Sandbox::User "$(id -un)";
Acquire::Languages "none";
Dir::State "$work/state";
Dir::State::status "$work/status";
Dir::Cache "$work/cache";
Dir::Etc::sourcelist "$work/sources.list";
Dir::Etc::sourceparts "$work/none";
Dir::Etc::parts "$work/none";
EOF
export APT_CONFIG=$work/apt.conf
apt-get update -q
wanted=$(apt-get install -y --print-uris mesa-opencl-icd mesa-drm-shim ocl-icd-libopencl1 |
  sed -n "s/^'[^']*' \([^_]*\)_.*/\1/p")
cd "$work/debs"
# shellcheck disable=SC2086
apt-get download -q $wanted
for package in *.deb; do dpkg -x "$package" "$folder"; done
