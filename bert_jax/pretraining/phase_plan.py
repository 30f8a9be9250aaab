"""Compile a phase's train step for real or hypothetical devices, and estimate its time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import jax
from jax.sharding import Mesh

from bert_jax.analysis.chips import Roofline, chip, peak_flops, roofline
from bert_jax.analysis.collectives import collectives
from bert_jax.analysis.custom_calls import Work
from bert_jax.analysis.estimate_step import estimate_step
from bert_jax.analysis.estimates import StepEstimate
from bert_jax.analysis.kernel_times import kernel_times
from bert_jax.pretraining.attention_text import cudnn_lines
from bert_jax.pretraining.phase_config import PhaseConfig
from bert_jax.pretraining.step_setup import StepSetup
from bert_jax.pretraining.step_timing import random_batch
from bert_jax.training.compiled_step import CompiledStep
from bert_jax.training.planning import OutOfMemory, compile_step, state_bytes

# A function that returns a context manager for a step's name. The context is active while the step
# compiles.
WhileCompiling = Callable[[str], AbstractContextManager[object]]


@dataclass(frozen=True)
class PhasePlan:
    """A phase with its compiled step or, if the step is too large to compile, the memory it needs.

    Attributes:
      name: the phase's name.
      phase: the phase's config.
      documents_per_row: the number of documents packed into a row.
      dtype: the compute dtype.
      state_bytes: the size of the parameters and optimizer state on one device, in bytes.
      model_flops: the model FLOPs per step, summed over all devices.
      compile_seconds: the compile time in seconds.
      step: the compiled step; None if the compiler ran out of device memory.
      refused: the memory needed by a step that did not compile; None if it compiled.
      estimate: the compiler's estimate of the time of a step; None if there is none.
      fp8_flops: the part of `model_flops` that FP8 units compute, at twice the peak in bfloat16.
      notes: lines about the estimate.
    """

    name: str
    phase: PhaseConfig
    documents_per_row: int
    dtype: str
    state_bytes: int
    model_flops: int
    compile_seconds: float
    step: CompiledStep | None
    refused: OutOfMemory | None
    estimate: StepEstimate | None = None
    fp8_flops: int = 0
    notes: Sequence[str] = ()

    @property
    def seconds(self) -> float | None:
        """The estimated total time in seconds, or None if there is no estimate."""
        return None if self.estimate is None else self.estimate.seconds * full_steps(self.phase)

    @property
    def memory(self) -> int:
        """The memory that the step needs on each device, in bytes."""
        if self.step is not None:
            return self.step.memory
        assert self.refused is not None
        return self.refused.needed

    def fits(self, limit: int | None) -> bool:
        """Return whether the step fits in `limit` bytes per device; None means no limit."""
        return self.step is not None and (limit is None or self.step.memory <= limit)

    def roofline(self, devices: Sequence[jax.Device]) -> Roofline | None:
        """Return the minimum step time; None if the step did not compile or the chip is unknown."""
        chip_figures = chip(devices[0].device_kind)
        peak = peak_flops(devices[0].device_kind, self.dtype)
        if self.step is None or chip_figures is None or peak is None:
            return None
        traffic = collectives(self.step.text, len(devices)).values()
        return roofline(
            chip_figures,
            peak,
            # Use the model's or the compiler's count of FLOPs, whichever is larger. The compiler
            # counts recomputed operations, too, but the body of a loop only once.
            flops=max(self.model_flops / len(devices), self.step.flops or 0.0)
            - self.fp8_flops / 2 / len(devices),
            memory_bytes=self.step.least_traffic,
            sent_bytes=sum(kind.sent for kind in traffic),
        )


def plan_phase(
    setup: StepSetup,
    mesh: Mesh,
    name: str,
    phase: PhaseConfig,
    documents_per_row: int,
    *,
    joined: bool,
    while_compiling: WhileCompiling = nullcontext,
) -> PhasePlan:
    """Compile the train step of a phase.

    Args:
      setup: the train-step settings, with the teacher.
      mesh: the device mesh.
      name: the phase's name.
      phase: the phase's config.
      documents_per_row: the number of documents packed into a row.
      joined: whether the documents in a row attend to each other.
      while_compiling: see `WhileCompiling`.
    """
    # Only the shapes of the batch matter, so make one row and replace the size of its first axis.
    row = random_batch(
        phase.sequence_length,
        documents_per_row,
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
    model_flops = setup.step_flops(phase, documents_per_row)
    estimate = estimate_of(
        step, mesh, setup.compute.dtype, model_flops, num_layers=_num_layers(setup)
    )
    return PhasePlan(
        name=name,
        phase=phase,
        documents_per_row=documents_per_row,
        dtype=setup.compute.dtype,
        state_bytes=state_bytes(setup.task.definition, setup.transformation, mesh),
        model_flops=model_flops,
        compile_seconds=time.perf_counter() - began,
        step=step,
        refused=refused,
        estimate=estimate,
        fp8_flops=setup.fp8_flops(phase),
        notes=cudnn_lines(setup, mesh, phase, estimate),
    )


def estimate_of(
    step: CompiledStep | None,
    mesh: Mesh,
    dtype: str,
    model_flops: float,
    *,
    num_layers: int | None = None,
) -> StepEstimate | None:
    """Return the estimate of a step's time; None if the compiler or the chip is unknown.

    Args:
      step: the compiled step; None if the compiler ran out of device memory.
      mesh: the device mesh.
      dtype: the compute dtype.
      model_flops: the model FLOPs per step, summed over all devices.
      num_layers: see `estimate_step`.
    """
    kind = mesh.devices.flat[0].device_kind
    figures, peak = chip(kind), peak_flops(kind, dtype)
    if step is None or figures is None:
        return None
    times = kernel_times(kind, {name: Work(*counts) for name, counts in step.pallas.items()})
    if times is None:
        return None
    return estimate_step(
        step.text,
        mesh.size,
        times,
        link_bandwidth=figures.link_bandwidth,
        memory_bandwidth=figures.memory_bandwidth,
        least_seconds=None if peak is None else model_flops / mesh.size / peak,
        num_layers=num_layers,
    )


def _num_layers(setup: StepSetup) -> int | None:
    """Return the number of layers of the encoder; None if there are several encoders."""
    only = setup.generator is None and setup.teacher is None
    return setup.model.num_layers if only else None


def total_seconds(plans: Sequence[PhasePlan]) -> float | None:
    """Return the estimated time of all phases in seconds; None if a phase has no estimate."""
    seconds = [plan.seconds for plan in plans]
    return sum(filter(None, seconds)) if None not in seconds else None


def full_steps(phase: PhaseConfig) -> float:
    """Return the number of full-size batches that contain as many sequences as the phase."""
    return phase.num_sequences / phase.batch_size
