"""Prepare the model and the tokenized examples that both libraries use."""

from __future__ import annotations

import json
import lzma
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bert_jax.cli.main import main as bert_jax
from bert_jax.labeled_data.features import Features
from bert_jax.recipes.load import load_config
from bert_jax.tokenizers.tokenizer import Tokenizer

# The number of layers, the hidden dimension, and the number of attention heads of each model size.
SIZES = {"tiny": (2, 128, 2), "mini": (4, 256, 4), "base": (12, 768, 12)}
MAX_LENGTHS = {"sst2": 128, "squad": 384}

CONFIG = """from ml_collections import ConfigDict


def get_config():
    return ConfigDict({0!r})
"""


@dataclass(frozen=True)
class Work:
    """A model size, a task, and how many examples (sentences or sliding windows) to use."""

    task: str
    size: str
    batch_size: int
    train_examples: int
    predicted_examples: int


def write_model(work: Work, data: Path, directory: Path) -> None:
    """Write a random Hugging Face model to the directory `theirs`, and import it into `ours`."""
    import transformers

    layers, hidden_dim, heads = SIZES[work.size]
    config = transformers.BertConfig(
        hidden_size=hidden_dim,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=4 * hidden_dim,
    )
    theirs = directory / "theirs"
    transformers.BertModel(config).save_pretrained(theirs)
    vocabulary = (data / "vocab/bert-base-uncased/vocab.txt").read_text(encoding="utf-8")
    (theirs / "vocab.txt").write_text(vocabulary, encoding="utf-8")
    if bert_jax(["import", str(theirs), "--output", str(directory / "ours")]):
        raise SystemExit("the import failed")


def write_examples(work: Work, data: Path, directory: Path) -> None:
    """Write samples of the task's training and validation sets, and a `config.py` for them."""
    sizes = {"train": work.train_examples, "validation": work.predicted_examples}
    suffix = "tsv" if work.task == "sst2" else "json"
    files = {split: directory / f"{split}.{suffix}" for split in sizes}
    for split, count in sizes.items():
        write = _write_sst2 if work.task == "sst2" else _write_squad
        write(data, split, count, files[split])
    named: dict[str, object] = {split: str(file) for split, file in files.items()}
    if work.task == "sst2":
        section = {"sentences": {"files": named | {"labels": ("0", "1")}}}
    else:
        section = {"spans": {"files": named, "doc_stride": 128}}
    values = section | {
        "work_dir": str(directory / "run"),
        "init_from": str(directory / "ours"),
        "max_length": MAX_LENGTHS[work.task],
        "num_epochs": 1,
        "batch_size": work.batch_size,
        "report_every_steps": 10,
    }
    (directory / "config.py").write_text(CONFIG.format(values), encoding="utf-8")


def write_features(directory: Path) -> None:
    """Write the tokens and targets of bert_jax's examples, so that the Trainer can use them."""
    config = load_config(str(directory / "config.py"), [], kind="finetune")
    task_data = config.open(Tokenizer.load(directory / "ours/tokenizer"), ["train", "validation"])
    assert task_data.train is not None
    sets = {"train": task_data.train, "validation": task_data.validation["validation"].features}
    for name, features in sets.items():
        np.savez(directory / f"{name}.npz", **_arrays(features))


def _arrays(features: Features) -> dict[str, np.ndarray]:
    sequences = features.sequences
    return {
        "token_ids": sequences.token_ids,
        "starts": sequences.starts,
        "second_starts": sequences.second_starts,
        **features.targets,
    }


def _write_sst2(data: Path, split: str, count: int, file: Path) -> None:
    name = "train.tsv.xz" if split == "train" else "dev.tsv"
    source = data / "glue/SST-2" / name
    opened = lzma.open if source.suffix == ".xz" else open
    with opened(source, "rt", encoding="utf-8") as stream:
        header, *lines = stream.read().splitlines()
    chosen = random.Random(0).sample(lines, min(count, len(lines)))
    file.write_text("\n".join([header, *chosen]) + "\n", encoding="utf-8")


def _write_squad(data: Path, split: str, count: int, file: Path) -> None:
    name = "train-v1.1-prefix" if split == "train" else "dev-v1.1"
    with lzma.open(data / f"squad/{name}.json.xz", "rt", encoding="utf-8") as stream:
        questions = list(_questions(json.load(stream)))
    chosen = random.Random(0).sample(questions, min(count, len(questions)))
    file.write_text(json.dumps({"data": [{"title": "", "paragraphs": chosen}]}), encoding="utf-8")


def _questions(squad: dict) -> Iterator[dict]:
    for article in squad["data"]:
        for paragraph in article["paragraphs"]:
            for question in paragraph["qas"]:
                yield {"context": paragraph["context"], "qas": [question]}
