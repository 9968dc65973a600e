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

# 8 sessions of 12 turns that share no prefix but the chat template's system message. At their end they
# hold 11,600 tokens of KV, the pool 4,800: past the cliff, unless the pool grows or keeps some of it in
# host memory. All first prompts fit.
echo "replaying 8 agents' sessions of 12 turns, think time 2 s ± 20%, under each of four policies"
build/release/vamp replay $model \
  --trace traces/lmcache_miniswe.jsonl.gz --chat --own-replies \
  --max-sessions 8 --max-turns 12 --sessions 8 --stagger 1 \
  --first-prompt-tokens 560 --turn-tokens 64 --output-len 16 \
  --think-time 2 --think-jitter 0.2 \
  --kv-cache-tokens 4800 --kv-offloading-size 1GiB --max-offload-ratio 25 \
  --max-num-seqs 3 --max-num-batched-tokens 256 \
  --policy static,paper,priced,priced-nohost --max-seconds 120 \
  --show-answer --output $output
python3 scripts/check-demo.py $output/results.json
