"""Pretrain a small BERT on your own text, from raw files to filling in masked words.

    python examples/pretrain.py runs/mine books/ wiki.jsonl.zst

You can interrupt the script at any time and start it again: it resumes where it stopped.
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import bert_jax as bj


def main(
    directory: str,
    texts: Sequence[str],
    vocab_size: int = 8_000,
    max_length: int = 128,
    overrides: Mapping[str, object] | None = None,
) -> None:
    """Write a tokenizer, a corpus and a run to subdirectories of the given directory."""
    vocabulary = Path(directory, "tokenizer")
    if vocabulary.exists():
        tokenizer = bj.Tokenizer.load(vocabulary)
    else:
        tokenizer = bj.train_tokenizer(texts, vocab_size=vocab_size, output=vocabulary)
    corpus = bj.prepare(
        texts, tokenizer, Path(directory, "corpus"), max_length=max_length, held_out=0.1
    )
    config = bj.load_config(
        "pretrain/tiny",
        {
            "work_dir": Path(directory, "run"),
            "model.vocab_size": tokenizer.vocab_size,
            "phases.phase1.corpus": corpus.path,
            "phases.phase1.sequence_length": max_length,
            **(overrides or {}),
        },
    )
    run = bj.pretrain(config, on_report=print)
    print(f"held-out metrics after step {run.step}: {run.metrics}")
    fill_mask = bj.FillMask(run.work_dir)
    print(fill_mask("The [MASK] of the sea.", top_k=3).masks[0])


if __name__ == "__main__":
    bj.tune_malloc_for_training()  # makes training on a CPU faster
    main(sys.argv[1], sys.argv[2:])
