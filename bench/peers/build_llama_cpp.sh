#!/usr/bin/env bash
# Builds llama.cpp's library for this processor, and our bench of it, into build/peers, from the source
# inside the PyPI package llama-cpp-python (pip is the only download). Some 4 CPU minutes the first time;
# silent when it is there.
set -euo pipefail
cd "$(dirname "$0")/../.."
version=0.3.36
peers=build/peers
source=$peers/llama_cpp_python-$version/vendor/llama.cpp
bench=bench/peers/llama_bench.cc

if [ "$peers/llama_bench" -nt "$bench" ]; then exit 0; fi
mkdir -p "$peers"
if [ ! -d "$source" ]; then
  echo "fetching the source of llama-cpp-python $version"
  python3 -m pip download --quiet --disable-pip-version-check --no-deps \
    --no-binary llama-cpp-python --dest "$peers" "llama-cpp-python==$version"
  tar -xzf "$peers/llama_cpp_python-$version.tar.gz" -C "$peers"
fi
echo "building llama.cpp (log: $peers/build.log)"
cmake -S "$source" -B "$peers/llama" -G Ninja -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=OFF \
  -DCMAKE_CXX_COMPILER_LAUNCHER=ccache -DCMAKE_C_COMPILER_LAUNCHER=ccache \
  -DGGML_NATIVE=ON -DGGML_OPENMP=OFF -DLLAMA_CURL=OFF -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_TESTS=OFF \
  -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_SERVER=OFF >"$peers/build.log"
cmake --build "$peers/llama" --target llama -j "$(nproc)" >>"$peers/build.log" 2>&1
g++ -std=c++20 -O2 -I"$source/include" -I"$source/ggml/include" "$bench" -o "$peers/llama_bench" \
  "$peers/llama/src/libllama.a" "$peers/llama/ggml/src/libggml.a" \
  "$peers/llama/ggml/src/libggml-cpu.a" "$peers/llama/ggml/src/libggml-base.a" -pthread -ldl
