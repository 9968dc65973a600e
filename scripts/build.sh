#!/usr/bin/env bash
# Configures (once) and builds a preset: scripts/build.sh PRESET [TARGET ...]
set -euo pipefail
cd "$(dirname "$0")/.."
preset=$1
shift
[ "$preset" != cuda ] || scripts/cuda-headers.sh
[ -f "build/$preset/build.ninja" ] || cmake --preset "$preset" >/dev/null
cmake --build "build/$preset" ${1:+--target "$@"} -- --quiet
