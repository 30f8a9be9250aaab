"""What a fine-tuning run came to, as its work directory tells it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bert_jax.files import write_file
from bert_jax.inference.work_dir import named_step
from bert_jax.json_files import expecting_fields, read_json_object

SCORES_NAME = "scores.json"
PREDICTIONS_NAME = "predictions"


@dataclass(frozen=True)
class Outcome:
    """The best step, what the validation sets gave there, and what was predicted for test sets.

    predictions: files. tests: the fingerprint of each test set by its name.
    """

    step: int
    scores: Mapping[str, float]
    predictions: Sequence[Path]
    tests: Mapping[str, str]


def write_outcome(work_dir: Path, outcome: Outcome) -> None:
    """Writes `scores.json`."""
    content = {
        "step": outcome.step,
        "scores": dict(outcome.scores),
        "predictions": list(map(str, outcome.predictions)),
        "tests": dict(outcome.tests),
    }
    write_file(work_dir / SCORES_NAME, json.dumps(content, indent=2) + "\n")


def read_outcome(work_dir: Path) -> Outcome | None:
    """What `write_outcome` wrote; None before.

    Raises:
      ValueError: the file is damaged.
    """
    file = work_dir / SCORES_NAME
    if not file.is_file():
        return None
    fix = "Remove it, and the same command writes it again"
    with expecting_fields(file, fix):
        content = read_json_object(file, fix)
        # By name: the directory may have been moved or copied.
        named = (Path(prediction).name for prediction in content["predictions"])
        files = [work_dir / PREDICTIONS_NAME / name for name in named]
        scores = {name: float(score) for name, score in content["scores"].items()}
        # Early versions did not record test files, so their predictions are written again.
        return Outcome(int(content["step"]), scores, files, dict(content.get("tests", {})))


def concluded_with(work_dir: Path, best_step: int | None, tests: Mapping[str, str]) -> bool:
    """Whether the outcome is of this step and these test sets, and all of it is there.

    tests: as of `Outcome`: a test file may have come since, or be another now.
    """
    found = read_outcome(work_dir)
    if best_step is None or found is None:
        return False
    done = found.step == best_step and found.tests == tests
    there = all(file.is_file() for file in found.predictions)
    return done and there and best_step == named_step(work_dir)
