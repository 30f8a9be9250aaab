"""Open a run's goodput ledger with the facts about its devices."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import jax
from jax.sharding import Mesh

from bert_jax.analysis.chips import peak_flops
from bert_jax.goodput.ledger import Ledger


def mesh_peak_flops(mesh: Mesh, dtype: str) -> float | None:
    """Return the peak FLOP/s of all devices in a mesh together; None if unknown."""
    peak = peak_flops(mesh.devices.flat[0].device_kind, dtype)
    return peak * mesh.size if peak else None


def open_ledger(
    ledger: Ledger,
    work_dir: Path,
    closing: ExitStack,
    *,
    step: int,
    total_steps: int,
    mesh: Mesh,
    dtype: str,
) -> None:
    """Write a ledger to the work directory until `closing` ends, on the first process only.

    Args:
      ledger: the ledger.
      work_dir: the run's work directory.
      closing: the exit stack that closes the ledger.
      step: the step that the run resumes from; 0 if it starts from scratch.
      total_steps: the number of optimizer steps in the whole run.
      mesh: the device mesh.
      dtype: the dtype that the run computes in.
    """
    if jax.process_index() != 0:
        return
    opened = ledger.open(
        work_dir,
        step=step,
        total_steps=total_steps,
        peak_flops=mesh_peak_flops(mesh, dtype),
        devices=f"{mesh.size} x {mesh.devices.flat[0].device_kind}",
        processes=jax.process_count(),
    )
    closing.enter_context(opened)
