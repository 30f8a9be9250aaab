"""Continue pretraining an imported model on text from your own domain.

    python examples/continue_pretraining.py google-bert/bert-base-uncased runs/domain notes/

The run starts from the imported model's config and parameters, and the text is prepared with the
model's tokenizer.
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import bert_jax as bj


def main(
    source: str,
    directory: str,
    texts: Sequence[str],
    max_length: int = 128,
    overrides: Mapping[str, object] | None = None,
) -> None:
    """Write the imported model, a corpus and a run to subdirectories of the given directory."""
    imported = bj.import_model(source, Path(directory, "imported"))
    tokenizer = bj.Tokenizer.load(imported.work_dir / "tokenizer")
    corpus = bj.prepare(
        texts, tokenizer, Path(directory, "corpus"), max_length=max_length, held_out=0.1
    )
    config = bj.load_config(
        "pretrain/tiny",
        {
            "init_from": imported.work_dir,
            "model": imported.config.encoder,
            "work_dir": Path(directory, "run"),
            "phases.phase1.corpus": corpus.path,
            "phases.phase1.sequence_length": max_length,
            "phases.phase1.num_steps": 1_000,
            "optimizer.peak_learning_rate": 2e-5,
            "optimizer.warmup_steps": 100,
            **(overrides or {}),
        },
    )
    run = bj.pretrain(config, on_report=print)
    print(f"held-out metrics after step {run.step}: {run.metrics}")


if __name__ == "__main__":
    bj.tune_malloc_for_training()  # makes training on a CPU faster
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
