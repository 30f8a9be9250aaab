"""Run jobs that can be stopped and resumed, in one process or in several at the same time.

Every job has a results file and a lock. A process skips jobs that are finished or that another
process is running. At the end, it waits for the jobs that are still running, and it takes over a
job if the process that was running it is killed.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from commands import locked

from bert_jax.files import write_file
from bert_jax.json_files import read_json_object
from bert_jax.processes import accelerators_possible
from bert_jax.validation import differences


@dataclass(frozen=True)
class Job:
    """A measurement.

    name: the name of the job in messages.
    output: the JSON file for the results.
    recipe: the settings that determine the results.
    measure: the function that computes the results; it resumes a job that was stopped.
    """

    name: str
    output: Path
    recipe: dict[str, Any]
    measure: Callable[[], dict[str, Any]]

    def result(self) -> dict[str, Any] | None:
        """Return the results, or None if the job is not finished; exit if its recipe differs."""
        try:
            content = read_json_object(self.output)
        except FileNotFoundError:
            return None
        if not self.started and not self.output.is_file():
            return None  # Another process has just removed the results; see `forget`.
        self._check_recipe()
        return content

    def run(self) -> None:
        """Run the measurement and write its results, unless they already exist.

        The recipe is written first, so that a stopped job cannot resume with a different one.
        """
        if self.result() is not None:
            return
        began = time.monotonic()
        if not self.started:
            write_file(self._recipe_file, json.dumps(self.recipe, indent=1) + "\n")
        self._check_recipe()
        print(f"{self.name}: started", flush=True)
        write_file(self.output, json.dumps(self.measure(), indent=1) + "\n")
        print(f"{self.name}: finished after {time.monotonic() - began:.1f} s", flush=True)

    @property
    def recipe_hash(self) -> str:
        """The SHA-256 of the recipe, which identifies it in published results."""
        return hashlib.sha256(json.dumps(self.recipe, sort_keys=True).encode()).hexdigest()

    @contextmanager
    def locked(self, *, wait: bool) -> Iterator[bool]:
        """Lock the job, and yield whether it was locked; see `commands.locked`."""
        self.output.parent.mkdir(parents=True, exist_ok=True)
        with locked(self.output.with_name(f"{self.output.stem}.lock"), wait=wait) as acquired:
            yield acquired

    def adopt(self, result: Mapping[str, Any]) -> None:
        """Write published results as if they had been measured."""
        # Until the recipe is written, the run does not count as started.
        write_file(self.output, json.dumps(result, indent=1) + "\n")
        write_file(self._recipe_file, json.dumps(self.recipe, indent=1) + "\n")

    def forget(self) -> None:
        """Remove the results, so that the job can be run again."""
        self.output.unlink(missing_ok=True)
        self._recipe_file.unlink(missing_ok=True)

    @property
    def started(self) -> bool:
        """Whether the job was started, or published results were adopted."""
        return self._recipe_file.is_file()

    @property
    def _recipe_file(self) -> Path:
        return self.output.with_name(f"{self.output.stem}.recipe.json")

    def _check_recipe(self) -> None:
        """Exit if the job was started with a different recipe, or if its recipe is missing."""
        file = self._recipe_file
        if not file.is_file():
            raise SystemExit(
                f"{file}: is missing, so the settings of {self.output.name} are unknown. "
                f"Use another --work folder, or remove {self.output.parent}"
            )
        stored, current = read_json_object(file), json.loads(json.dumps(self.recipe))
        if stored != current:
            raise SystemExit(
                f"{self.output.with_suffix('')}: was started with different settings "
                f"({'; '.join(differences(stored, current))}). Repeat the command with the "
                f"original settings, use another --work folder, or remove {self.output.parent}"
            )


def run_all(jobs: Sequence[Job]) -> list[dict[str, Any]]:
    """Run all unfinished jobs, wait for jobs in other processes, and return all results."""
    run_available(jobs)
    for job in jobs:
        with job.locked(wait=True):
            job.run()
    return [required(job) for job in jobs]


def run_available(jobs: Sequence[Job]) -> None:
    """Run all unfinished jobs that no other process is running."""
    for job in jobs:
        with job.locked(wait=False) as acquired:
            if acquired:
                job.run()


def required(job: Job) -> dict[str, Any]:
    """Return the results of a job; exit if it is not finished."""
    result = job.result()
    if result is None:
        raise SystemExit(f"{job.name}: not finished. Run the same command without --steps")
    return result


class Published(NamedTuple):
    """The published results of a job, and the hash of the recipe with which they were measured."""

    job: Job
    result: Mapping[str, Any]
    recipe_hash: str


def adopt(run: Published, scores: Sequence[Published]) -> bool:
    """Adopt the published results of a run, together with all of its scores.

    A run that was started in this folder keeps its own results, since the published scores belong
    to another model.

    Args:
      run: the results of the run.
      scores: the results of the jobs that score its model.

    Returns:
      Whether the results were adopted.
    """
    for published in (run, *scores):
        if published.recipe_hash != published.job.recipe_hash:
            raise SystemExit(
                f"{published.job.name}: the published results have different settings. Use the "
                "options, the data and the version of the code with which they were measured"
            )
    with run.job.locked(wait=False) as acquired:
        if not acquired or run.job.started:
            return False
        # If this is interrupted, the run does not count as started, and adopting can be repeated.
        for published in (*scores, run):
            published.job.adopt(published.result)
        return True


def in_parallel(number: int, words: Sequence[str], environment: Mapping[str, str]) -> None:
    """Run copies of a Python command; stop all of them if one fails or on SIGTERM.

    Exit with an error if any copy fails.

    Without an accelerator, every copy gets its own share of the cores, since copies that compete
    for the same cores are slower. If there are more copies than cores, some copies share a core.
    """
    variables = {**os.environ, **environment}
    copies: list[subprocess.Popen[bytes]] = []
    stopped_by_user = False

    def stop(*_: object) -> None:
        nonlocal stopped_by_user
        stopped_by_user = True

    before = signal.signal(signal.SIGTERM, stop)
    try:
        for share in range(number):
            with _share_of_cores(share, number):
                copies.append(subprocess.Popen([sys.executable, *words], env=variables))
        failed: list[int] = []
        while not (failed or stopped_by_user) and any(copy.poll() is None for copy in copies):
            time.sleep(0.1)
            failed = [copy.returncode for copy in copies if copy.poll()]
    finally:
        for copy in copies:
            copy.terminate()
        codes = [copy.wait() for copy in copies]
        signal.signal(signal.SIGTERM, before)
    if stopped_by_user:
        raise SystemExit("stopped. Repeat the command to resume")
    # Copies that were stopped because of another one also have exit codes.
    failed = failed or [code for code in codes if code]
    if failed:
        raise SystemExit(
            f"--parallel={number}: a process failed with exit code {failed[0]}. Correct the error "
            "that it printed"
        )


@contextmanager
def _share_of_cores(share: int, number: int) -> Iterator[None]:
    """Restrict processes started in this context to one of `number` shares of the cores.

    This has no effect if JAX may find an accelerator or the system cannot pin processes.
    """
    if accelerators_possible() or not hasattr(os, "sched_setaffinity"):
        yield
        return
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, cores[share::number] or [cores[share % len(cores)]])
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)
