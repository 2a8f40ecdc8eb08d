#!/usr/bin/env bash
# arm64_root.sh FOLDER RELEASE PACKAGE...: makes a root file system of aarch64 with packages of a release of Debian, and
# with what they depend on. Needs apt, dpkg and Debian's keys; changes nothing else on this machine.
set -euo pipefail

folder=$(realpath -m "$1") release=$2
shift 2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$folder" "$work"/{state/lists/partial,cache/archives/partial,debs,none}
: >"$work/status"
keys=/usr/share/keyrings/debian-archive-keyring.gpg
echo "deb [arch=arm64 signed-by=$keys] ${DEBIAN_MIRROR:-http://deb.debian.org/debian} $release main" >"$work/sources.list"
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
wanted=$(apt-get install -y --print-uris "$@" | sed -n "s/^'[^']*' \([^_]*\)_.*/\1/p")
cd "$work/debs"
# shellcheck disable=SC2086
apt-get download -q $wanted
for package in *.deb; do dpkg -x "$package" "$folder"; done
