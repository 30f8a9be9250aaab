"""Describe an encoder (`EncoderConfig`) and how it is computed (`ComputeConfig`).

`variant` returns the published encoders by name.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, Literal, Protocol, assert_never, get_args

from bert_jax.validation import differences

Activation = Literal["gelu", "gelu_tanh"]
PositionKind = Literal["learned", "sinusoidal"]
NormPlacement = Literal["post", "pre"]
Sharing = Literal["none", "all", "attention", "ffn"]
PoolerActivation = Literal["tanh", "relu"]
DTypeName = Literal["auto", "float32", "bfloat16"]
AttentionBackend = Literal["auto", "xla", "cudnn"]
Remat = Literal["none", "dots", "layer"]
Ops = Literal["fast", "plain"]
# JAX indexes arrays with 32-bit integers.
MAX_DIM = 2**31 - 1
# Twice the layers of the deepest published Transformer (Wang et al. 2022, "DeepNet"). Layers and
# segments are traced one by one; naming the parameters alone takes 19 ms per layer (2026-11).
MAX_LAYERS = 2_000
MAX_SEGMENTS = 1_000
# NVIDIA's GPUs from Ampere on multiply bfloat16, and have cuDNN's fused attention.
_AMPERE = (8, 0)


class Device(Protocol):
    """A device as JAX has it; a GPU also has a `compute_capability`, such as "8.6"."""

    @property
    def platform(self) -> str:
        """Which is "cpu", "gpu" or "tpu"."""


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

    The defaults are BERT-base (Devlin et al. 2019, section 3 and appendix A.2). RoBERTa, ALBERT and
    DistilBERT are other values, not other classes:

    embedding_dim: of the three tables and of the masked-LM head's transform, with a dense layer
      between the tables and the layers of `hidden_dim` (Lan et al. 2020, section 3.1, "factorized
      embedding parameterization"); None for tables of `hidden_dim` and no such layer.
    max_positions: the longest sequence. position_offset: rows of the position table before the one
      of the first token, which nothing reads: 2 in RoBERTa's release.
    num_segments: 0 for no table; with 1 its only row is added to every token, whatever segment the
      batch says it is in (RoBERTa's release).
    sharing: what the layers of a group have in common: nothing, all parameters, those of attention
      or those of the feed-forward part, each with its LayerNorm (Lan et al. 2020, section 3.1). Of
      ALBERT, Hugging Face knows "none" and "all" alone, and always an `embedding_dim`.
    num_groups: into which as many consecutive layers each are divided for that.
    pooler_activation: of the dense layer on `[CLS]`: "tanh", or DistilBERT's "relu".
    pooler_dropout: whether a classifier of sequences also drops out what its pooler reads
      (RoBERTa's release).

    Raises:
      ValueError: a value is out of range, `hidden_dim` does not split over `num_heads`, or the
        layers do not divide into groups.
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
    embedding_dim: int | None = None
    position_offset: int = 0
    sharing: Sharing = "none"
    num_groups: int = 1
    pooler_activation: PoolerActivation = "tanh"
    pooler_dropout: bool = False

    def __post_init__(self) -> None:
        for name in ("vocab_size", "hidden_dim", "num_layers", "num_heads", "ffn_dim"):
            _require(getattr(self, name) >= 1, f"{name}={getattr(self, name)}: must be at least 1")
        _require(self.max_positions >= 1, f"max_positions={self.max_positions}: must be >= 1")
        _require(self.num_segments >= 0, f"num_segments={self.num_segments}: must be >= 0")
        self._check_limits()
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
        for name in ("layer_norm_epsilon", "initializer_range"):
            _require(
                0.0 < getattr(self, name) < math.inf,
                f"{name}={getattr(self, name)}: must be positive and finite",
            )
        _require_choice("activation", self.activation, Activation)
        _require_choice("positions", self.positions, PositionKind)
        _require_choice("norm", self.norm, NormPlacement)
        _require_choice("sharing", self.sharing, Sharing)
        _require_choice("pooler_activation", self.pooler_activation, PoolerActivation)
        _require(
            self.embedding_dim is None or self.embedding_dim >= 1,
            f"embedding_dim={self.embedding_dim}: must be at least 1, or None for hidden_dim",
        )
        dim = "embedding_dim" if self.embedding_dim else "hidden_dim"
        _require(
            self.positions != "sinusoidal" or self.table_dim % 2 == 0,
            f"{dim}={self.table_dim}: sinusoidal positions need an even {dim}",
        )
        _require(
            self.position_offset == 0 or (self.position_offset > 0 and self.positions == "learned"),
            f"position_offset={self.position_offset}: rows of a learned table, 0 or more",
        )
        self._check_groups()

    def _check_limits(self) -> None:
        for name, most, why in (
            ("num_layers", MAX_LAYERS, "every layer is traced separately"),
            ("num_segments", MAX_SEGMENTS, "every segment is traced separately"),
            *(
                (name, MAX_DIM, "arrays are indexed with 32-bit integers")
                for name in ("vocab_size", "hidden_dim", "ffn_dim", "embedding_dim")
            ),
            ("max_positions", MAX_DIM - self.position_offset, "rows have 32-bit indices"),
        ):
            value = getattr(self, name) or 0
            _require(value <= most, f"{name}={value}: expected at most {most:,} ({why})")

    def _check_groups(self) -> None:
        _require(
            self.num_groups == 1 or self.sharing != "none",
            f"num_groups={self.num_groups}, but sharing='none': layers share within a group; set "
            "sharing to 'all', 'attention' or 'ffn'",
        )
        _require(
            1 <= self.num_groups <= self.num_layers and self.num_layers % self.num_groups == 0,
            f"num_groups={self.num_groups} does not divide num_layers={self.num_layers}: every "
            f"group has as many layers; take one of {', '.join(map(str, self._divisors()))}",
        )

    def _divisors(self) -> list[int]:
        return [n for n in range(1, self.num_layers + 1) if self.num_layers % n == 0]

    @property
    def table_dim(self) -> int:
        """Features of a row of the embedding tables."""
        return self.hidden_dim if self.embedding_dim is None else self.embedding_dim

    @property
    def head_dim(self) -> int:
        """Features of one attention head."""
        return self.hidden_dim // self.num_heads

    def parameter_owners(self, layer: int) -> tuple[int, int]:
        """The layers whose attention and whose feed-forward parameters are those of `layer`.

        Both counted from 0; the first layer of a group has what the group shares.
        """
        size = self.num_layers // self.num_groups
        first = layer - layer % size
        match self.sharing:
            case "none":
                return layer, layer
            case "all":
                return first, first
            case "attention":
                return first, layer
            case "ffn":
                return layer, first
            case _:
                assert_never(self.sharing)


@dataclass(frozen=True)
class ComputeConfig:
    """How an encoder is computed; changes speed and memory, never the parameters.

    dtype: of activations and matrix products; parameters, softmax, LayerNorm statistics and
      losses stay in float32. "auto" is bfloat16 on accelerators that have it, and float32 on a CPU
      and on NVIDIA's GPUs before Ampere (T4, V100).
    attention: "auto" takes cuDNN's fused attention on NVIDIA's GPUs in bfloat16 when
      `attention_dropout` is 0 (cuDNN through JAX cannot draw dropout anew each step) and heads
      have a size that it computes (a multiple of 8, at most 128), else XLA, as with plain `ops`.
    remat: what the backward pass computes again instead of keeping: "none"; "dots" keeps the
      results of matrix products with parameters; "layer" keeps only each layer's input.
    scan_layers: one compiled layer looped over (compiles faster) instead of unrolled (runs
      faster: 607k against 432k tokens/s for BERT-base on an H200).
    ops: "fast" operations have backward passes of their own, which JAX can neither differentiate
      again nor run forward. "plain" operations compute the same values and leave differentiation
      to JAX, for `jax.jvp`, `jax.linearize` and Hessian-vector products; `attention` must not be
      "cudnn" then.
    """

    dtype: DTypeName = "auto"
    attention: AttentionBackend = "auto"
    remat: Remat = "none"
    scan_layers: bool = False
    ops: Ops = "fast"

    def __post_init__(self) -> None:
        _require_choice("dtype", self.dtype, DTypeName)
        _require_choice("attention", self.attention, AttentionBackend)
        _require_choice("remat", self.remat, Remat)
        _require_choice("ops", self.ops, Ops)
        _require(
            self.ops == "fast" or self.attention != "cudnn",
            f"compute.ops={self.ops!r}: cuDNN's attention has only a backward pass. Set "
            "compute.attention='xla' (or 'auto')",
        )

    def resolve(self, device: Device, config: EncoderConfig) -> ComputeConfig:
        """Replaces every "auto" by what it means on `device`.

        Raises:
          ValueError: cuDNN attention was asked for where it cannot do what the config asks.
        """
        dtype, capability = self.dtype, _nvidia_capability(device)
        if dtype == "auto":
            lacks_it = device.platform == "cpu" or (capability is not None and capability < _AMPERE)
            dtype = "float32" if lacks_it else "bfloat16"
        attention = self.attention
        if attention == "auto":
            able = config.attention_dropout == 0.0 and _fits_cudnn(config.head_dim)
            able = able and self.ops == "fast"
            fused = capability is not None and capability >= _AMPERE and dtype == "bfloat16"
            attention = "cudnn" if fused and able else "xla"
        if attention == "cudnn":
            _check_cudnn(device.platform, capability, dtype, config)
        return dataclasses.replace(self, dtype=dtype, attention=attention)


def _nvidia_capability(device: Device) -> tuple[int, ...] | None:
    """The compute capability of an NVIDIA GPU, (8, 6); None of any other device."""
    told = str(getattr(device, "compute_capability", ""))  # of AMD's GPUs it is as "gfx90a"
    parts = told.split(".")
    if device.platform != "gpu" or not all(part.isdigit() for part in parts):
        return None
    return tuple(map(int, parts))


def _fits_cudnn(head_dim: int) -> bool:
    """Whether cuDNN computes heads of this size on every GPU that has bfloat16."""
    return head_dim % 8 == 0 and head_dim <= 128


def _check_cudnn(
    platform: str, capability: tuple[int, ...] | None, dtype: str, config: EncoderConfig
) -> None:
    """Refuses what cuDNN's fused attention cannot do, with what to change."""
    if capability is None:
        other = "a GPU of another maker" if platform == "gpu" else platform
        raise ValueError(
            f"compute.attention='cudnn' runs on NVIDIA GPUs only, not on {other}: "
            "set compute.attention='xla' (or 'auto')"
        )
    _require(
        capability >= _AMPERE,
        "compute.attention='cudnn' runs on GPUs of compute capability 8.0 (Ampere) and later, this "
        f"one has {'.'.join(map(str, capability))}: set compute.attention='xla' (or 'auto')",
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
    _require(
        _fits_cudnn(config.head_dim),
        "compute.attention='cudnn' computes heads of a multiple of 8, at most 128; hidden_dim="
        f"{config.hidden_dim} and num_heads={config.num_heads} make heads of {config.head_dim}: "
        "set compute.attention='xla' (or 'auto')",
    )


# Keys of an encoder that matter only while it is trained.
TRAINING_KEYS = ("hidden_dropout", "attention_dropout", "initializer_range")


def incompatible_fields(theirs: EncoderConfig, ours: EncoderConfig) -> list[str]:
    """Return one line for every difference that changes the outputs of the same parameters.

    Dropout and initialisation are the training's own.
    """
    return [
        line
        for line in differences(dataclasses.asdict(theirs), dataclasses.asdict(ours))
        if not line.startswith(TRAINING_KEYS)
    ]


def _sizes(num_layers: int, hidden_dim: int, num_heads: int) -> dict[str, Any]:
    """What all of them have in common: a feed-forward part of 4 x hidden."""
    return dict(
        num_layers=num_layers, hidden_dim=hidden_dim, num_heads=num_heads, ffn_dim=4 * hidden_dim
    )


# A byte-level vocabulary; the release begins its positions at row 2 and has one segment.
_ROBERTA: dict[str, Any] = dict(
    vocab_size=50_265,
    num_segments=1,
    position_offset=2,
    layer_norm_epsilon=1e-5,
    pooler_dropout=True,
)
_ALBERT: dict[str, Any] = dict(vocab_size=30_000, embedding_dim=128, sharing="all")
# The second release; the first has the erf form of GELU, and drops out 0.1 up to xlarge.
_ALBERT_2 = _ALBERT | dict(activation="gelu_tanh", hidden_dropout=0.0, attention_dropout=0.0)
_DISTILBERT: dict[str, Any] = dict(num_segments=0, pooler_activation="relu")

# tiny, mini, small and medium: Turc et al. 2019, "Well-Read Students Learn Better", table 1.
# base and large: Devlin et al. 2019, section 3. roberta: Liu et al. 2019, "RoBERTa", section 3.1
# and appendix A. albert: Lan et al. 2020, "ALBERT", table 1. distilbert: Sanh et al. 2019,
# "DistilBERT", section 3.
VARIANTS: dict[str, dict[str, Any]] = {
    "tiny": _sizes(2, 128, 2),
    "mini": _sizes(4, 256, 4),
    "small": _sizes(4, 512, 8),
    "medium": _sizes(8, 512, 8),
    "base": _sizes(12, 768, 12),
    "large": _sizes(24, 1024, 16),
    "roberta-base": _sizes(12, 768, 12) | _ROBERTA,
    "roberta-large": _sizes(24, 1024, 16) | _ROBERTA,
    "albert-base-v1": _sizes(12, 768, 12) | _ALBERT,
    "albert-large-v1": _sizes(24, 1024, 16) | _ALBERT,
    "albert-xlarge-v1": _sizes(24, 2048, 16) | _ALBERT,
    "albert-xxlarge-v1": _sizes(12, 4096, 64)
    | _ALBERT
    | dict(hidden_dropout=0.0, attention_dropout=0.0),
    "albert-base-v2": _sizes(12, 768, 12) | _ALBERT_2,
    "albert-large-v2": _sizes(24, 1024, 16) | _ALBERT_2,
    "albert-xlarge-v2": _sizes(24, 2048, 16) | _ALBERT_2,
    "albert-xxlarge-v2": _sizes(12, 4096, 64) | _ALBERT_2,
    "distilbert": _sizes(6, 768, 12) | _DISTILBERT,
}


def variant(name: str, **changes: Any) -> EncoderConfig:
    """A published encoder by name, with `changes` applied.

    Raises:
      ValueError: no such variant.
    """
    if name not in VARIANTS:
        raise ValueError(f"unknown variant {name!r}: expected one of {', '.join(VARIANTS)}")
    return EncoderConfig(**(VARIANTS[name] | changes))
