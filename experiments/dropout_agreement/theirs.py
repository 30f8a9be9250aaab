"""Run Hugging Face's Trainer once, and write the accuracy and loss after each epoch.

With --our-batches, the Trainer uses bert_jax's batches of the same sentences instead of its own
(`group_by_length`).
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

# Make an uninstalled checkout importable.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bert_jax.labeled_data.feature_batches import ByLength, choose_lengths  # noqa: E402

# The maximum number of row lengths, which is also the default of FinetuneConfig.max_shapes.
SHAPES = 6


class Sentences(torch.utils.data.Dataset):
    """A table of tokenized sentences and their labels."""

    def __init__(self, file: Path, tokenizer: Any, length: int):
        with file.open(encoding="utf-8", newline="") as stream:
            rows = list(csv.DictReader(stream, delimiter="\t", quoting=csv.QUOTE_NONE))
        self._tokens = tokenizer(
            [row["sentence"] for row in rows], truncation=True, max_length=length
        )
        self._labels = [int(row["label"]) for row in rows]

    @property
    def lengths(self) -> np.ndarray:
        """The number of tokens in each sentence."""
        return np.array([len(ids) for ids in self._tokens["input_ids"]])

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> dict[str, Any]:
        row = {name: values[index] for name, values in self._tokens.items()}
        return row | {"labels": self._labels[index]}


class OurBatches(torch.utils.data.Sampler):
    """The batches that bert_jax makes; each pass over the object yields one epoch."""

    def __init__(self, lengths: np.ndarray, batch_size: int, seed: int):
        self._plan = ByLength(lengths, choose_lengths(lengths, SHAPES), batch_size, seed)
        self._epoch = 0

    def __len__(self) -> int:
        return self._plan.steps_per_epoch

    def __iter__(self) -> Iterator[list[int]]:
        first = self._epoch * len(self)
        self._epoch += 1
        for step in range(first, first + len(self)):
            examples = self._plan.planned_batch(step).examples
            yield examples[examples >= 0].tolist()


class OnOurBatches(transformers.Trainer):
    """A Trainer that trains on bert_jax's batches."""

    def get_train_dataloader(self) -> torch.utils.data.DataLoader:
        """Return a data loader for one epoch's batches."""
        data: Any = self.train_dataset
        batches = OurBatches(data.lengths, self.args.train_batch_size, self.args.seed)
        return torch.utils.data.DataLoader(
            data, batch_sampler=batches, collate_fn=self.data_collator
        )


def parsed() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("work", type=Path, help="folder with train.tsv and validation.tsv")
    for name in ("seed", "batch", "epochs", "length"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--rate", type=float, required=True)
    parser.add_argument("--our-batches", action="store_true")
    parser.add_argument("--output", type=Path, required=True)
    return parser.parse_args()


def main() -> None:
    """Train the model and write the scores."""
    args = parsed()
    transformers.set_seed(args.seed)
    tokenizer = transformers.AutoTokenizer.from_pretrained(args.model)
    # Set both dropout rates explicitly, since the model may have been pretrained with different
    # rates. The first one also applies to the input of the classifier.
    model = transformers.AutoModelForSequenceClassification.from_pretrained(
        args.model, hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1
    )
    assert model.config.classifier_dropout is None
    sets = [
        Sentences(args.work / f"{split}.tsv", tokenizer, args.length)
        for split in ("train", "validation")
    ]
    arguments = transformers.TrainingArguments(
        output_dir=str(args.work / "trainer"),
        seed=args.seed,
        per_device_train_batch_size=args.batch,
        per_device_eval_batch_size=4 * args.batch,
        num_train_epochs=args.epochs,
        learning_rate=args.rate,
        warmup_steps=0.1,
        weight_decay=0.01,
        max_grad_norm=1.0,
        adam_epsilon=1e-6,
        train_sampling_strategy="group_by_length",
        eval_strategy="epoch",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
    )
    trainer = (OnOurBatches if args.our_batches else transformers.Trainer)(
        model,
        arguments,
        transformers.DataCollatorWithPadding(tokenizer),
        *sets,
        compute_metrics=lambda found: {
            "accuracy": float(np.mean(found.predictions.argmax(-1) == found.label_ids))
        },
    )
    trainer.train()
    log = [entry for entry in trainer.state.log_history if "eval_loss" in entry]
    found = {name: [entry[f"eval_{name}"] for entry in log] for name in ("accuracy", "loss")}
    partial = args.output.with_suffix(".partial")
    partial.write_text(json.dumps(found), encoding="utf-8")
    partial.rename(args.output)


if __name__ == "__main__":
    main()
