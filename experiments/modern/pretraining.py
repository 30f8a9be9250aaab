"""Tune the learning rates, and pretrain the variants at equal FLOPs."""

from __future__ import annotations

import datetime
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from jobs import Job, required
from ml_collections import ConfigDict
from variants import (
    REFERENCE,
    VARIANTS,
    Cost,
    Places,
    Run,
    Settings,
    Variant,
    config_of,
    cost_of,
    phase_steps,
    tuned_with,
)

from bert_jax import pretrain
from bert_jax.corpus.manifest import Manifest
from bert_jax.recipes.load import load_config
from bert_jax.runs.runtime import hardware, versions
from bert_jax.training.evaluation import TrainingDiverged
from bert_jax.training.metrics_log import LOG_NAME, read_metrics
from bert_jax.training.reports import EvaluationReport, Report
from bert_jax.training.sharding import make_mesh

# The seed of the trials. The trial with the best learning rate is also the result for this seed.
TRIAL_SEED = 0


@dataclass(frozen=True)
class Laboratory:
    """The inputs and settings that all pretraining runs share.

    work: the folder for the runs.
    corpora: the folder that contains the corpora.
    manifests: the manifest of each corpus, keyed by the length of its rows.
    settings: the settings of the runs.
    learning_rates: the learning rates to try, keyed by the name of the variant that is tuned.
    num_workers: the number of processes that make batches for a run.
    """

    work: Path
    corpora: Path
    manifests: Mapping[int, Manifest]
    settings: Settings
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

    def trials(self, name: str) -> dict[float, Job]:
        """Return the jobs that tune a variant's learning rate, keyed by the rate.

        They are complete runs. The result is empty if there is only one rate, since a single rate
        needs no tuning.
        """
        rates = self.learning_rates[name]
        return {rate: self._job(name, TRIAL_SEED, rate) for rate in rates} if rates[1:] else {}

    def is_tuned(self, name: str) -> bool:
        """Return whether all trials of a variant are finished, and at least one did not diverge.

        Trials with Muon use the tuned learning rate of AdamW.
        """
        variant = VARIANTS[name]
        if name != variant.base and not self.is_tuned(variant.base):
            return False
        trials = [job.result() for job in self.trials(name).values()]
        return not trials or (
            None not in trials and any(not trial["diverged"] for trial in trials if trial)
        )

    def tuned_rate(self, name: str) -> float:
        """Return the learning rate with the lowest loss; exit if tuning is not finished."""
        rates = self.learning_rates[name]
        if len(rates) == 1:
            return rates[0]
        losses = self.trial_losses(name)
        finite = {rate: loss for rate, loss in losses.items() if loss is not None}
        if not finite:
            tried = ",".join(f"{rate:g}" for rate in rates)
            raise SystemExit(
                f"--learning-rates {name}={tried}: all trials diverged. Use lower rates"
            )
        return min(finite, key=finite.__getitem__)

    def trial_losses(self, name: str) -> dict[float, float | None]:
        """Return the final held-out loss of each of a variant's trials; None if it diverged."""
        return {rate: required(job)["loss"] for rate, job in self.trials(name).items()}

    def training_job(self, name: str, seed: int) -> Job:
        """Return the job that pretrains a variant with the given seed."""
        return self._job(name, seed, self.tuned_rate(tuned_with(VARIANTS[name])))

    def _job(self, name: str, seed: int, rate: float) -> Job:
        """Return the job that pretrains a variant with the given seed and learning rate."""
        variant = VARIANTS[name]
        folder, adamw_rate = f"{name}-{rate:g}", rate
        if variant.optimizer != "adamw":
            adamw_rate = self.tuned_rate(variant.base)
            folder += f"-adamw-{adamw_rate:g}"
        directory = self.work / "runs" / f"{folder}-{seed}"
        steps = self._phase_steps(self.num_steps(variant))
        run = Run(variant, seed, rate, adamw_rate, steps)
        values = self._config(run, directory / "run")
        recipe = {
            "config": config_of(run, self.settings, self._places(Path("run"), Path("corpora"))),
            "corpora": [manifest.fingerprint for manifest in self.manifests.values()],
        }
        title = f"{name} at {rate:g}, seed {seed}"
        return Job(
            title, directory / "pretrained.json", recipe, lambda: self._measured(title, run, values)
        )

    def _phase_steps(self, num_steps: int) -> tuple[int, ...]:
        return phase_steps(num_steps, len(self.settings.lengths))

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
        evaluations = [
            entry
            for entry in entries
            if entry["kind"] == "evaluation" and entry["mlm_loss"] is not None
        ]
        curve = [(entry["step"], entry["mlm_loss"]) for entry in evaluations]
        return {
            "diverged": diverged,
            "loss": None if diverged else curve[-1][1],
            "next_sentence_accuracy": None if diverged else evaluations[-1]["nsp_accuracy"],
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
            "hardware": hardware(make_mesh(config.mesh)),
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
