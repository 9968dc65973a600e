#!/usr/bin/env bash
# Fetches XGrammar's sources (a Python package) and builds its C++ library, once, into
# build/xgrammar. One library serves every preset: it is not ours to sanitize.
# Prints nothing and returns at once when it is there.
set -euo pipefail
cd "$(dirname "$0")/.."
version=0.2.8
sha256=8305646fd2b319d6c3003f51a1665e54cbbe9cba1fb636bc41d0b46434ccbb80
out=$PWD/build/xgrammar
stamp=$out/stamp-$(sha256sum "$0" | cut -c1-16)
[ -e "$stamp" ] && exit 0
echo "fetching and building XGrammar $version into build/xgrammar"
rm -rf "$out"
mkdir -p "$out/build"
scripts/fetch_sdist.py xgrammar "$version" "$sha256" "$out/source.tar.gz"
tar -xzf "$out/source.tar.gz" -C "$out" --one-top-level=source --strip-components=1
# Its own file of options overrides -D; and its default of link-time optimisation yields archives
# that only such links can use. What it warns of we want to hear: see src/grammar.
echo 'set(XGRAMMAR_BUILD_PYTHON_BINDINGS OFF)' >"$out/build/config.cmake"
cmake -S "$out/source" -B "$out/build" -G Ninja -DCMAKE_BUILD_TYPE=Release \
  -DCMAKE_CXX_FLAGS="-fno-lto -O2 -DXGRAMMAR_LOG_CUSTOMIZE=1" -DCMAKE_CXX_COMPILER_LAUNCHER=ccache -DCMAKE_CXX_COMPILER=g++ \
  -DCMAKE_INSTALL_PREFIX="$out" -DCMAKE_INSTALL_LIBDIR=lib >/dev/null
cmake --build "$out/build" --target install -- --quiet >/dev/null
rm -rf "$out/build" "$out/source" "$out/source.tar.gz"
touch "$stamp"
