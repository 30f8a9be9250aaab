"""Compile the train step of one phase for devices that need not exist on this machine."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import jax
from jax.sharding import Mesh

from bert_jax.analysis.chips import Roofline, chip, peak_flops, roofline
from bert_jax.analysis.collectives import collectives
from bert_jax.pretraining.phases import random_batch
from bert_jax.pretraining.sections import PhaseConfig
from bert_jax.pretraining.step_setup import StepSetup
from bert_jax.training.planning import CompiledStep, OutOfMemory, compile_step, state_bytes

# Given the name of a step, returns a context manager to enter while the step is compiled.
WhileCompiling = Callable[[str], AbstractContextManager[object]]


@dataclass(frozen=True)
class PhasePlan:
    """A phase and its compiled step, or why the compiler refused it.

    state_bytes: parameters and optimizer on one device. model_flops: of a step, on all devices.
    """

    name: str
    phase: PhaseConfig
    pieces: int
    dtype: str
    state_bytes: int
    model_flops: int
    compile_seconds: float
    step: CompiledStep | None
    refused: OutOfMemory | None

    @property
    def memory(self) -> int:
        """Bytes a device needs."""
        if self.step is not None:
            return self.step.memory
        assert self.refused is not None
        return self.refused.needed

    def fits(self, limit: int | None) -> bool:
        """Whether a device with `limit` bytes can run it; None is no limit."""
        return self.step is not None and (limit is None or self.step.memory <= limit)

    def roofline(self, devices: list[jax.Device]) -> Roofline | None:
        """The bound of a step, or None where the chip's figures are not known."""
        known = chip(devices[0].device_kind)
        peak = peak_flops(devices[0].device_kind, self.dtype)
        if self.step is None or known is None or peak is None:
            return None
        traffic = collectives(self.step.text, len(devices)).values()
        return roofline(
            known,
            peak,
            # Rematerialisation makes the compiler's count the larger one, loops the smaller.
            flops=max(self.model_flops / len(devices), self.step.flops),
            memory_bytes=self.step.least_traffic,
            sent_bytes=sum(kind.sent for kind in traffic),
        )


def plan_phase(
    setup: StepSetup,
    mesh: Mesh,
    name: str,
    phase: PhaseConfig,
    pieces: int,
    *,
    joined: bool,
    while_compiling: WhileCompiling = nullcontext,
) -> PhasePlan:
    """Compile the train step of a phase.

    Args:
      pieces: the number of documents in a row.
      joined: whether the config joins the documents of a row.
      while_compiling: see `WhileCompiling`.
    """
    # One row has the shapes of the whole batch, which is never made.
    row = random_batch(
        phase.sequence_length,
        pieces,
        rows=1,
        vocab_size=setup.model.vocab_size,
        predictions=setup.max_predictions(phase),
        joined=joined,
    )
    batch = {
        field: jax.ShapeDtypeStruct((phase.batch_size, *array.shape[1:]), array.dtype)
        for field, array in row.items()
    }
    step = refused = None
    began = time.perf_counter()
    with while_compiling(f"{name} ({phase.batch_size} x {phase.sequence_length})"):
        try:
            step = compile_step(
                setup.trained_task,
                setup.transformation,
                mesh,
                batch,
                accumulation_steps=setup.accumulation_steps,
                teacher=None if setup.teacher is None else setup.teacher.teacher,
            )
        except OutOfMemory as error:
            refused = error
    return PhasePlan(
        name=name,
        phase=phase,
        pieces=pieces,
        dtype=setup.compute.dtype,
        state_bytes=state_bytes(setup.task.definition, setup.transformation, mesh),
        model_flops=setup.step_flops(phase, pieces),
        compile_seconds=time.perf_counter() - began,
        step=step,
        refused=refused,
    )
