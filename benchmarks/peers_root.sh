#!/usr/bin/env bash
# peers_root.sh FOLDER: makes a root file system of aarch64 with ONNX Runtime, LiteRT and Arm Compute Library, for
# `burnish bench --target cortex-a72 --root FOLDER` (300 MB). Needs Debian's apt and dpkg, and pip. Arm Compute Library's
# program is compiled when it is counted: Debian's package g++-aarch64-linux-gnu.
set -euo pipefail

"$(dirname "$0")/../.ci/arm64_root.sh" "$1" bookworm python3.11-minimal libpython3.11-stdlib libstdc++6 libarm-compute-dev

platforms=()
for glibc in 2_28 2_27 2_17; do platforms+=(--platform "manylinux_${glibc}_aarch64"); done
pip install -q --no-compile --target "$1/site" --only-binary=:all: --python-version 3.11 "${platforms[@]}" \
  --platform manylinux2014_aarch64 onnxruntime ai-edge-litert

# What onnxruntime and XNNPACK read to know the core; the emulator's registers are the rest of it.
mkdir -p "$1/proc" "$1/sys/devices/system/cpu"
for file in possible present online; do echo 0 >"$1/sys/devices/system/cpu/$file"; done
cat >"$1/proc/cpuinfo" <<EOF
processor	: 0
BogoMIPS	: 100.00
Features	: fp asimd aes pmull sha1 sha2 crc32 cpuid
CPU implementer	: 0x41
CPU architecture: 8
CPU variant	: 0x0
CPU part	: 0xd08
CPU revision	: 3
EOF
