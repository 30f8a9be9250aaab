"""Describe an encoder's architecture (`EncoderConfig`) and how to compute it (`ComputeConfig`)."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, Literal, Protocol, assert_never, get_args

from bert_jax.validation import differences

Activation = Literal["gelu", "gelu_tanh", "relu", "silu", "tanh", "quick_gelu"]
PositionKind = Literal["learned", "sinusoidal", "rotary"]
NormPlacement = Literal["post", "pre"]
NormKind = Literal["layer", "rms"]
Sharing = Literal["none", "all", "attention", "ffn"]
PoolerActivation = Literal["tanh", "relu", "gelu"]
ClassifierTransform = Literal["pooler", "prediction"]
Pooling = Literal["cls", "mean"]
DTypeName = Literal["auto", "float32", "bfloat16"]
AttentionBackend = Literal["auto", "xla", "cudnn"]
Remat = Literal["none", "dots", "layer"]
Ops = Literal["fast", "plain"]
# JAX indexes arrays with 32-bit integers.
MAX_DIM = 2**31 - 1
# Twice the depth of the deepest published Transformer (Wang et al. 2022, "DeepNet"). Layers and
# segments are traced one by one; just naming the parameters takes 19 ms per layer (2026-11).
MAX_LAYERS = 2_000
MAX_SEGMENTS = 1_000
# NVIDIA GPUs since Ampere support bfloat16 matmuls and cuDNN's fused attention.
_AMPERE = (8, 0)


class Device(Protocol):
    """A JAX device; a GPU also has a `compute_capability`, such as "8.6"."""

    @property
    def platform(self) -> str:
        """The platform: "cpu", "gpu" or "tpu"."""


# The number of fields in version 0.1.0; see `EncoderConfig.identity`.
_FIELDS_OF_0_1 = 20


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
    """The architecture of a BERT-family encoder, which determines every parameter's shape.

    The defaults describe BERT-base (Devlin et al. 2019, section 3 and appendix A.2). RoBERTa,
    ALBERT, DistilBERT, ELECTRA, ModernBERT and NeoBERT differ only in these values.

    Attributes:
      vocab_size: number of tokens in the vocabulary.
      hidden_dim: dimension of the hidden states.
      num_layers: number of layers.
      num_heads: number of attention heads per layer.
      ffn_dim: dimension of the feed-forward block's inner layer.
      max_positions: length of the longest sequence.
      num_segments: number of rows in the segment table, or 0 for no table. If 1, the only row is
        added to every token regardless of its segment id (as in RoBERTa's release).
      hidden_dropout: dropout rate for the embeddings and for the output of every block in a layer.
      attention_dropout: dropout rate for the attention probabilities.
      activation: activation function in the feed-forward blocks and the masked-LM head: "gelu", its
        approximation "gelu_tanh", "relu", "silu", "tanh" or "quick_gelu" (x times the sigmoid of
        1.702 x).
      layer_norm_epsilon: constant that a norm adds to the variance, or to the mean square.
      initializer_range: standard deviation of the truncated normal initializer, before truncation.
      positions: "learned" or "sinusoidal" position vectors, or "rotary" to rotate queries and keys
        by angles that grow with the position (Su et al. 2021, section 3.4).
      norm: "post" for a norm after each residual addition (BERT), or "pre" for a norm before each
        block in a layer and one after the last layer.
      embedding_dim: dimension of the three embedding tables and of the masked-LM head's transform;
        a dense layer projects the embeddings to `hidden_dim` (Lan et al. 2020, section 3.1,
        "factorized embedding parameterization"). If None, it is `hidden_dim` and there is no
        projection.
      position_offset: number of unused rows at the start of the position table (2 in RoBERTa's
        release).
      sharing: parameters that the layers in a group share: "none", "all", or only those of the
        "attention" or "ffn" (feed-forward) block and its LayerNorm (Lan et al. 2020, section 3.1).
        Hugging Face's ALBERT supports only "none" and "all", and needs an `embedding_dim`.
      num_groups: number of groups into which the layers are split. A group consists of consecutive
        layers that share parameters, and all groups have the same size.
      pooler_activation: activation function of the pooler, the dense layer applied to `[CLS]`:
        "tanh", "relu" in DistilBERT, or exact "gelu" in ELECTRA.
      pooler_dropout: whether a sequence classifier also applies dropout to the pooler's input
        (RoBERTa's release).
      rotary_theta: base of the rotary angles (Su et al. 2021, section 3.2.2). A larger base suits
        longer sequences.
      local_rotary_theta: base of the rotary angles in layers with local attention; None for
        `rotary_theta`.
      attention_window: number of tokens, including itself, to which a token attends in a layer with
        local attention (Beltagy et al. 2020, "Longformer", section 3.1). It is odd, since a token
        sees equally many tokens on both sides. None for global attention in all layers.
      global_every: distance between layers with global attention; the first layer is one of them.
        All other layers have local attention.
      norm_kind: "layer" for LayerNorm (Ba et al. 2016), or "rms" for RMSNorm, which only divides by
        the root mean square (Zhang and Sennrich 2019).
      norm_bias: whether norms have a bias.
      first_norm: whether the first layer's attention has a norm; norm="post" requires it. Without
        it, the norm of the embeddings takes its place (Warner et al. 2024, "ModernBERT", section
        2.1.1).
      embedding_norm: whether the embeddings have a norm.
      dense_bias: whether the dense layers in the encoder and in the transforms of the heads have a
        bias.
      gated_ffn: whether a third dense layer gates the feed-forward block (Shazeer 2020, "GLU
        Variants Improve Transformer"): GeGLU with "gelu", and SwiGLU with "silu".
      head_transform: whether the masked-LM head has a dense layer, an activation and a norm before
        its output layer.
      tied_output: whether the masked-LM head's output layer is the token table.
      classifier_transform: what a classifier applies before its last layer: "pooler", a dense layer
        and `pooler_activation`, for sequences only; or "prediction", a dense layer, `activation`
        and a norm, for sequences and for tokens (ModernBERT).
      pooling: the vector of a sequence that a classifier scores: "cls" for the first token's, or
        "mean" for the mean over all tokens.

    Raises:
      ValueError: a value is out of range, does not fit the other values, or would have no effect.
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
    rotary_theta: float = 10_000.0
    local_rotary_theta: float | None = None
    attention_window: int | None = None
    global_every: int = 1
    norm_kind: NormKind = "layer"
    norm_bias: bool = True
    first_norm: bool = True
    embedding_norm: bool = True
    dense_bias: bool = True
    gated_ffn: bool = False
    head_transform: bool = True
    tied_output: bool = True
    classifier_transform: ClassifierTransform = "pooler"
    pooling: Pooling = "cls"

    def __post_init__(self) -> None:
        for name in ("vocab_size", "hidden_dim", "num_layers", "num_heads", "ffn_dim"):
            _require(getattr(self, name) >= 1, f"{name}={getattr(self, name)}: must be at least 1")
        _require(self.max_positions >= 1, f"max_positions={self.max_positions}: must be >= 1")
        _require(self.num_segments >= 0, f"num_segments={self.num_segments}: must be >= 0")
        self._check_limits()
        _require(
            self.hidden_dim % self.num_heads == 0,
            f"hidden_dim={self.hidden_dim}: not divisible by num_heads={self.num_heads}, but every "
            "head gets hidden_dim / num_heads features. Change one of them",
        )
        for name in ("hidden_dropout", "attention_dropout"):
            _require(
                0.0 <= getattr(self, name) < 1.0,
                f"{name}={getattr(self, name)}: a dropout rate must be in [0, 1)",
            )
        for name in ("layer_norm_epsilon", "initializer_range", "rotary_theta"):
            _require(
                0.0 < getattr(self, name) < math.inf,
                f"{name}={getattr(self, name)}: must be positive and finite",
            )
        _require_choice("activation", self.activation, Activation)
        _require_choice("positions", self.positions, PositionKind)
        _require_choice("norm", self.norm, NormPlacement)
        _require_choice("sharing", self.sharing, Sharing)
        _require_choice("pooler_activation", self.pooler_activation, PoolerActivation)
        _require_choice("norm_kind", self.norm_kind, NormKind)
        _require_choice("classifier_transform", self.classifier_transform, ClassifierTransform)
        _require_choice("pooling", self.pooling, Pooling)
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
            f"position_offset={self.position_offset}: must be >= 0, and 0 unless "
            "positions='learned'",
        )
        self._check_groups()
        self._check_rotary()
        self._check_window()
        self._check_norms()
        _require(
            self.head_transform or self.embedding_dim is None,
            f"head_transform=False: with embedding_dim={self.embedding_dim}, the masked-LM head "
            "needs its transform to map to that dimension. Set head_transform=True",
        )

    def _check_rotary(self) -> None:
        theta = self.local_rotary_theta
        match self.positions:
            case "rotary":
                self._check_angles(theta)
            case "learned" | "sinusoidal":
                for name, default in (("rotary_theta", 10_000.0), ("local_rotary_theta", None)):
                    value = getattr(self, name)
                    _require(
                        value == default,
                        f"{name}={value}: has no effect with positions={self.positions!r}. Set "
                        f"positions='rotary', or leave it at {default}",
                    )
            case _:
                assert_never(self.positions)

    def _check_angles(self, theta: float | None) -> None:
        _require(
            self.head_dim % 2 == 0,
            f"num_heads={self.num_heads}: rotary positions rotate pairs of features, but "
            f"hidden_dim / num_heads is {self.head_dim}. Make it even",
        )
        _require(
            theta is None or 0.0 < theta < math.inf,
            f"local_rotary_theta={theta}: must be positive and finite",
        )
        _require(
            theta is None or self.attention_window is not None,
            f"local_rotary_theta={theta}: has no effect without layers with local attention. "
            "Set attention_window, or leave it at None",
        )

    def _check_window(self) -> None:
        window, every = self.attention_window, self.global_every
        _require(every >= 1, f"global_every={every}: must be at least 1")
        if window is None:
            _require(
                every == 1,
                f"global_every={every}: has no effect without local attention. Set "
                "attention_window, or leave it at 1",
            )
            return
        _require(
            window >= 1 and window % 2 == 1,
            f"attention_window={window}: must be odd and positive, because a token sees equally "
            f"many tokens on both sides. Use {max(window, 0) + 1 - max(window, 0) % 2}",
        )
        _require(
            every >= 2,
            f"attention_window={window}: has no effect if every layer has global attention. Set "
            "global_every to 2 or more",
        )

    def _check_norms(self) -> None:
        _require(
            self.norm_kind != "rms" or not self.norm_bias,
            "norm_bias=True: RMSNorm has no bias. Set norm_bias=False or norm_kind='layer'",
        )
        _require(
            self.first_norm or self.norm == "pre",
            f"first_norm=False: only supported by norm='pre', not {self.norm!r}. Set it to True",
        )
        _require(
            self.first_norm or self.sharing == "none",
            f"first_norm=False: the first layer shares its norm with others (sharing="
            f"{self.sharing!r}). Set it to True, or sharing to 'none'",
        )

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
            f"num_groups={self.num_groups}: has no effect if sharing='none'. Set sharing to "
            "'all', 'attention' or 'ffn'",
        )
        _require(
            1 <= self.num_groups <= self.num_layers and self.num_layers % self.num_groups == 0,
            f"num_groups={self.num_groups}: does not divide num_layers={self.num_layers}, but all "
            f"groups must be the same size. Use one of {', '.join(map(str, self._divisors()))}",
        )

    def _divisors(self) -> list[int]:
        return [n for n in range(1, self.num_layers + 1) if self.num_layers % n == 0]

    def window_of(self, layer: int) -> int | None:
        """Return the window of a layer's attention, or None if its attention is global.

        Layers are numbered from 0.
        """
        return None if layer % self.global_every == 0 else self.attention_window

    def theta_of(self, layer: int) -> float:
        """Return the base of a layer's rotary angles."""
        local = self.window_of(layer) is not None and self.local_rotary_theta is not None
        theta = self.local_rotary_theta if local else self.rotary_theta
        assert theta is not None
        return theta

    @property
    def identity(self) -> dict[str, Any]:
        """The values that identify the architecture in checkpoints.

        Fields that earlier versions did not have are left out while they have their defaults, so
        that earlier runs can be resumed.
        """
        values = dataclasses.asdict(self)
        for field in dataclasses.fields(self)[_FIELDS_OF_0_1:]:
            if values[field.name] == field.default:
                del values[field.name]
        return values

    @property
    def table_dim(self) -> int:
        """The dimension of the embedding tables."""
        return self.hidden_dim if self.embedding_dim is None else self.embedding_dim

    @property
    def head_dim(self) -> int:
        """The dimension of an attention head."""
        return self.hidden_dim // self.num_heads

    def parameter_owners(self, layer: int) -> tuple[int, int]:
        """Return the layers that own the attention and feed-forward parameters used by `layer`.

        Layers are numbered from 0. The first layer of a group owns the group's shared parameters.
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
    """Options for computing an encoder, which affect speed and memory but not the parameters.

    Attributes:
      dtype: dtype of activations and matmuls. Parameters, softmax, LayerNorm statistics and losses
        stay in float32. "auto" means bfloat16 on accelerators that support it, and float32 on CPUs
        and on NVIDIA GPUs older than Ampere (T4, V100).
      attention: attention implementation. "auto" selects cuDNN's fused attention for bfloat16 on
        NVIDIA GPUs, provided that `ops` is "fast", `attention_dropout` is 0 (when called through
        JAX, cuDNN cannot draw a new dropout mask at each step) and the head size is supported (a
        multiple of 8, at most 128). Otherwise it selects XLA.
      remat: which activations the backward pass recomputes: "none", all except the outputs of dense
        layers ("dots"), or all except each layer's input ("layer").
      scan_layers: whether to compile one layer and loop over it, instead of unrolling the layers. A
        loop compiles faster, but unrolled layers run faster (607k instead of 432k tokens/s for
        BERT-base on an H200).
      ops: "fast" operations have custom backward passes, which support neither forward-mode
        differentiation nor second derivatives. "plain" operations compute the same values but leave
        differentiation to JAX, so that `jax.jvp`, `jax.linearize` and Hessian-vector products work.
        They cannot be combined with `attention="cudnn"`.
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
            f"compute.ops={self.ops!r}: not supported by cuDNN's attention. Set "
            "compute.attention='xla' (or 'auto')",
        )

    def resolve(self, device: Device, config: EncoderConfig) -> ComputeConfig:
        """Return the config with every "auto" replaced by the best choice for `device`.

        Raises:
          ValueError: cuDNN's attention is requested but does not support the device, the dtype or
            the encoder.
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
    """Return the compute capability of an NVIDIA GPU, such as (8, 6); None for other devices."""
    # AMD GPUs have capabilities such as "gfx90a".
    parts = str(getattr(device, "compute_capability", "")).split(".")
    if device.platform != "gpu" or not all(part.isdigit() for part in parts):
        return None
    return tuple(map(int, parts))


def _fits_cudnn(head_dim: int) -> bool:
    """Return whether cuDNN supports this head size on every GPU that supports bfloat16."""
    return head_dim % 8 == 0 and head_dim <= 128


def _check_cudnn(
    platform: str, capability: tuple[int, ...] | None, dtype: str, config: EncoderConfig
) -> None:
    """Raise a ValueError that suggests a fix if cuDNN's fused attention cannot be used."""
    if capability is None:
        device = "another vendor's GPU" if platform == "gpu" else platform
        raise ValueError(
            f"compute.attention='cudnn' runs only on NVIDIA GPUs, not on {device}. "
            "Set compute.attention='xla' (or 'auto')"
        )
    _require(
        capability >= _AMPERE,
        "compute.attention='cudnn' needs a GPU with compute capability 8.0 (Ampere) or later; this "
        f"one has {'.'.join(map(str, capability))}. Set compute.attention='xla' (or 'auto')",
    )
    _require(
        dtype == "bfloat16",
        f"compute.attention='cudnn' needs compute.dtype='bfloat16', not {dtype!r}. "
        "Set compute.attention='xla' (or 'auto')",
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
        "compute.attention='cudnn' needs a head size that is a multiple of 8, at most 128; "
        f"hidden_dim={config.hidden_dim} / num_heads={config.num_heads} is {config.head_dim}. "
        "Set compute.attention='xla' (or 'auto')",
    )


# Encoder fields that matter only during training.
TRAINING_KEYS = ("hidden_dropout", "attention_dropout", "initializer_range")


def incompatible_fields(first: EncoderConfig, second: EncoderConfig) -> list[str]:
    """Return one line for each difference that changes the outputs, given the same parameters.

    Dropout rates and the initializer are ignored because they matter only during training.
    """
    return [
        line
        for line in differences(dataclasses.asdict(first), dataclasses.asdict(second))
        if not line.startswith(TRAINING_KEYS)
    ]
