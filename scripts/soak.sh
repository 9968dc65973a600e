#!/usr/bin/env bash
# Random runs that go on for as long as you like, with seeds that no test has tried.
#   scripts/soak.sh MINUTES
# A third of the time goes to the scheduler and the executor under ASan+UBSan, a third to what has
# threads under TSan, a third to the fuzzers. A failure prints the line that replays it and ends the
# soak.
set -euo pipefail
cd "$(dirname "$0")/.."
minutes=$1
[[ $minutes =~ ^[1-9][0-9]*$ ]] || { echo "SOAK_MINUTES=$minutes: give a whole number of minutes, at least 1" >&2; exit 2; }
part=$((minutes * 60 / 3))

# random_lives BUILD SECONDS PROGRAM TEST: the test with one new seed after the other, one process a
# processor.
random_lives() {
  local build=$1 end=$((SECONDS + $2)) start=$SECONDS program=build/$1/src/$3/vamp_$3_test test=$4 seed=$((RANDOM * 32768 + RANDOM)) runs=0 shown=0
  local first=$seed
  while [ $SECONDS -lt $end ]; do
    local jobs=()
    for _ in $(seq "$(nproc)"); do
      VAMP_SEED=$seed "$program" --gtest_filter="$test" --gtest_brief=1 >"build/$build/soak-$seed.log" 2>&1 &
      jobs+=("$!:$seed")
      seed=$((seed + 100))
    done
    for job in "${jobs[@]}"; do
      local log=build/$build/soak-${job#*:}.log
      if ! wait "${job%:*}"; then
        tail -60 "$log"
        echo "replay: VAMP_SEED=${job#*:} $program --gtest_filter='$test'"
        exit 1
      fi
      rm -f "$log"
      runs=$((runs + 1))
    done
    if [ $((SECONDS - shown)) -ge 30 ]; then
      shown=$SECONDS
      echo "  $build $test: $runs runs from seed $first on, $((end - SECONDS)) s left"
    fi
  done
  [ $runs -gt 0 ] || { echo "$test: not one run"; exit 1; }
  echo "  $build $test: $runs runs in $((SECONDS - start)) s, all good"
}

echo "soaking for $minutes minutes, building first"
scripts/build.sh asan vamp_core_test vamp_exec_test vamp_memory_test
scripts/build.sh tsan vamp_exec_test
random_lives asan $((part / 3)) core SchedulerRandom.OneSeed
random_lives asan $((part / 3)) exec '*AnySchedule*:*SchedulerLoop.*'
random_lives asan $((part / 3)) memory '*Walk*'
random_lives tsan $part exec '*AnySchedule*:*SchedulerLoop.*'

targets=$(find src -name '*_fuzz.cc' | wc -l)
rounds=$(((targets + $(nproc) - 1) / $(nproc)))
scripts/run-fuzzers.sh $((part / rounds + 1))
echo "soaked for $minutes minutes: nothing found"
