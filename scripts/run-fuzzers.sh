#!/usr/bin/env bash
# Builds every libFuzzer target and runs each for SECONDS on its committed corpus.
#   scripts/run-fuzzers.sh SECONDS
# x_fuzz.cc lies beside x.cc; its corpus in tests/corpus/x. A crash leaves its input in build/fuzz and
# fails the run.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=$1
shopt -s nullglob globstar
sources=(src/**/*_fuzz.cc)
[ ${#sources[@]} -gt 0 ] || { echo "no fuzz targets"; exit 0; }
scripts/build.sh fuzz $(basename -s .cc "${sources[@]}")
mkdir -p build/fuzz/corpus
for source in "${sources[@]}"; do
  name=$(basename "$source" .cc)
  target=${name%_fuzz}
  work=build/fuzz/corpus/$target
  mkdir -p "$work"
  binary=$(find build/fuzz/src -type f -name "$name" -perm -u+x)
  echo "fuzzing $target for $seconds s"
  "$binary" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -print_final_stats=0 \
    -artifact_prefix="build/fuzz/$target-" "$work" tests/corpus/"$target" 2>build/fuzz/"$target".log ||
    { tail -40 build/fuzz/"$target".log; exit 1; }
  tail -1 build/fuzz/"$target".log
done
