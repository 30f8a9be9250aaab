"""Tune the learning rates, and pretrain the variants at equal FLOPs."""

from __future__ import annotations

import datetime
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
from jobs import Job, required
from ml_collections import ConfigDict
from variants import (
    REFERENCE,
    TUNED_WITH,
    VARIANTS,
    Cost,
    Places,
    Run,
    Settings,
    Variant,
    config_of,
    cost_of,
    phase_steps,
)

from bert_jax import pretrain
from bert_jax.corpus.manifest import Manifest
from bert_jax.recipes.load import load_config
from bert_jax.runs.runtime import hardware, versions
from bert_jax.training.evaluation import TrainingDiverged
from bert_jax.training.metrics_log import LOG_NAME, read_metrics
from bert_jax.training.reports import EvaluationReport, Report
from bert_jax.training.sharding import MeshConfig, make_mesh

# The seed of the runs that tune the learning rates. No other run uses it.
TUNING_SEED = 1_000


@dataclass(frozen=True)
class Laboratory:
    """The inputs and settings that all pretraining runs share.

    work: the folder for the runs.
    corpora: the folder that contains the corpora.
    manifests: the manifest of each corpus, keyed by the length of its rows.
    settings: the settings of the runs.
    tuning_fraction: the length of the runs that tune learning rates, as a fraction of a full run.
    learning_rates: the learning rates to try, keyed by the name of the optimizer.
    num_workers: the number of processes that make batches for a run.
    """

    work: Path
    corpora: Path
    manifests: Mapping[int, Manifest]
    settings: Settings
    tuning_fraction: float
    learning_rates: Mapping[str, Sequence[float]]
    num_workers: int

    @cached_property
    def costs(self) -> dict[str, Cost]:
        """The cost of a training step of each variant, keyed by the variant's name."""
        documents_per_row = {
            length: manifest.max_fragments for length, manifest in self.manifests.items()
        }
        one_step_each = (1,) * len(self.settings.lengths)
        return {
            name: cost_of(
                self._config(Run(variant, 0, 1e-3, 1e-3, one_step_each), Path("run")),
                documents_per_row,
            )
            for name, variant in VARIANTS.items()
        }

    def num_steps(self, variant: Variant) -> int:
        """Return the number of steps whose model FLOPs are closest to a variant's budget."""
        steps = self._phase_steps(self.settings.reference_steps)
        budget = self.costs[REFERENCE.name].model_flops(steps)
        return self.costs[variant.name].steps_for(variant.budget * budget)

    def tuning_jobs(self, optimizer: str) -> dict[float, Job]:
        """Return the tuning jobs of an optimizer, keyed by the learning rate.

        These runs have only one phase, since they are too short for two.
        The result is empty if there is only one rate, since a single rate needs no tuning.
        """
        rates = self.learning_rates[optimizer]
        if len(rates) == 1:
            return {}
        variant = TUNED_WITH[optimizer]
        steps = max(1, round(self.tuning_fraction * self.num_steps(variant)))
        jobs = {}
        for rate in rates:
            name, adamw_rate = f"{optimizer}-{rate:g}", self._adamw_rate(optimizer, rate)
            if optimizer != REFERENCE.optimizer:
                name += f"-adamw-{adamw_rate:g}"
            run = Run(variant, TUNING_SEED, rate, adamw_rate, (steps,))
            jobs[rate] = self._job(f"{optimizer} at {rate:g}", self.work / "tuning" / name, run)
        return jobs

    def is_tuned(self, optimizer: str) -> bool:
        """Return whether all runs that tune an optimizer's learning rate are finished.

        Muon's runs use the tuned learning rate of AdamW.
        """
        if optimizer != REFERENCE.optimizer and not self.is_tuned(REFERENCE.optimizer):
            return False
        return all(job.result() is not None for job in self.tuning_jobs(optimizer).values())

    def tuned_rate(self, optimizer: str) -> float:
        """Return the learning rate with the lowest loss; exit if tuning is not finished."""
        rates = self.learning_rates[optimizer]
        if len(rates) == 1:
            return rates[0]
        losses = self.tuning_losses(optimizer)
        finite = {rate: loss for rate, loss in losses.items() if loss is not None}
        if not finite:
            tried = " ".join(f"{rate:g}" for rate in rates)
            raise SystemExit(f"--{optimizer}-rates={tried}: all runs diverged. Use lower rates")
        return min(finite, key=finite.__getitem__)

    def tuning_losses(self, optimizer: str) -> dict[float, float | None]:
        """Return the final held-out loss of each tuning job; None if the run diverged."""
        return {rate: required(job)["loss"] for rate, job in self.tuning_jobs(optimizer).items()}

    def training_job(self, name: str, seed: int) -> Job:
        """Return the job that pretrains a variant with the given seed."""
        variant = VARIANTS[name]
        rate = self.tuned_rate(variant.optimizer)
        adamw_rate = self._adamw_rate(variant.optimizer, rate)
        run = Run(variant, seed, rate, adamw_rate, self._phase_steps(self.num_steps(variant)))
        return self._job(f"{name}, seed {seed}", self.directory(name, seed), run)

    def directory(self, name: str, seed: int) -> Path:
        """Return the folder of a pretraining run, which contains its work directory, "run"."""
        return self.work / f"runs/{name}-{seed}"

    def _adamw_rate(self, optimizer: str, rate: float) -> float:
        """Return the learning rate of the parameters that AdamW updates."""
        reference = REFERENCE.optimizer
        return rate if optimizer == reference else self.tuned_rate(reference)

    def _phase_steps(self, num_steps: int) -> tuple[int, ...]:
        return phase_steps(num_steps, len(self.settings.lengths))

    def _job(self, name: str, directory: Path, run: Run) -> Job:
        values = self._config(run, directory / "run")
        recipe = {
            "config": config_of(run, self.settings, self._places(Path("run"), Path("corpora"))),
            "corpora": [manifest.fingerprint for manifest in self.manifests.values()],
        }
        return Job(
            name, directory / "pretrained.json", recipe, lambda: self._measured(name, run, values)
        )

    def _measured(self, name: str, run: Run, values: dict[str, Any]) -> dict[str, Any]:
        work_dir = Path(values["work_dir"])
        config = load_config(ConfigDict(values), kind="pretrain")
        try:
            finished = pretrain(config, on_report=_reporter(name)).finished
            diverged = ""
        except TrainingDiverged as error:
            finished, diverged = True, str(error)
        if not finished:
            raise SystemExit(f"{name}: stopped. Repeat the command to resume")
        cost = self.costs[run.variant.name]
        entries = read_metrics(work_dir / LOG_NAME)
        train = [entry for entry in entries if entry["kind"] == "train"]
        speeds = [entry["tokens_per_second"] for entry in train if not entry["compiling"]]
        curve = [
            (entry["step"], entry["mlm_loss"])
            for entry in entries
            if entry["kind"] == "evaluation" and entry["mlm_loss"] is not None
        ]
        return {
            "diverged": diverged,
            "loss": None if diverged else curve[-1][1],
            "learning_rate": run.learning_rate,
            "steps": run.num_steps,
            "phase_steps": run.phase_steps,
            "tokens": run.num_steps * self.settings.batch_tokens,
            "flops": cost.model_flops(run.phase_steps),
            "phase_flops": cost.phase_flops,
            "muon_flops": run.num_steps * cost.muon_flops,
            "parameters": cost.parameters,
            "seconds": sum(entry["seconds"] for entry in train),
            "tokens_per_second": statistics.median(speeds) if speeds else None,
            "curve": curve,
            "date": datetime.date.today().isoformat(),
            "hardware": hardware(make_mesh(MeshConfig(), jax.devices()[:1])),
            "versions": versions(),
        }

    def _config(self, run: Run, work_dir: Path) -> dict[str, Any]:
        places = self._places(work_dir, self.corpora)
        return config_of(run, self.settings, places, self.num_workers)

    def _places(self, work_dir: Path, corpora: Path) -> Places:
        (vocab_size,) = {manifest.vocab_size for manifest in self.manifests.values()}
        return Places(work_dir, corpora, vocab_size)


def _reporter(name: str) -> Callable[[Report], None]:
    def show(report: Report) -> None:
        if isinstance(report, EvaluationReport):
            print(f"{name}: {report}", flush=True)

    return show
