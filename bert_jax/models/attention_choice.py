"""Choose the attention implementation for a device, an encoder and a row length."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple, assert_never

from bert_jax.models.config_checks import require
from bert_jax.models.devices import Device, fits_cudnn, has_fused_kernels
from bert_jax.models.options import AttentionBackend, Ops

if TYPE_CHECKING:
    from bert_jax.models.flash_types import FlashKernels

FlashBackend = Literal["flash_gpu", "flash_tpu"]


class AttentionChoice(NamedTuple):
    """An attention implementation.

    Attributes:
      backend: the implementation.
      reason: a clause that explains why a faster implementation cannot be used, and which setting
        would allow it; empty if no other implementation is faster.
    """

    backend: AttentionBackend
    reason: str = ""


def flash_kernels(backend: FlashBackend) -> FlashKernels:
    """Return the module with this package's fused kernels for a kind of device."""
    # Import these modules only when they are needed, since importing Pallas takes long.
    match backend:
        case "flash_gpu":
            from bert_jax.models import flash_gpu

            return flash_gpu
        case "flash_tpu":
            from bert_jax.models import flash_tpu

            return flash_tpu
        case _:
            assert_never(backend)


def check_flash(
    device: Device,
    backend: FlashBackend,
    *,
    length: int,
    head_dim: int,
    window: int | None,
) -> None:
    """Check that this package's fused attention kernels can be used.

    Args:
      device: the device that runs the encoder.
      backend: the kernels.
      length: the number of tokens in the longest row.
      head_dim: the dimension of an attention head.
      window: the window of the layers with local attention; None if there are none.

    Raises:
      ValueError: the kernels cannot be used; the message suggests a fix.
    """
    match backend:
        case "flash_gpu":
            able, needed = has_fused_kernels(device), "NVIDIA GPUs since Ampere"
        case "flash_tpu":
            able, needed = device.platform == "tpu", "TPUs"
        case _:
            assert_never(backend)
    fix = "Set compute.attention='xla' (or 'auto')"
    require(
        able,
        f"compute.attention={backend!r} runs only on {needed}, not on this {device.platform}. "
        + fix,
    )
    refusal = flash_kernels(backend).supported(length, head_dim, window)
    require(refusal is None, f"compute.attention={backend!r} {refusal}. {fix}")


def choose_attention(
    device: Device,
    dtype: str,
    ops: Ops,
    *,
    length: int,
    head_dim: int,
    window: int | None,
    attention_dropout: float,
) -> AttentionChoice:
    """Return the implementation that "auto" selects, a fused one if the arguments allow it.

    Args:
      device: the device that runs the encoder.
      dtype: the dtype of the activations.
      ops: see `ComputeConfig`.
      length: the number of tokens in the longest row.
      head_dim: the dimension of an attention head.
      window: the window of the layers with local attention; None if there are none.
      attention_dropout: see `EncoderConfig`.
    """
    if device.platform not in ("gpu", "tpu"):
        return AttentionChoice("xla")
    if device.platform == "gpu" and not has_fused_kernels(device):
        return AttentionChoice(
            "xla", "fused kernels need an NVIDIA GPU of compute capability 8.0 (Ampere) or later"
        )
    if ops != "fast":
        return AttentionChoice("xla", f"fused kernels need compute.ops='fast', not {ops!r}")
    if dtype != "bfloat16":
        return AttentionChoice("xla", f"fused kernels need compute.dtype='bfloat16', not {dtype!r}")
    if device.platform == "gpu":
        return _on_gpu(length, head_dim, window, attention_dropout)
    return _on_tpu(length, head_dim, window, attention_dropout)


def _on_gpu(
    length: int, head_dim: int, window: int | None, attention_dropout: float
) -> AttentionChoice:
    if attention_dropout == 0.0 and fits_cudnn(head_dim):
        return AttentionChoice("cudnn")
    refusal = flash_kernels("flash_gpu").supported(length, head_dim, window)
    if refusal is not None:
        return AttentionChoice("xla", f"compute.attention='flash_gpu' {refusal}")
    if not fits_cudnn(head_dim):
        return AttentionChoice("flash_gpu")
    return AttentionChoice("flash_gpu", "compute.attention='cudnn' needs model.attention_dropout=0")


def _on_tpu(
    length: int, head_dim: int, window: int | None, attention_dropout: float
) -> AttentionChoice:
    refusal = flash_kernels("flash_tpu").supported(length, head_dim, window)
    if refusal is None:
        return AttentionChoice("flash_tpu")
    if attention_dropout == 0.0:
        return AttentionChoice("splash")
    return AttentionChoice(
        "xla",
        f"compute.attention='flash_tpu' {refusal}, and 'splash' needs model.attention_dropout=0",
    )
