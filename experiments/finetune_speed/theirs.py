"""Time an epoch and a prediction pass with Hugging Face's Trainer, and print a line of JSON.

Batches contain rows of similar length (`group_by_length`), padded to the longest row in the batch
(`DataCollatorWithPadding`). A few steps run before the clock starts.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

MODELS = {
    "sst2": transformers.AutoModelForSequenceClassification,
    "squad": transformers.AutoModelForQuestionAnswering,
}


class Rows(torch.utils.data.Dataset):
    """The examples in an .npz file with bert_jax's features, without padding."""

    def __init__(self, file: Path):
        arrays = dict(np.load(file))
        starts, seconds = arrays.pop("starts"), arrays.pop("second_starts")
        parts = np.split(arrays.pop("token_ids"), starts[1:-1])
        self._rows = []
        for number, (part, second) in enumerate(zip(parts, seconds.tolist(), strict=True)):
            row = {"input_ids": part.tolist(), "attention_mask": [1] * len(part)}
            row["token_type_ids"] = [int(place >= second) for place in range(len(part))]
            row |= {name: int(values[number]) for name, values in arrays.items()}
            self._rows.append(row)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self._rows[index]


class Clock(transformers.TrainerCallback):
    """A callback that measures the time from the start of the first step to the end of the last."""

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        """See the base class."""
        self._start = time.perf_counter()

    def on_train_end(self, *_: Any, **__: Any) -> None:
        """See the base class."""
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.seconds = time.perf_counter() - self._start


def main() -> None:
    """Run the measurement with the files that `prepared.py` wrote to a directory."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--task", choices=list(MODELS), required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--device", choices=["cpu", "cuda"], required=True)
    parser.add_argument("--bf16", action="store_true")
    args = parser.parse_args()
    directory = args.directory / "theirs"
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    model = MODELS[args.task].from_pretrained(directory)
    training = Rows(args.directory / "train.npz")
    predicted = Rows(args.directory / "validation.npz")

    def trainer(**length: int) -> tuple[transformers.Trainer, Clock]:
        clock = Clock()
        arguments = transformers.TrainingArguments(
            output_dir=str(args.directory / "trained"),
            train_sampling_strategy="group_by_length",
            per_device_train_batch_size=args.batch,
            per_device_eval_batch_size=4 * args.batch,
            bf16=args.bf16,
            use_cpu=args.device == "cpu",
            learning_rate=3e-5,
            warmup_steps=0.1,
            weight_decay=0.01,
            report_to="none",
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
            **length,
        )
        collator = transformers.DataCollatorWithPadding(
            tokenizer, pad_to_multiple_of=8 if args.device == "cuda" else None
        )
        created = transformers.Trainer(
            model, arguments, collator, training, predicted, callbacks=[clock]
        )
        return created, clock

    trainer(max_steps=3)[0].train()
    measured, clock = trainer(num_train_epochs=1)
    measured.train()
    seconds = []
    for _ in range(2):
        start = time.perf_counter()
        measured.predict(predicted)
        seconds.append(time.perf_counter() - start)
    results = {
        "steps": measured.state.global_step,
        "train_examples_s": len(training) / clock.seconds,
        "predict_examples_s": len(predicted) / seconds[1],
    }
    print(json.dumps(results))


if __name__ == "__main__":
    main()
