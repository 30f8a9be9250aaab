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
# The maximum number of tokens in an example; longer ones are truncated.
MAX_LENGTH = 64


@dataclass(frozen=True)
class Scorer:
    """A scorer for pretrained models.

    data: the folder with the data sets.
    work: the folder for the runs.
    corpora: the corpora whose held-out sets are used for scoring, one for each row length.
    max_pairs: the number of minimal pairs from each paradigm.
    learning_rates: the learning rates for fine-tuning; only the best score is reported.
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
                name,
                self._task_settings(name),
                lambda name=name: self._fine_tuned(name, run, directory / "sweeps" / name),
            )
            for name in EPOCHS
        ]
        held_out = job(HELD_OUT, {}, lambda: self._on_held_out_text(run))
        pairs = {"max_pairs": self.max_pairs}
        further = [job(BLIMP, pairs, lambda: self._on_minimal_pairs(run)), *tasks]
        return [held_out, *(further if everything else ())]

    def _task_settings(self, name: str) -> dict[str, Any]:
        """Return the settings that determine a task's score."""
        settings = {"learning_rates": list(self.learning_rates), "dtype": self.dtype}
        settings |= {"epochs": EPOCHS[name], "batch_size": BATCH_SIZE, "length": MAX_LENGTH}
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

    def _fine_tuned(self, name: str, run: Path, output: Path) -> dict[str, Any]:
        task = TASKS[name]
        words = [f"init_from={run}", f"max_length={MAX_LENGTH}", f"compute.dtype={self.dtype}"]
        words += ["dropout=0.0", "head_dropout=0.0", "evaluations_per_epoch=1"]
        words += [word.removeprefix("--config.") for word in self._files(name).overrides(task)]
        recipe = ROOT / f"configs/finetune/{task.recipe}.py"
        result = sweep(
            load_config(recipe, words, kind="finetune"),
            output,
            batch_sizes=(BATCH_SIZE,),
            learning_rates=self.learning_rates,
            num_epochs=(1 if self.fast else EPOCHS[name],),
            num_seeds=1,
            keep="none",
        )
        if not result.finished:
            raise SystemExit(f"{output}: stopped. Repeat the command to resume")
        metric = result.results.metric
        by_rate = {
            each.hyperparameters.learning_rate: None
            if each.diverged
            else at_the_end(each, output)[metric]
            for each in result.results.runs
        }
        scores = [score for score in by_rate.values() if score is not None]
        return {
            "score": max(scores) if scores else None,
            "metric": task.metric,
            "by_learning_rate": {f"{rate:g}": score for rate, score in by_rate.items()},
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
