"""Fine-tune the pretrained and the randomly initialized model on MNLI before the main task.

Method: Phang et al. 2018, "Sentence Encoders on STILTs", https://arxiv.org/abs/1811.01088.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TypedDict

from commands import ROOT, bert_jax
from tasks import FAST_TRAIN, FAST_VALIDATION, table_text

# The available parts of the training set, and the number of rows taken from the matched dev set.
_TRAINING = ("train_part1k", "train_part9k", "train_extra_llmsknow")
_VALIDATION, _VALIDATED = "dev_matched", 2_000
# These values are not tuned: the batch size and learning rate are the ones that the pretrained side
# uses for SST-2, and the number of epochs is from the BERT paper.
_BATCH_SIZE, _RATE, _EPOCHS = 32, 3e-4, 3


class MnliPair(TypedDict):
    """A row of MNLI; the label is entailment, neutral or contradiction."""

    premise: str
    hypothesis: str
    label: str


def mnli_pairs(work: Path) -> list[MnliPair]:
    """Return the MNLI pairs on which both models are trained."""
    lines = _training(work).read_text(encoding="utf-8").split("\n")[:-1]
    return [json.loads(line) for line in lines]


def _training(work: Path) -> Path:
    return work / "MNLI" / "train.jsonl"


def mnli_run(work: Path, side: str) -> Path:
    """Return the work directory of one side's MNLI run."""
    return work / "MNLI" / side


def learn_mnli(side: str, args: argparse.Namespace) -> dict[str, float]:
    """Fine-tune one side on MNLI unless this is already done, and return its best accuracy."""
    training = _training(args.work)
    validation = training.with_name("validation.jsonl")
    rows = [row for name in _TRAINING for row in _rows(args.data, name)]
    held_out = _rows(args.data, _VALIDATION)[:_VALIDATED]
    if args.fast:
        rows, held_out = rows[:FAST_TRAIN], held_out[:FAST_VALIDATION]
    training.parent.mkdir(parents=True, exist_ok=True)
    for file, lines in ((training, rows), (validation, held_out)):
        file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    run = mnli_run(args.work, side)
    values = {
        "work_dir": run,
        "from_scratch": side == "from_scratch",
        "sentences.files.train": training,
        "sentences.files.validation": validation,
        "sentences.files.first": "premise",
        "sentences.files.second": "hypothesis",
        "sentences.files.labels": ("entailment", "neutral", "contradiction"),
        "max_length": min(128, args.max_length or 128),
        "dropout": args.dropout,
        "head_dropout": args.dropout,
        "compute.dtype": args.dtype,
        "batch_size": _BATCH_SIZE,
        "optimizer.peak_learning_rate": _RATE,
        "num_epochs": 1 if args.fast else _EPOCHS,
    }
    words = [f"--config.{name}={value}" for name, value in values.items()]
    recipe = ROOT / "configs/finetune/table.py"
    bert_jax("finetune", "--config", recipe, "--init", args.model, *words)
    scores = json.loads((run / "scores.json").read_text(encoding="utf-8"))
    return {"accuracy": scores["scores"]["accuracy"], "training": len(rows)}


def _rows(data: Path, name: str) -> list[str]:
    return table_text(data / "mnli" / f"{name}.jsonl").split("\n")[:-1]
