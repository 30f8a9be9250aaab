"""Compare a fine-tuning run with Hugging Face's Trainer, given the same weights and batches."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import torch
import transformers
from numpy.testing import assert_allclose

from bert_jax.cli.main import main
from bert_jax.finetuning.run import FinetuneRun
from bert_jax.finetuning.training import train
from bert_jax.labeled_data.features import Batch
from bert_jax.recipes.load import load_config
from bert_jax.training.distributed import StopRequest
from bert_jax.training.sharding import make_mesh

pytest.importorskip("accelerate", reason="Hugging Face's Trainer needs accelerate")

EXAMPLES, BATCH, EPOCHS, PEAK = 204, 16, 4, 1e-3
# An epoch has 13 steps, the last of them with 12 rows. The warm-up takes a tenth of the 52 steps,
# rounded up.
STEPS, WARMUP = 52, 6
CONFIG = """
from ml_collections import ConfigDict


def get_config():
    return ConfigDict({0!r})
"""


def made_up(count: int) -> list[tuple[str, str]]:
    """Make up sentences of 3 to 40 words, most of which come from the label's vocabulary."""
    rng = random.Random(0)
    words = {
        "1": "bright warm lovely witty tender honest".split(),
        "0": "dull grim clumsy stale noisy hollow".split(),
    }
    sentences = []
    for _ in range(count):
        label = rng.choice("01")
        drawn = [rng.choice(words[label if rng.random() < 0.7 else "10"[int(label)]])]
        drawn += [rng.choice(words[rng.choice((label, label, "0", "1"))]) for _ in range(40)]
        sentences.append((" ".join(drawn[: rng.randint(3, 40)]), label))
    return sentences


def write_table(rows: list[tuple[str, str]], file: Path) -> None:
    lines = "".join(f"{text}\t{label}\n" for text, label in rows)
    file.write_text(f"sentence\tlabel\n{lines}", encoding="utf-8")


def write_theirs(rows: list[tuple[str, str]], directory: Path) -> None:
    """Write a small BertForSequenceClassification and a vocabulary of the words in the rows."""
    words = sorted({word for text, _ in rows for word in text.lower().split() if word.isalpha()})
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"',.-`", *words]
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=64,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        num_labels=2,
        initializer_range=0.1,
    )
    transformers.BertForSequenceClassification(config).save_pretrained(directory)
    (directory / "vocab.txt").write_text("\n".join(dict.fromkeys(vocabulary)) + "\n")


def our_run(directory: Path, init: Path) -> FinetuneRun:
    """Open a run that uses one device and reads the tables in `directory`."""
    table = dict(first="sentence", label="label", labels=("0", "1"))
    names = {split: str(directory / f"{split}.tsv") for split in ("train", "validation")}
    values: dict[str, Any] = dict(
        work_dir=str(directory / "run"),
        init_from=str(init),
        sentences=dict(files=names | table),
        max_length=64,
        max_shapes=2,
        num_epochs=EPOCHS,
        batch_size=BATCH,
        dropout=0.0,
        head_dropout=0.0,
        report_every_steps=1,
        optimizer=dict(peak_learning_rate=PEAK, warmup_steps=0, warmup_fraction=0.1),
    )
    file = directory / "config.py"
    file.write_text(CONFIG.format(values), encoding="utf-8")
    config = load_config(file, kind="finetune")
    return FinetuneRun.open(config, make_mesh(config.mesh, jax.devices()[:1]))


class AsOurs(transformers.Trainer):
    """A Trainer that reads the given batches and uses our learning rate schedule.

    In step n of the warm-up, the rate is peak x (n + 1) / (warm-up + 1). Trainer's own linear
    schedule begins at 0, so its first step would have no effect.
    """

    def __init__(self, batches: list[dict[str, torch.Tensor]], **arguments: Any):
        super().__init__(**arguments)
        self.batches = batches
        self.losses: list[float] = []

    def get_train_dataloader(self) -> torch.utils.data.DataLoader:
        return torch.utils.data.DataLoader(self.batches, batch_size=None)  # type: ignore[arg-type]

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        def share(step: int) -> float:
            if step < WARMUP:
                return (step + 1) / (WARMUP + 1)
            return (num_training_steps - step) / (num_training_steps - WARMUP)

        self.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer or self.optimizer, share)
        return self.lr_scheduler

    def compute_loss(self, model: Any, inputs: Any, *others: Any, **more: Any) -> Any:
        loss = super().compute_loss(model, inputs, *others, **more)
        self.losses.append(loss.item())
        return loss


def their_batch(batch: Batch) -> dict[str, torch.Tensor]:
    """Rename the arrays in a batch to the names Hugging Face uses, and drop padding rows."""
    rows = batch["example_weights"] > 0
    names = dict(token_ids="input_ids", segment_ids="token_type_ids", labels="labels")
    names["attention_mask"] = "attention_mask"
    return {theirs: torch.tensor(batch[ours][rows]).long() for ours, theirs in names.items()}


def their_losses(directory: Path, run: FinetuneRun) -> list[float]:
    features = run.data.train
    assert features is not None
    planned = [run.plan.planned_batch(step) for step in range(run.total_steps)]
    batches = [their_batch(features.batch(place.examples, place.length)) for place in planned]
    trainer = AsOurs(
        batches,
        model=transformers.AutoModelForSequenceClassification.from_pretrained(directory),
        args=transformers.TrainingArguments(
            output_dir=str(directory / "trained"),
            max_steps=len(batches),
            learning_rate=PEAK,
            adam_epsilon=1e-6,
            weight_decay=0.01,
            max_grad_norm=1.0,
            report_to="none",
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
            use_cpu=True,
        ),
    )
    trainer.train()
    return trainer.losses


@pytest.mark.slow
def test_losses_of_fifty_steps_match_hugging_faces_trainer(tmp_path: Path) -> None:
    theirs, init, rows = tmp_path / "theirs", tmp_path / "init", made_up(EXAMPLES)
    theirs.mkdir()
    write_theirs(rows, theirs)
    write_table(rows, tmp_path / "train.tsv")
    write_table(rows[:16], tmp_path / "validation.tsv")
    labels = ["--head", "classification", "--labels", "0", "1"]
    assert main(["import", str(theirs), "--output", str(init), *labels]) == 0
    run = our_run(tmp_path, init)
    assert run.total_steps == STEPS

    assert train(run, StopRequest())
    log = (tmp_path / "run/metrics.jsonl").read_text(encoding="utf-8").splitlines()
    ours = [entry["loss"] for entry in map(json.loads, log) if entry["kind"] == "train"]
    expected = their_losses(theirs, run)

    assert len(ours) == len(expected) == STEPS
    assert np.ptp(expected) > 0.2  # Check that the loss changes at all.
    assert_allclose(ours, expected, rtol=0, atol=1e-3)
    print(f"farthest apart: {np.abs(np.subtract(ours, expected)).max():.1e}")
