#!/usr/bin/env bash
# Pretrain the recipe `tiny` on 15 books and 365 Wikipedia articles for 2,000 steps. The data must
# be in data/corpus_small below the directory BERT_JAX_SHARED (default: `shared` next to the
# repository). The vocabulary is BERT's uncased one. If the script is killed, run it again to resume.
set -euo pipefail
cd "$(dirname "$0")/../.."
shared=${BERT_JAX_SHARED:-../shared}
bert_jax=${BERT_JAX:-.venv/bin/bert-jax}
run=runs/tiny_corpus_small

if [ ! -f "$run/corpus/manifest.json" ]; then
  "$bert_jax" prepare --input "$shared/data/corpus_small/*.jsonl.xz" \
    --tokenizer "$shared/data/vocab/bert-base-uncased/vocab.txt" \
    --output "$run/corpus" --max-length 128 --held-out 0.05
fi
"$bert_jax" pretrain --config configs/pretrain/tiny.py \
  --config.work_dir="$run" --config.phases.phase1.corpus="$run/corpus" "$@"
cp "$run/curves.png" "$run/metrics.jsonl" experiments/tiny_corpus_small/
