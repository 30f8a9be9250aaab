"""Save a run's checkpoints atomically, and restore them only into the run they belong to."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import jax
from orbax.checkpoint import v1 as ocp

from bert_jax.local_paths import local_path
from bert_jax.training.agreement import on_all_processes
from bert_jax.training.checkpoint_checksums import CHECKSUMS_MARK, INTERIM_MARK, flush, is_interim
from bert_jax.training.checkpoint_files import (
    CheckpointConfig,
    EvaluatedLater,
    NeededToRollBack,
    RollbackTargets,
    newest_intact_step,
    require_identity,
    steps_in,
)
from bert_jax.training.checkpoint_parameters import (
    cause_of,
    context_for,
    require_intact_everywhere,
    saving_context,
)
from bert_jax.training.checkpoint_state import load_state, parts_of, restored
from bert_jax.training.distributed import agreed
from bert_jax.training.state import TrainState

# If multiple devices hold the same array, each of them writes a part of it. Parts have at least
# this size, because splitting every bias and scale would take longer than writing it as a whole. A
# square kernel in BERT-base is split into 256 parts.
_PART_BYTES = 1 << 12


class CheckpointNotSaved(OSError):
    """A checkpoint could not be written, but earlier checkpoints are intact."""


class Mirror(Protocol):
    """Copies the files of a run to another place in the background."""

    @property
    def divided(self) -> bool:
        """Whether every process has its own directory, and copies its part of each checkpoint."""
        ...

    def saved(self, step: int) -> None:
        """Start to copy the checkpoint at `step`, which is complete, and all other files."""
        ...

    def raise_if_failed(self, *, wait: bool = False) -> None:
        """Raise an error if copying failed; if `wait` is set, wait for copies in progress first."""
        ...


class Checkpointer:
    """Saves one run's checkpoints in the background, and restores them.

    Args:
      directory: the directory that holds the checkpoints.
      config: determines which checkpoints to keep.
      identity: the values that identify this run (model, corpus, tokenizer, ...), as plain JSON
        values that may be nested. They are stored with every checkpoint and compared when it is
        restored.
      evaluated_later: returns whether to keep the checkpoint at a given step even if it was saved
        without metrics. If a run was stopped when an evaluation was due, its last checkpoint may
        turn out to be the best.
      verified: the step whose files `recover` has just verified, so that `restore` does not verify
        them again.
      mirror: copies checkpoints when they are complete; None for no copies. If a run with several
        processes has a mirror, each process has its own directory.
    """

    def __init__(
        self,
        directory: Path,
        config: CheckpointConfig,
        identity: Mapping[str, Any],
        evaluated_later: Callable[[int], bool] = lambda step: False,
        verified: int | None = None,
        mirror: Mirror | None = None,
    ):
        self._mirror = mirror
        self._divided = mirror is not None and mirror.divided
        # Whether this process has its own directory, or is the first of those that share one.
        self._writes_directory = self._divided or jax.process_index() == 0
        self._identity = json.loads(json.dumps(identity))
        self._best_metric = config.best_metric if config.keep_best else None
        self._directory = local_path(directory).absolute()
        self._verified = verified
        self._save: _Save | None = None
        self._failed: int | None = None  # the step that could not be saved
        self._rollback_targets: RollbackTargets | None = None
        self._checkpointer = ocp.training.Checkpointer(
            self._directory,
            context=context_for(divided=self._divided),
            save_decision_policy=ocp.training.save_decision_policies.AnySavePolicy([]),
            preservation_policy=_preservation(
                config,
                evaluated_later,
                NeededToRollBack(self._is_interim, lambda: self._rollback_targets),
            ),
            # If a save is killed, it leaves behind a directory with a temporary name. This
            # directory is never read.
            cleanup_tmp_directories=True,
        )
        # Orbax calls this only for logging, in its own thread and only on the first process. The
        # default implementation passes the step being saved to JAX, which would mistake it for the
        # step that this process has reached.
        self._checkpointer._manager.reached_preemption = lambda step: False

    def __enter__(self) -> Checkpointer:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            self.close()
        except CheckpointNotSaved:
            # If `kind` is set, another error is already ending the run and must not be replaced.
            if kind is None:
                raise

    def close(self) -> None:
        """Wait for any save in progress, then release Orbax's threads.

        Raises:
          CheckpointNotSaved: the save failed.
        """
        try:
            self._checkpointer.close()
        except Exception as error:
            if self._failed is None:  # otherwise, Orbax repeats an error that was already raised
                raise self._not_saved(error) from error
        # Remove the unfinished checkpoint again, since other Orbax threads may have kept writing
        # until now.
        self._remove_unfinished()
        if self._save is not None:
            self._saved()

    def latest_step(self) -> int | None:
        """Return the step of the newest complete checkpoint, or None if there is none yet."""
        return _agreed_step(self._checkpointer)

    def latest_was_evaluated(self) -> bool:
        """Return whether the newest complete checkpoint was saved with held-out metrics."""
        latest = self._checkpointer.latest
        return bool(agreed(latest is not None and bool(latest.metrics)))

    def save(
        self,
        state: TrainState,
        metrics: Mapping[str, float] | None,
        *,
        rollback_targets: RollbackTargets | None = None,
        interim: bool = False,
    ) -> None:
        """Start saving `state` as a checkpoint in the background.

        The checkpoint is named after the state's step, but gets this name only once all of its
        files, including the checksums, are on disk.

        Args:
          state: the state to save.
          metrics: the state's held-out metrics, for `keep_best`; None if it was not evaluated.
          rollback_targets: the checkpoints to which the run might roll back; None if it would not
            roll back. They are kept (see `NeededToRollBack`).
          interim: whether the checkpoint is saved only because the run is interrupted. The run
            never rolls back to such a checkpoint, so that its result does not depend on
            interruptions.

        Raises:
          ValueError: `best_metric` is not among `metrics`.
          CheckpointNotSaved: the directory was removed or cannot be written to, or the previous
            save failed.
        """
        if metrics and self._best_metric and self._best_metric not in metrics:
            raise ValueError(
                f"checkpoint.best_metric={self._best_metric!r} is not a held-out metric of this "
                f"run. Choose one of {', '.join(sorted(metrics))}, or set checkpoint.keep_best=0."
            )
        step = int(state.step)
        self.raise_if_failed(wait=True)
        self._rollback_targets = rollback_targets
        self._save = _Save(step)
        if not self._directory.is_dir():  # Orbax would recreate it
            raise self._not_saved(FileNotFoundError(self._directory))
        mark = {INTERIM_MARK: True} if interim else {}
        metadata = {"identity": self._identity, CHECKSUMS_MARK: True, **mark}
        context = saving_context(self._directory, step, metadata, divided=self._divided)
        context.array.saving.min_slice_bytes_for_replica_parallel = _PART_BYTES
        try:
            with context:
                self._save.response = self._checkpointer.save_checkpointables_async(
                    step,
                    parts_of(state),
                    force=True,
                    metrics=dict(metrics) if metrics else None,
                    custom_metadata=metadata,
                )
        except Exception as error:
            raise self._not_saved(error) from error

    def raise_if_failed(self, *, wait: bool = False) -> None:
        """Raise an error if the save in progress has failed.

        The check is cheap enough to be made at every step.

        Args:
          wait: whether to wait for the save, and for the mirror's copy of it, to finish. If so, all
            processes must call this together.

        Raises:
          CheckpointNotSaved: the save failed; the message names the checkpoint, the cause and the
            newest intact step.
          FailedElsewhere: saving or copying failed on another process with its own directory.
          OSError: the mirror failed.
        """
        if wait and self._divided:
            # A mirror waits for the parts of all processes, but a process whose save fails copies
            # no part. Therefore, all processes first find out whether any save failed.
            on_all_processes(lambda: self._raise_if_not_saved(wait=True))
            on_all_processes(lambda: self._raise_if_not_copied(wait=True))
        else:
            self._raise_if_not_saved(wait=wait)
            self._raise_if_not_copied(wait=wait)

    def _raise_if_not_saved(self, *, wait: bool) -> None:
        if self._save is not None and self._save.response is not None:
            self._check_save(wait=wait)

    def _raise_if_not_copied(self, *, wait: bool) -> None:
        if self._mirror is not None:
            self._mirror.raise_if_failed(wait=wait)

    def _check_save(self, *, wait: bool) -> None:
        assert self._save is not None and self._save.response is not None
        try:
            self._save.response.result(timeout=None if wait else 0)
        except TimeoutError as error:
            # Without a message, the error only means that the save is still running. A
            # TimeoutError raised by Orbax itself has a message.
            if not (wait or error.args):
                return
            raise self._not_saved(error) from error
        except Exception as error:
            raise self._not_saved(error) from error
        self._saved()

    def _saved(self) -> None:
        assert self._save is not None
        if self._writes_directory:
            try:
                flush(self._directory / str(self._save.step))
            except OSError as error:
                raise self._not_saved(error) from error
        step, self._save = self._save.step, None
        if self._mirror is not None:
            self._mirror.saved(step)

    def _not_saved(self, error: Exception) -> CheckpointNotSaved:
        assert self._save is not None, "only a save can fail"
        step = self._failed = self._save.step
        self._save = None
        if not self._directory.is_dir():
            return CheckpointNotSaved(
                f"{self._directory}: the directory was removed during the run, so step {step} "
                "cannot be saved. Restore the work directory, or start over."
            )
        self._remove_unfinished()
        intact = newest_intact_step(self._directory)
        newest = (
            "it has no intact checkpoint"
            if intact is None
            else f"its newest intact checkpoint is step {intact}"
        )
        return CheckpointNotSaved(
            f"{self._directory / str(step)}: the checkpoint cannot be saved: {cause_of(error)}. "
            f"The run has stopped; {newest}. Fix the cause, such as a full disk, and run the same "
            "command again to resume."
        )

    def _remove_unfinished(self) -> None:
        """Remove a partially saved checkpoint, which would otherwise keep the disk full."""
        if self._failed is not None and self._writes_directory:
            for path in self._directory.glob(f"{self._failed}.orbax-checkpoint-tmp*"):
                shutil.rmtree(path, ignore_errors=True)

    def restore(self, abstract: TrainState) -> TrainState:
        """Restore the newest checkpoint with the shapes, dtypes and shardings of `abstract`.

        Raises:
          DamagedCheckpoint: a file differs from what was saved; the message names the file.
          OSError: the checkpoint is intact but cannot be loaded.
          ValueError: the checkpoint belongs to a different model, corpus, tokenizer or optimizer;
            the message lists the differences.
        """
        newest = self.latest_step()
        assert newest is not None
        if newest != self._verified:
            require_intact_everywhere(self._directory, newest)
        self.check_identity()
        return restored(self._directory, newest, abstract)

    def load(self, step: int, abstract: TrainState) -> TrainState:
        """Return the state in an earlier checkpoint of this run; see `load_state`."""
        return load_state(self._directory, step, abstract)

    def step_to_roll_back_to(self, targets: RollbackTargets, last: int) -> int | None:
        """Return the step of the newest checkpoint to which the run may roll back.

        If there is none, return the step of the oldest permitted checkpoint that is not after
        `last`, or None if there is none of these either. Checkpoints that were saved because of an
        interruption are not considered. All processes must call this together.
        """
        steps = [step for step in steps_in(self._directory) if not self._is_interim(step)]
        chosen = targets.newest(steps)
        if chosen is None:
            chosen = min((step for step in targets.permitted(steps) if step <= last), default=-1)
        step = agreed(chosen)
        return None if step < 0 else step

    def _is_interim(self, step: int) -> bool:
        return is_interim(self._directory / str(step))

    def check_identity(self) -> None:
        """Check that the newest checkpoint belongs to this run.

        Raises:
          ValueError: the checkpoint belongs to another run; the message lists the differences.
        """
        newest = self.latest_step()
        assert newest is not None, "no checkpoint yet"
        require_identity(self._directory, newest, self._identity)


class _Save:
    """The save in progress."""

    def __init__(self, step: int) -> None:
        self.step = step
        self.response: Any = None


def _agreed_step(checkpointer: ocp.training.Checkpointer) -> int | None:
    """Return the step of the newest complete checkpoint that the first process sees, or None."""
    latest = checkpointer.latest
    step = agreed(-1 if latest is None else latest.step)
    return None if step < 0 else step


def _preservation(
    config: CheckpointConfig,
    evaluated_later: Callable[[int], bool],
    needed_to_roll_back: NeededToRollBack,
) -> Any:
    policies = ocp.training.preservation_policies
    kept: list[Any] = [policies.LatestN(config.keep_last), EvaluatedLater(evaluated_later)]
    kept.append(needed_to_roll_back)
    if config.keep_every:
        kept.append(policies.EveryNSteps(config.keep_every))
    if config.keep_best:
        best, sign = config.best_metric, -1.0 if config.lower_is_better else 1.0
        kept.append(
            policies.BestN(
                # Checkpoints that were saved before the metric was added to the run do not have it.
                get_metric_fn=lambda metrics: (
                    sign * metrics[best] if best in metrics else -math.inf
                ),
                n=config.keep_best,
                keep_checkpoints_without_metrics=False,
            )
        )
    return policies.AnyPreservationPolicy(kept)
