"""What an encoder is (`EncoderConfig`) and how it is computed (`ComputeConfig`)."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal, get_args

Activation = Literal["gelu", "gelu_tanh"]
PositionKind = Literal["learned", "sinusoidal"]
NormPlacement = Literal["post", "pre"]
DTypeName = Literal["auto", "float32", "bfloat16"]
AttentionBackend = Literal["auto", "xla", "cudnn"]
Remat = Literal["none", "dots", "layer"]


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(message)


def _require_choice(name: str, value: Any, choices: Any) -> None:
    _require(
        value in get_args(choices),
        f"{name}={value!r}: expected one of {', '.join(map(repr, get_args(choices)))}",
    )


@dataclass(frozen=True)
class EncoderConfig:
    """Architecture of a BERT-family encoder; everything that decides the shape of its parameters.

    The defaults are BERT-base (Devlin et al. 2019, section 3 and appendix A.2).

    Raises:
      ValueError: a value is out of range or `hidden_dim` does not split over `num_heads`.
    """

    vocab_size: int = 30_522
    hidden_dim: int = 768
    num_layers: int = 12
    num_heads: int = 12
    ffn_dim: int = 3072
    max_positions: int = 512
    num_segments: int = 2
    hidden_dropout: float = 0.1
    attention_dropout: float = 0.1
    activation: Activation = "gelu"
    layer_norm_epsilon: float = 1e-12
    initializer_range: float = 0.02
    positions: PositionKind = "learned"
    norm: NormPlacement = "post"

    def __post_init__(self) -> None:
        for name in ("vocab_size", "hidden_dim", "num_layers", "num_heads", "ffn_dim"):
            _require(getattr(self, name) >= 1, f"{name}={getattr(self, name)}: must be at least 1")
        _require(self.max_positions >= 1, f"max_positions={self.max_positions}: must be >= 1")
        _require(self.num_segments >= 0, f"num_segments={self.num_segments}: must be >= 0")
        _require(
            self.hidden_dim % self.num_heads == 0,
            f"hidden_dim={self.hidden_dim} is not divisible by num_heads={self.num_heads}: "
            "every head gets hidden_dim / num_heads features; change one of them",
        )
        for name in ("hidden_dropout", "attention_dropout"):
            _require(
                0.0 <= getattr(self, name) < 1.0,
                f"{name}={getattr(self, name)}: a dropout rate lies in [0, 1)",
            )
        _require(self.layer_norm_epsilon > 0, "layer_norm_epsilon must be positive")
        _require(self.initializer_range > 0, "initializer_range must be positive")
        _require_choice("activation", self.activation, Activation)
        _require_choice("positions", self.positions, PositionKind)
        _require_choice("norm", self.norm, NormPlacement)
        _require(
            self.positions != "sinusoidal" or self.hidden_dim % 2 == 0,
            f"hidden_dim={self.hidden_dim}: sinusoidal positions need an even hidden_dim",
        )

    @property
    def head_dim(self) -> int:
        """Features of one attention head."""
        return self.hidden_dim // self.num_heads

    @classmethod
    def variant(cls, name: str, **changes: Any) -> EncoderConfig:
        """A published size by name, with `changes` applied.

        tiny, mini, small and medium: Turc et al. 2019, "Well-Read Students Learn Better", table 1.
        base and large: Devlin et al. 2019, section 3.

        Raises:
          ValueError: no such variant.
        """
        if name not in VARIANTS:
            raise ValueError(f"unknown variant {name!r}: expected one of {', '.join(VARIANTS)}")
        num_layers, hidden_dim = VARIANTS[name]
        values: dict[str, Any] = dict(
            num_layers=num_layers,
            hidden_dim=hidden_dim,
            num_heads=hidden_dim // 64,
            ffn_dim=4 * hidden_dim,
        )
        return cls(**(values | changes))


# name: (num_layers, hidden_dim); heads have 64 features and the FFN is 4 x hidden in all of them.
VARIANTS: dict[str, tuple[int, int]] = {
    "tiny": (2, 128),
    "mini": (4, 256),
    "small": (4, 512),
    "medium": (8, 512),
    "base": (12, 768),
    "large": (24, 1024),
}


@dataclass(frozen=True)
class ComputeConfig:
    """How an encoder is computed; changes speed and memory, never the parameters.

    dtype: of activations and matrix products; parameters, softmax, LayerNorm statistics and
      losses stay in float32. "auto" is bfloat16 on accelerators and float32 on CPU.
    attention: "auto" takes cuDNN's fused attention on a GPU in bfloat16 when
      `attention_dropout` is 0 (cuDNN through JAX cannot draw dropout anew each step), else XLA.
    remat: what the backward pass computes again instead of keeping: "none"; "dots" keeps the
      results of matrix products with parameters; "layer" keeps only each layer's input.
    scan_layers: one compiled layer looped over (compiles faster) instead of unrolled (runs
      faster: 607k against 432k tokens/s for BERT-base on an H200).
    """

    dtype: DTypeName = "auto"
    attention: AttentionBackend = "auto"
    remat: Remat = "none"
    scan_layers: bool = False

    def __post_init__(self) -> None:
        _require_choice("dtype", self.dtype, DTypeName)
        _require_choice("attention", self.attention, AttentionBackend)
        _require_choice("remat", self.remat, Remat)

    def resolve(self, platform: str, config: EncoderConfig) -> ComputeConfig:
        """Replaces every "auto" by what it means on `platform` ("cpu", "gpu", "tpu").

        Raises:
          ValueError: cuDNN attention was asked for where it cannot do what the config asks.
        """
        dtype = self.dtype
        if dtype == "auto":
            dtype = "float32" if platform == "cpu" else "bfloat16"
        attention = self.attention
        if attention == "auto":
            fused = platform == "gpu" and dtype == "bfloat16" and config.attention_dropout == 0.0
            attention = "cudnn" if fused else "xla"
        if attention == "cudnn":
            _check_cudnn(platform, dtype, config)
        return dataclasses.replace(self, dtype=dtype, attention=attention)


def _check_cudnn(platform: str, dtype: str, config: EncoderConfig) -> None:
    """Refuses what cuDNN's fused attention cannot do, with what to change."""
    _require(
        platform == "gpu",
        f"compute.attention='cudnn' runs on NVIDIA GPUs only, not on {platform}: "
        "set compute.attention='xla' (or 'auto')",
    )
    _require(
        dtype == "bfloat16",
        f"compute.attention='cudnn' needs compute.dtype='bfloat16', not {dtype!r}: "
        "set compute.attention='xla' (or 'auto')",
    )
    _require(
        config.attention_dropout == 0.0,
        f"compute.attention='cudnn' cannot apply model.attention_dropout="
        f"{config.attention_dropout}: its dropout seed is fixed at compile time, so every step "
        "would drop the same attention weights. Set model.attention_dropout=0 or "
        "compute.attention='xla'",
    )
