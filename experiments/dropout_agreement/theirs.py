"""One run of Hugging Face's Trainer; writes accuracy and loss at the end of each epoch."""

from __future__ import annotations

import argparse
import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers


class Sentences(torch.utils.data.Dataset):
    """A table of sentences and labels, tokenised."""

    def __init__(self, file: Path, tokenizer: Any, length: int):
        with file.open(encoding="utf-8", newline="") as stream:
            rows = list(csv.DictReader(stream, delimiter="\t", quoting=csv.QUOTE_NONE))
        self._tokens = tokenizer(
            [row["sentence"] for row in rows], truncation=True, max_length=length
        )
        self._labels = [int(row["label"]) for row in rows]

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> dict[str, Any]:
        row = {name: values[index] for name, values in self._tokens.items()}
        return row | {"labels": self._labels[index]}


def parsed() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("work", type=Path, help="with train.tsv and validation.tsv")
    for name in ("seed", "batch", "epochs", "length"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--rate", type=float, required=True)
    parser.add_argument("--output", type=Path, required=True)
    return parser.parse_args()


def main() -> None:
    """Train and write."""
    args = parsed()
    transformers.set_seed(args.seed)
    tokenizer = transformers.AutoTokenizer.from_pretrained(args.model)
    # Whatever it was pretrained with; before the classifier stands hidden_dropout_prob, too.
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
    trainer = transformers.Trainer(
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
