#!/usr/bin/env bash
# Builds llama.cpp's llama-bench for this processor into build/peers, from the source inside the PyPI
# package llama-cpp-python (pip is the only download). About 8 CPU minutes the first time; silent when
# it is there. Prints nothing else than its progress.
set -euo pipefail
cd "$(dirname "$0")/../.."
version=0.3.36
peers=build/peers
source=$peers/llama_cpp_python-$version/vendor/llama.cpp

if [ -x "$peers/llama/bin/llama-bench" ]; then exit 0; fi
mkdir -p "$peers"
if [ ! -d "$source" ]; then
  echo "fetching the source of llama-cpp-python $version"
  python3 -m pip download --quiet --disable-pip-version-check --no-deps \
    --no-binary llama-cpp-python --dest "$peers" "llama-cpp-python==$version"
  tar -xzf "$peers/llama_cpp_python-$version.tar.gz" -C "$peers"
fi
cmake -S "$source" -B "$peers/llama" -G Ninja -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=OFF \
  -DCMAKE_CXX_COMPILER_LAUNCHER=ccache -DCMAKE_C_COMPILER_LAUNCHER=ccache \
  -DGGML_NATIVE=ON -DGGML_OPENMP=OFF -DLLAMA_CURL=OFF -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_TESTS=OFF \
  -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_SERVER=OFF >"$peers/llama-configure.log"
cmake --build "$peers/llama" --target llama-bench llama-batched-bench -j "$(nproc)"
