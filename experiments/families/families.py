"""Define the models to compare, each as a set of changes to a recipe with two phases."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from commands import overlaid

VOCAB_SIZE = 8_000
LENGTHS = (32, 128)
# Every step processes the same number of tokens. The docstring of configs/pretrain/mini_cpu.py
# explains why rows are short in phase 1.
TOKENS_PER_STEP = 4_096

_SMALLER = {"num_layers": 2, "num_segments": 0, "pooler_activation": "relu"}


@dataclass(frozen=True)
class Family:
    """A model in the comparison.

    name: the model's name.
    title: the model's title in tables and plots.
    changes: config values in which the model differs from the recipe.
    teacher: the name of the model to distill from; "" if there is none.
    init_from_teacher: whether to initialize the model with every second layer of the teacher.
    at_equal_flops: whether to train the model a second time, with as many FLOPs as the first model
      in `FAMILIES`. This is useful if this model's steps cost more or less than the first one's.
    """

    name: str
    title: str
    changes: dict[str, Any] = field(default_factory=dict)
    teacher: str = ""
    init_from_teacher: bool = False
    at_equal_flops: bool = False


FAMILIES = {
    family.name: family
    for family in (
        Family("bert", "BERT: next sentences, dynamic masks"),
        Family("bert_again", "the same, another seed", {"seed": 1}),
        Family("bert_static", "BERT: one static masking", {"masking": {"num_maskings": 1}}),
        Family(
            "roberta",
            "RoBERTa: no pairs",
            {
                "sentence_pairs": "none",
                "join_documents": True,
                "model": {"num_segments": 1, "position_offset": 1, "layer_norm_epsilon": 1e-5},
            },
        ),
        Family(
            "albert",
            "ALBERT: sentence order, shared layers",
            {"sentence_pairs": "sentence_order", "model": {"sharing": "all"}},
        ),
        Family(
            "albert_narrow",
            "the same, with narrow embeddings",
            {
                "sentence_pairs": "sentence_order",
                "model": {"sharing": "all", "embedding_dim": 128},
            },
            at_equal_flops=True,
        ),
        Family(
            "student",
            "half the layers, from scratch",
            {"sentence_pairs": "none", "model": _SMALLER},
            at_equal_flops=True,
        ),
        Family(
            "distilled",
            "half the layers, distilled from BERT",
            {"sentence_pairs": "none", "model": _SMALLER},
            teacher="bert",
            at_equal_flops=True,
        ),
        Family(
            "distilled_begun",
            "the same, initialized with BERT's layers",
            {"sentence_pairs": "none", "model": _SMALLER},
            teacher="bert",
            init_from_teacher=True,
        ),
    )
}
REFERENCE = FAMILIES["bert"]


def config_of(
    family: Family, work_dir: Path, corpora: Path, num_steps: int, dtype: str, teacher: Path | None
) -> dict[str, Any]:
    """Return the config for a run with `num_steps` steps, half of them in each phase."""
    config: dict[str, Any] = {
        "work_dir": str(work_dir),
        "model": {
            "vocab_size": VOCAB_SIZE,
            "hidden_dim": 256,
            "num_layers": 4,
            "num_heads": 4,
            "ffn_dim": 1024,
            "max_positions": LENGTHS[-1],
            "hidden_dropout": 0.0,
            "attention_dropout": 0.0,
        },
        "compute": {"dtype": dtype},
        "masking": {"rate": 0.3},
        "optimizer": {"peak_learning_rate": 1e-3, "warmup_steps": num_steps // 10, "beta2": 0.98},
        "evaluation": {"every_steps": max(10, num_steps // 12)},
        "checkpoint": {"every_steps": 250, "keep_best": 0},
        "phases": {},
    }
    steps = (num_steps // 2, num_steps - num_steps // 2)
    for number, (length, count) in enumerate(zip(LENGTHS, steps, strict=True), start=1):
        config["phases"][f"phase{number}"] = {
            "corpus": str(corpora / str(length)),
            "sequence_length": length,
            "batch_size": TOKENS_PER_STEP // length,
            "num_steps": count,
        }
    if teacher is not None:
        # This follows DistilBERT's released code; see configs/pretrain/distilbert.py.
        config["distillation"] = {
            "teacher": str(teacher),
            "soft_targets": "all",
            "init_layers": family.init_from_teacher,
        }
    return overlaid(config, family.changes)
