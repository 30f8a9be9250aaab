r"""Fine-tune small models on SST-2, WNUT-17 and SQuAD, and export the results in float16.

    python experiments/small_models/run.py --data DATA --work runs/small_models

The checkpoint with the best score on the validation set is exported. `DATA` contains the data sets,
as described in experiments/finetuning/README.md. Further options, such as
--config.compute.dtype=bfloat16, are passed to `bert-jax finetune`.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from commands import bert_jax  # noqa: E402
from finetuning.tasks import TASKS, Files, Task, files_of  # noqa: E402

# Small models trained on little text rarely find an answer in a passage of several hundred words,
# so questions are asked about excerpts of at most this length (unless a single sentence is longer).
MAX_CHARACTERS = 250
SPLITS = ("train", "validation")


@dataclasses.dataclass(frozen=True)
class SmallModel:
    """A model to fine-tune.

    name: the short name of the fine-tuned model.
    task: the task and its training hyperparameters.
    learning_rate: the peak learning rate.
    options: additional options for the recipe.
    """

    name: str
    task: Task
    learning_rate: float
    options: Sequence[str] = ()


# Every model is fine-tuned from this one.
INIT = "mini-albert"
MODELS = (
    SmallModel("mini-sentiment", TASKS["SST-2"], 2e-4),
    SmallModel("mini-ner", TASKS["WNUT-17"], 2e-4),
    SmallModel(
        "mini-qa",
        dataclasses.replace(TASKS["SQuAD"], batch_size=16),
        2e-4,
        options=(
            "--config.max_length=128",
            "--config.spans.doc_stride=64",
            "--config.spans.max_query_length=32",
            "--config.evaluations_per_epoch=1",
            "--config.max_shapes=2",
        ),
    ),
)


def with_excerpts(files: Files, work: Path) -> Files:
    """Write the training and validation sets to `work`, with a short excerpt for every question."""
    for split in SPLITS:
        articles = json.loads(Path(getattr(files, split)).read_text(encoding="utf-8"))["data"]
        for article in articles:
            article["paragraphs"] = [
                excerpt(paragraph["context"], question)
                for paragraph in article["paragraphs"]
                for question in paragraph["qas"]
            ]
        file = work / f"{split}-excerpts.json"
        file.write_text(json.dumps({"version": "1.1", "data": articles}), encoding="utf-8")
    return Files(**{split: str(work / f"{split}-excerpts.json") for split in SPLITS})


def excerpt(passage: str, question: dict[str, Any]) -> dict[str, Any]:
    """Return a paragraph that has one question and the sentences around its first answer.

    Sentences before and after the one with the answer are added alternately, as long as the excerpt
    does not exceed `MAX_CHARACTERS`.
    """
    answer = question["answers"][0]
    first, last = answer["answer_start"], answer["answer_start"] + len(answer["text"])
    bounds = [0, *(match.end() for match in re.finditer(r"[.!?] +", passage)), len(passage)]
    left = max(number for number, bound in enumerate(bounds) if bound <= first)
    right = min(number for number, bound in enumerate(bounds) if bound >= last)
    for step in range(2 * len(bounds)):
        wider = (max(left - 1, 0), right) if step % 2 else (left, min(right + 1, len(bounds) - 1))
        if bounds[wider[1]] - bounds[wider[0]] <= MAX_CHARACTERS:
            left, right = wider
    start, end = bounds[left], bounds[right]
    answers = [
        {"text": answer["text"], "answer_start": answer["answer_start"] - start}
        for answer in question["answers"]
        if start <= answer["answer_start"] and answer["answer_start"] + len(answer["text"]) <= end
    ]
    return {"context": passage[start:end], "qas": [{**question, "answers": answers}]}


def train(
    model: SmallModel, data: Path, work: Path, overrides: Sequence[str], *, fast: bool
) -> None:
    """Fine-tune and export one model."""
    task = model.task
    files = files_of(task, data, work / f"{model.name}-data", fast=fast)
    if task.name == "SQuAD":
        files = with_excerpts(files, work / f"{model.name}-data")
    start = time.monotonic()
    bert_jax(
        *("finetune", "--config", f"configs/finetune/{task.recipe}.py"),
        *("--init", INIT, f"--config.work_dir={work / model.name}"),
        f"--config.optimizer.peak_learning_rate={model.learning_rate}",
        f"--config.batch_size={task.batch_size}",
        f"--config.num_epochs={task.epochs}",
        *files.overrides(task),
        "--config.dropout=0",
        *model.options,
        *overrides,
    )
    seconds = round(time.monotonic() - start)
    bert_jax(
        *("export", work / model.name, "--format", "huggingface", "--dtype", "float16"),
        *("--output", work / "exported" / model.name),
    )
    print(json.dumps({"task": task.name, "seconds": seconds}), flush=True)


def main() -> None:
    """Fine-tune and export a model for every task."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument(
        "--tasks", nargs="*", default=[model.task.name for model in MODELS], help="names of tasks"
    )
    parser.add_argument("--fast", action="store_true", help="use a few hundred examples per task")
    arguments, overrides = parser.parse_known_args()
    work = arguments.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    for model in MODELS:
        if model.task.name in arguments.tasks:
            train(
                model,
                arguments.data.resolve(),
                work,
                overrides,
                fast=arguments.fast,
            )


if __name__ == "__main__":
    main()
