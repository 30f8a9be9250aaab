"""Set up the accounting of a run's time, its heartbeat and its notifications."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import jax
from jax.sharding import Mesh

from bert_jax.analysis import chips
from bert_jax.goodput.ledger import Ledger
from bert_jax.training.distributed import lost_process
from bert_jax.training.heartbeat import Heartbeat
from bert_jax.training.notification import Notifier
from bert_jax.training.reports import OnReport, discard


def mesh_peak_flops(mesh: Mesh, dtype: str) -> float | None:
    """Return the peak FLOP/s of all devices in a mesh together; None if unknown."""
    peak = chips.peak_flops(mesh.devices.flat[0].device_kind, dtype)
    return peak * mesh.size if peak else None


def open_ledger(
    ledger: Ledger,
    work_dir: Path,
    closing: ExitStack,
    *,
    step: int,
    total_steps: int,
    mesh: Mesh,
    peak_flops: float | None,
    notify: str,
) -> OnReport:
    """Keep a run's ledger and heartbeat and send its notifications until `closing` ends.

    The ledger accounts for the run's time. The first process writes both files to the work
    directory; other processes do nothing.

    Args:
      ledger: accounts for the run's time.
      work_dir: the run's work directory.
      closing: the exit stack that closes the ledger.
      step: the step that the run resumes from; 0 if it starts from scratch.
      total_steps: the number of optimizer steps in the whole run.
      mesh: the device mesh.
      peak_flops: the peak FLOP/s of all devices together; None if unknown.
      notify: the command to run when the run starts, ends, diverges or fails; "" for none.

    Returns:
      A function to call with every report, which sends a notification if the run has diverged.
    """
    if jax.process_index() != 0:
        return discard
    opened = ledger.open(
        work_dir,
        step=step,
        total_steps=total_steps,
        peak_flops=peak_flops,
        devices=f"{mesh.size} x {mesh.devices.flat[0].device_kind}",
        processes=jax.process_count(),
        explain=lost_process,
    )
    closing.enter_context(opened)
    notifier = Notifier(notify, ledger, work_dir, total_steps)
    closing.enter_context(notifier.notifying())
    closing.enter_context(Heartbeat(ledger, work_dir, total_steps).beating())
    return notifier
