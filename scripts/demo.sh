#!/usr/bin/env bash
# The main job on real input: coding agents' sessions with real text through a real mixture-of-experts
# model, under too little memory, once under each policy; then a check of what it is meant to show.
# Takes a few minutes; a run of one policy is cut after 120 s.
set -euo pipefail
cd "$(dirname "$0")/.."
model=models/smollm2-moe
output=results/demo

if [ ! -f $model/done ]; then
  echo "making $model: SmolLM2-135M-Instruct as a mixture of 16 experts (1.4 GB on the disk)"
  scripts/python-env.sh
  .venv/bin/python tools/make_smollm2_moe.py --mode split --experts 16 --top-k 2 --out $model
  touch $model/done
fi

replay() {
  build/release/vamp replay $model --trace traces/lmcache_miniswe.jsonl.gz --chat --own-replies \
    --first-prompt-tokens 400 --turn-tokens 64 --output-len 16 --max-num-batched-tokens 256 "$@"
}

# Think times and the sessions' starts follow this machine's speed: the same load everywhere, neither
# idle on a fast machine nor hopeless under every policy on a slow one.
echo "measuring how long a turn takes on this machine"
mkdir -p $output
replay --max-sessions 5 --sessions 1 --max-turns 1 --policy static --kv-cache-tokens 3480 \
  --output $output/speed >$output/speed.log 2>&1 || { cat $output/speed.log; exit 1; }
turn=$(python3 -c 'import json, sys
run = json.load(open(sys.argv[1]))["runs"][0]
print(round(run["ttft_s"]["p50"] + 16 * run["tpot_s"]["p50"], 2))' $output/speed/results.json)
think=$(python3 -c "print(round(3 * $turn, 2))")

# 8 sessions of 8 turns that share no prefix but the chat template's system message. At their end they
# hold 7,800 tokens of KV, the pool 3,480: past the cliff, unless the pool grows or keeps some of it in
# host memory. All first prompts fit.
echo "a turn alone takes this machine $turn s: 8 agents' sessions of 8 turns, think time $think s ± 20%, under each of four policies"
replay --max-sessions 8 --max-turns 8 --sessions 8 --stagger "$turn" \
  --think-time "$think" --think-jitter 0.2 \
  --kv-cache-tokens 3480 --kv-offloading-size 1GiB --max-offload-ratio 25 --max-num-seqs 3 \
  --policy static,paper,priced,priced-nohost --max-seconds 120 \
  --show-answer --output $output
python3 scripts/check-demo.py $output/results.json
