"""Determine which dtypes and attention implementations a device supports."""

from __future__ import annotations

from typing import Protocol

from bert_jax.models.config_checks import require

# NVIDIA GPUs of the Ampere generation and later support bfloat16 matmuls, cuDNN's fused attention
# and Triton kernels.
_AMPERE = (8, 0)
# NVIDIA GPUs of the Ada generation and later can multiply FP8 matrices.
_ADA = (8, 9)


class Device(Protocol):
    """A JAX device; a GPU also has a `compute_capability`, such as "8.6"."""

    @property
    def platform(self) -> str:
        """The platform: "cpu", "gpu" or "tpu"."""


def _nvidia_capability(device: Device) -> tuple[int, ...] | None:
    """Return the compute capability of an NVIDIA GPU, such as (8, 6); None for other devices."""
    # AMD GPUs have capabilities such as "gfx90a".
    parts = str(getattr(device, "compute_capability", "")).split(".")
    if device.platform != "gpu" or not all(part.isdigit() for part in parts):
        return None
    return tuple(map(int, parts))


def _kind_of_device(device: Device) -> str:
    """Describe a device that is not an NVIDIA GPU, for messages."""
    return "another vendor's GPU" if device.platform == "gpu" else device.platform


def supports_bfloat16(device: Device) -> bool:
    """Return whether the device multiplies matrices in bfloat16."""
    capability = _nvidia_capability(device)
    return device.platform != "cpu" and (capability is None or capability >= _AMPERE)


def has_fused_kernels(device: Device) -> bool:
    """Return whether the device can run cuDNN's fused attention and kernels in Triton."""
    capability = _nvidia_capability(device)
    return capability is not None and capability >= _AMPERE


def fits_cudnn(head_dim: int) -> bool:
    """Return whether cuDNN supports this head size on every GPU that supports bfloat16."""
    return head_dim % 8 == 0 and head_dim <= 128


def check_cudnn(
    device: Device, dtype: str, *, attention_dropout: float, hidden_dim: int, num_heads: int
) -> None:
    """Check that cuDNN's fused attention can be used.

    Args:
      device: the device that runs the encoder.
      dtype: the dtype of the activations.
      attention_dropout: see `EncoderConfig`.
      hidden_dim: see `EncoderConfig`.
      num_heads: see `EncoderConfig`.

    Raises:
      ValueError: the kernel cannot be used; the message suggests a fix.
    """
    capability = _nvidia_capability(device)
    if capability is None:
        raise ValueError(
            "compute.attention='cudnn' runs only on NVIDIA GPUs, not on "
            f"{_kind_of_device(device)}. Set compute.attention='xla' (or 'auto')"
        )
    require(
        capability >= _AMPERE,
        "compute.attention='cudnn' needs a GPU with compute capability 8.0 (Ampere) or later; this "
        f"one has {'.'.join(map(str, capability))}. Set compute.attention='xla' (or 'auto')",
    )
    require(
        dtype == "bfloat16",
        f"compute.attention='cudnn' needs compute.dtype='bfloat16', not {dtype!r}. "
        "Set compute.attention='xla' (or 'auto')",
    )
    require(
        attention_dropout == 0.0,
        f"compute.attention='cudnn' cannot apply model.attention_dropout="
        f"{attention_dropout}: its dropout seed is fixed at compile time, so every step "
        "would drop the same attention weights. Set model.attention_dropout=0 or "
        "compute.attention='xla'",
    )
    require(
        fits_cudnn(hidden_dim // num_heads),
        "compute.attention='cudnn' needs a head size that is a multiple of 8, at most 128; "
        f"hidden_dim={hidden_dim} / num_heads={num_heads} is {hidden_dim // num_heads}. "
        "Set compute.attention='xla' (or 'auto')",
    )


def check_fp8(device: Device) -> None:
    """Check that the device multiplies matrices in FP8.

    Raises:
      ValueError: the device has no FP8 units; the message suggests a fix.
    """
    capability = _nvidia_capability(device)
    advice = (
        "Set compute.products='dtype', or 'fp8_emulated' to try out the rounding without the speed"
    )
    require(
        capability is not None,
        f"compute.products='fp8' runs only on NVIDIA GPUs, not on {_kind_of_device(device)}. "
        f"{advice}",
    )
    assert capability is not None
    require(
        capability >= _ADA,
        "compute.products='fp8' needs a GPU with compute capability 8.9 (Ada, Hopper) or later; "
        f"this one has {'.'.join(map(str, capability))}. {advice}",
    )


def check_splash(device: Device, *, attention_dropout: float) -> None:
    """Check that JAX's fused attention for TPUs can be used.

    Args:
      device: the device that runs the encoder.
      attention_dropout: see `EncoderConfig`.

    Raises:
      ValueError: the kernel cannot be used; the message suggests a fix.
    """
    require(
        device.platform == "tpu",
        f"compute.attention='splash' runs only on TPUs, not on {device.platform}. "
        "Set compute.attention='xla' (or 'auto')",
    )
    check_splash_dropout(attention_dropout)


def check_splash_dropout(attention_dropout: float) -> None:
    """Raise a ValueError if attention has dropout, which the kernel for TPUs does not support."""
    require(
        attention_dropout == 0.0,
        f"compute.attention='splash' cannot apply model.attention_dropout={attention_dropout}: its "
        "kernel has no dropout. Set model.attention_dropout=0 or compute.attention='xla'",
    )


def fits_norm_kernels(dim: int) -> bool:
    """Return whether the kernels in `norm_kernels` support vectors of this size.

    The kernels divide a vector into at most 8 equal parts. The size of a part must be a power of
    two and at least 64.
    """
    part = dim & -dim
    return part >= 64 and dim // part <= 8 and dim <= 8192


def check_norm_kernels(device: Device, hidden_dim: int) -> None:
    """Check that the kernels in `norm_kernels` can be used.

    Args:
      device: the device that runs the encoder.
      hidden_dim: see `EncoderConfig`.

    Raises:
      ValueError: the kernels cannot be used; the message suggests a fix.
    """
    require(
        has_fused_kernels(device),
        "compute.norms='triton' needs an NVIDIA GPU with compute capability 8.0 (Ampere) or later. "
        "Set compute.norms='xla' (or 'auto')",
    )
    require(
        fits_norm_kernels(hidden_dim),
        f"compute.norms='triton' needs a hidden_dim of at most 8192 that is a power of two (64 or "
        f"more) times a number from 1 to 8, not {hidden_dim}. Set compute.norms='xla' (or 'auto')",
    )
