"""Score the pretrained models on held-out text, minimal pairs and, after fine-tuning, two tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from commands import ROOT, locked
from jobs import Job
from probe import probe
from sweeps import at_the_end
from tasks import TASKS, Files, files_of, sample_of

from bert_jax.finetuning.sweep import sweep
from bert_jax.language_scores.minimal_pairs import score_minimal_pairs
from bert_jax.recipes.load import load_config

HELD_OUT, BLIMP = "held-out", "BLiMP"
# The number of epochs for each task, and the size of the fixed sample of SST-2 training sentences.
EPOCHS = {"SST-2": 1, "STS-B": 4}
SENTENCES = 16_000
BATCH_SIZE = 32
# The maximum number of tokens in an example, unless the longest training rows have fewer; longer
# examples are truncated.
MAX_LENGTH = 64


@dataclass(frozen=True)
class Scorer:
    """A scorer for pretrained models.

    data: the folder with the data sets.
    work: the folder for the runs.
    corpora: the corpora whose held-out sets are used for scoring, one for each row length.
    max_pairs: the number of minimal pairs from each paradigm.
    learning_rates: the learning rates for fine-tuning; the report contains the best score.
    dtype: the floating-point type for fine-tuning. The other scores are computed in float32.
    fast: whether to use only a few examples.
    """

    data: Path
    work: Path
    corpora: Sequence[Path]
    max_pairs: int
    learning_rates: Sequence[float]
    dtype: str
    fast: bool

    def jobs(self, pretrained: Job, *, everything: bool) -> list[Job]:
        """Return the jobs that score the model of a finished pretraining job.

        Unless `everything` is set, the model is only scored on held-out text.
        """
        directory = pretrained.output.parent

        def job(name: str, settings: dict[str, Any], measure: Any) -> Job:
            recipe = {"pretraining": pretrained.recipe, "score": settings | {"fast": self.fast}}
            return Job(f"{pretrained.name}, {name}", directory / f"{name}.json", recipe, measure)

        run = directory / "run"
        tasks = [
            job(
                f"{name}-{rate:g}",
                self._task_settings(name, rate),
                lambda name=name, rate=rate: self._fine_tuned(
                    name, rate, run, directory / f"sweeps/{name}-{rate:g}"
                ),
            )
            for name in EPOCHS
            for rate in self.learning_rates
        ]
        held_out = job(HELD_OUT, {}, lambda: self._on_held_out_text(run))
        pairs = {"max_pairs": self.max_pairs}
        further = [job(BLIMP, pairs, lambda: self._on_minimal_pairs(run)), *tasks]
        return [held_out, *(further if everything else ())]

    @property
    def _max_length(self) -> int:
        return min(MAX_LENGTH, int(self.corpora[-1].name))

    def _task_settings(self, name: str, rate: float) -> dict[str, Any]:
        """Return the settings that determine a task's score at one learning rate."""
        settings: dict[str, Any] = {"learning_rate": rate, "dtype": self.dtype}
        settings |= {"epochs": EPOCHS[name], "batch_size": BATCH_SIZE, "length": self._max_length}
        return settings | ({"sentences": SENTENCES} if name == "SST-2" else {})

    def _on_held_out_text(self, run: Path) -> dict[str, Any]:
        """Return the loss and the accuracy on rows of each length.

        The masks are the same for all models.
        """
        return {corpus.name: probe(run, corpus, masking_rate=0.15) for corpus in self.corpora}

    def _on_minimal_pairs(self, run: Path) -> dict[str, Any]:
        files = self.data / "blimp" / "*.jsonl*"
        scores = score_minimal_pairs(run, files, max_pairs=self.max_pairs)
        return {
            "score": scores.accuracy,
            "pairs": len(scores.pairs),
            "phenomena": scores.by_phenomenon,
        }

    def _fine_tuned(self, name: str, rate: float, run: Path, output: Path) -> dict[str, Any]:
        task = TASKS[name]
        words = [f"init_from={run}", f"max_length={self._max_length}"]
        words += [f"compute.dtype={self.dtype}"]
        words += ["dropout=0.0", "head_dropout=0.0", "evaluations_per_epoch=1"]
        words += [word.removeprefix("--config.") for word in self._files(name).overrides(task)]
        recipe = ROOT / f"configs/finetune/{task.recipe}.py"
        result = sweep(
            load_config(recipe, words, kind="finetune"),
            output,
            batch_sizes=(BATCH_SIZE,),
            learning_rates=(rate,),
            num_epochs=(1 if self.fast else EPOCHS[name],),
            num_seeds=1,
            keep="none",
        )
        if not result.finished:
            raise SystemExit(f"{output}: stopped. Repeat the command to resume")
        (each,) = result.results.runs
        return {
            "score": None if each.diverged else at_the_end(each, output)[result.results.metric],
            "metric": task.metric,
            "chance": result.results.chance,
        }

    def _files(self, name: str) -> Files:
        """Return a task's files; SST-2's training set is reduced to a fixed random sample."""
        task, work = TASKS[name], self.work / "data" / name
        work.mkdir(parents=True, exist_ok=True)
        with locked(work.with_suffix(".lock")):
            if name == "SST-2" and not self.fast:
                return sample_of(task, self.data, work, SENTENCES)
            return files_of(task, self.data, work, fast=self.fast)
