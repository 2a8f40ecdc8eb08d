#!/usr/bin/env bash
# mali_root.sh FOLDER: makes a root file system of aarch64 with Mesa's OpenCL compiler for Mali of Debian 13, for
# BURNISH_MALI_ROOT (450 MB).
set -euo pipefail
exec "$(dirname "$0")/arm64_root.sh" "$1" trixie mesa-opencl-icd mesa-drm-shim ocl-icd-libopencl1
