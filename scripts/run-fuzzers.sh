#!/usr/bin/env bash
# Builds every libFuzzer target and runs each for SECONDS on its committed corpus, one a processor at
# a time.
#   scripts/run-fuzzers.sh SECONDS
# x_fuzz.cc lies beside x.cc; its corpus in tests/corpus/x. A crash leaves its input in
# build/asan/fuzz and fails the run.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=$1
shopt -s globstar
sources=(src/**/*_fuzz.cc)
scripts/build.sh asan $(basename -s .cc "${sources[@]}")

fuzz() {
  target=$(basename -s _fuzz.cc "$1")
  work=build/asan/fuzz
  mkdir -p "$work/corpus/$target"
  if ! "build/asan/${1%.cc}" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 \
      -artifact_prefix="$work/$target-" "$work/corpus/$target" "tests/corpus/$target" 2>"$work/$target.log"; then
    tail -40 "$work/$target.log"
    echo "replay: build/asan/${1%.cc} $work/$target-..."
    return 1
  fi
  echo "fuzzed $target: $(tail -1 "$work/$target.log")"
}
export -f fuzz
export seconds
echo "fuzzing ${#sources[@]} targets for $seconds s each"
printf '%s\n' "${sources[@]}" | xargs -P "$(nproc)" -I{} bash -c 'fuzz {}'
