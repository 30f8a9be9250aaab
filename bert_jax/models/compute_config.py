"""Define the options for computing an encoder."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import assert_never

from bert_jax.models.attention_choice import (
    AttentionChoice,
    check_flash,
    choose_attention,
)
from bert_jax.models.config import EncoderConfig
from bert_jax.models.config_checks import (
    require,
    require_choice,
)
from bert_jax.models.devices import (
    Device,
    check_cudnn,
    check_fp8,
    check_norm_kernels,
    check_splash,
    fits_norm_kernels,
    has_fused_kernels,
    supports_bfloat16,
)
from bert_jax.models.options import (
    AttentionBackend,
    DTypeName,
    NormBackend,
    Ops,
    Products,
    Remat,
)


@dataclass(frozen=True)
class ComputeConfig:
    """Options for how an encoder is run, which affect speed and memory but not the parameters.

    Attributes:
      dtype: dtype of activations and matmuls. Parameters, softmax, norm statistics and losses stay
        in float32. "auto" means bfloat16 on accelerators that support it, and float32 on CPUs and
        on NVIDIA GPUs older than Ampere (T4, V100).
      attention: attention implementation. "auto" selects a fused one if it supports the device,
        the dtype, the encoder, the longest rows and the `ops`; see `attention_choice`. "xla" runs
        everywhere. "cudnn" is cuDNN's fused attention for bfloat16 on NVIDIA GPUs, without
        attention dropout (when called through JAX, cuDNN cannot draw a new dropout mask at each
        step). "splash" is JAX's fused kernel for TPUs, without attention dropout. "flash_gpu" and
        "flash_tpu" are this package's fused kernels for NVIDIA GPUs and TPUs, with attention
        dropout.
      remat: which activations the backward pass recomputes: "none", all except the outputs of dense
        layers and of attention ("dots"), or all except each layer's input ("layer").
      scan_layers: whether to compile one layer and loop over it, instead of unrolling the layers. A
        loop compiles faster, but unrolled layers run faster (607k instead of 432k tokens/s for
        BERT-base on an H200).
      ops: "fast" operations have custom backward passes, which support neither forward-mode
        differentiation nor second derivatives. "plain" operations compute the same values but leave
        differentiation to JAX, so that `jax.jvp`, `jax.linearize` and Hessian-vector products work.
        They can only be combined with `attention="xla"` or `"auto"`.
      norms: implementation of dropout, the residual connection and the norm that follow a block.
        "triton" computes them in one kernel during training, and their gradients in another. It
        needs an NVIDIA GPU of the Ampere generation or later, ops="fast", and a `hidden_dim` that
        is a power of two (64 or more) times a number from 1 to 8. "xla" leaves the operations to
        the compiler. "auto" selects "triton" where it is supported, and otherwise "xla".
      products: number format in which the dense layers of attention and of the feed-forward blocks
        multiply: "dtype" for the format set by `dtype`, or "fp8" for 8-bit floating-point numbers
        (Micikevicius et al. 2022) with a scale for each tensor, E4M3 for activations and kernels
        and E5M2 for gradients. "fp8" needs bfloat16 and an NVIDIA GPU of the Ada or Hopper
        generation or later, and affects training and its evaluations. "fp8_emulated" rounds to the
        same numbers on any device. A device without FP8 units multiplies them in bfloat16, which is
        slow and meant for experiments and tests. Neither FP8 setting supports ops="plain".
    """

    dtype: DTypeName = "auto"
    attention: AttentionBackend = "auto"
    remat: Remat = "none"
    scan_layers: bool = False
    ops: Ops = "fast"
    norms: NormBackend = "auto"
    products: Products = "dtype"

    def __post_init__(self) -> None:
        require_choice("dtype", self.dtype, DTypeName)
        require_choice("attention", self.attention, AttentionBackend)
        require_choice("remat", self.remat, Remat)
        require_choice("ops", self.ops, Ops)
        require_choice("norms", self.norms, NormBackend)
        require(
            self.ops == "fast" or self.norms != "triton",
            f"compute.ops={self.ops!r}: not supported by compute.norms={self.norms!r}, whose "
            "kernels have their own backward pass. Set compute.norms='xla' (or 'auto')",
        )
        require(
            self.ops == "fast" or self.attention in ("auto", "xla"),
            f"compute.ops={self.ops!r}: not supported by compute.attention={self.attention!r}, "
            "whose kernel has its own backward pass. Set compute.attention='xla' (or 'auto')",
        )
        require_choice("products", self.products, Products)
        require(
            self.products == "dtype" or self.ops == "fast",
            f"compute.products={self.products!r}: not supported by compute.ops={self.ops!r}, since "
            "rounding to FP8 has no derivative. Set compute.ops='fast' or compute.products='dtype'",
        )
        require(
            self.products == "dtype" or self.dtype != "float32",
            f"compute.products={self.products!r}: needs compute.dtype='bfloat16', not "
            f"{self.dtype!r}. Change one of them",
        )

    @property
    def summary(self) -> str:
        """The dtype, the attention implementation and the kind of FP8 products, if any."""
        both = f"{self.dtype}, {self.attention} attention"
        match self.products:
            case "dtype":
                return both
            case "fp8":
                return f"{both}, fp8 products"
            case "fp8_emulated":
                return f"{both}, emulated fp8 products"
            case _:
                assert_never(self.products)

    def resolve(
        self, device: Device, config: EncoderConfig, longest: int | None = None
    ) -> ComputeConfig:
        """Return the config with every "auto" replaced by the best choice for `device`.

        Args:
          device: the device that runs the encoder.
          config: the encoder.
          longest: the number of tokens in the longest row; None for the encoder's maximum.

        Raises:
          ValueError: a fused kernel is requested but does not support the device, the dtype or the
            encoder.
        """
        dtype, attention = self._dtype_on(device), self.attention
        match attention:
            case "auto":
                attention = self.attention_choice(device, config, longest).backend
            case "cudnn":
                check_cudnn(
                    device,
                    dtype,
                    attention_dropout=config.attention_dropout,
                    hidden_dim=config.hidden_dim,
                    num_heads=config.num_heads,
                )
            case "splash":
                check_splash(device, attention_dropout=config.attention_dropout)
            case "flash_gpu" | "flash_tpu":
                check_flash(
                    device,
                    attention,
                    length=config.max_positions if longest is None else longest,
                    head_dim=config.head_dim,
                    window=config.attention_window,
                )
            case "xla":
                pass
            case _:
                assert_never(attention)
        if self.products == "fp8":
            check_fp8(device)
        norms = self.norms
        if norms == "auto":
            able = self.ops == "fast" and fits_norm_kernels(config.hidden_dim)
            norms = "triton" if able and has_fused_kernels(device) else "xla"
        if norms == "triton":
            check_norm_kernels(device, config.hidden_dim)
        return dataclasses.replace(self, dtype=dtype, attention=attention, norms=norms)

    def attention_choice(
        self, device: Device, config: EncoderConfig, longest: int | None = None
    ) -> AttentionChoice:
        """Return the implementation that "auto" selects, and why a faster one cannot be used.

        For the arguments, see `resolve`.
        """
        return choose_attention(
            device,
            self._dtype_on(device),
            self.ops,
            length=config.max_positions if longest is None else longest,
            head_dim=config.head_dim,
            window=config.attention_window,
            attention_dropout=config.attention_dropout,
        )

    def _dtype_on(self, device: Device) -> DTypeName:
        if self.dtype != "auto":
            return self.dtype
        return "bfloat16" if supports_bfloat16(device) else "float32"
