"""Describe a run's attention implementation, and the settings that a faster one requires."""

from __future__ import annotations

from jax.sharding import Mesh

from bert_jax.analysis.estimates import StepEstimate
from bert_jax.analysis.kernel_times import cudnn_seconds
from bert_jax.models.devices import Device, fits_cudnn
from bert_jax.pretraining.phase_config import PhaseConfig
from bert_jax.pretraining.step_setup import StepSetup

_ATTENTION_KINDS = ("attention products", "attention softmax", "fused attention")


def attention_reason(setup: StepSetup, device: Device, longest_sequence: int) -> str:
    """Return the reason why no faster attention is used, as a clause, or "" if there is no reason.

    Args:
      setup: the train-step settings.
      device: the device that runs the step.
      longest_sequence: the longest sequence length of any phase.
    """
    requested = setup.requested_compute
    choice = requested.attention_choice(device, setup.model, longest_sequence)
    if choice.backend == setup.compute.attention:
        return choice.reason
    return f"compute.attention={requested.attention!r}; 'auto' would select {choice.backend!r}"


def attention_lines(implementation: str, reason: str, width: int) -> list[str]:
    """Return a line with the implementation and the reason, or [] if `reason` is empty.

    Args:
      implementation: the attention implementation.
      reason: the result of `attention_reason`.
      width: the width of the label column.
    """
    return [f"{'attention':{width}}{implementation}, because {reason}"] if reason else []


def cudnn_lines(
    setup: StepSetup, mesh: Mesh, phase: PhaseConfig, estimate: StepEstimate | None
) -> list[str]:
    """Return a line about the time that cuDNN attention, which allows no dropout, would save.

    The result is [] if cuDNN would not help. It is also [] for models with rotary positions or
    local attention, because the time of their attention cannot be separated from other work.

    Args:
      setup: the train-step settings, with the teacher.
      mesh: the device mesh.
      phase: the phase's config.
      estimate: the estimated time of the step with attention dropout.
    """
    encoder, kind = setup.model, mesh.devices.flat[0].device_kind
    plain = encoder.attention_window is None and encoder.positions != "rotary"
    only = setup.generator is None and setup.teacher is None and setup.compute.remat == "none"
    if estimate is None or mesh.devices.flat[0].platform != "gpu" or not (plain and only):
        return []
    usable = setup.compute.dtype == "bfloat16" and fits_cudnn(encoder.head_dim)
    if encoder.attention_dropout == 0.0 or not usable:
        return []
    seconds = sum(estimate.by_kind.get(name, 0.0) for name in _ATTENTION_KINDS)
    pairs = phase.batch_size * phase.sequence_length**2 // mesh.size
    faster = encoder.num_layers * cudnn_seconds(
        kind, pairs * encoder.hidden_dim, phase.sequence_length
    )
    if faster >= seconds:
        return []
    return [
        f"{'attention':20s}{seconds * 1e3:.2f} ms of the step; with cuDNN, an estimated "
        f"{(seconds - faster) * 1e3:.2f} ms less (needs model.attention_dropout=0)"
    ]
