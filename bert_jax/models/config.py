"""Describe an encoder's architecture."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, assert_never

from bert_jax.models.config_checks import (
    ROTARY_THETA,
    check_groups,
    check_limits,
    check_norms,
    check_rotary,
    check_window,
    require,
    require_choice,
)
from bert_jax.models.options import (
    Activation,
    ClassifierTransform,
    NormKind,
    NormPlacement,
    PoolerActivation,
    Pooling,
    PositionKind,
    Sharing,
)
from bert_jax.validation import differences

# The number of fields that `EncoderConfig` had in version 0.1.0; see `EncoderConfig.identity`.
_FIELDS_OF_0_1 = 20


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
      layer_norm_epsilon: constant that LayerNorm adds to the variance, and RMSNorm to the mean
        square.
      initializer_range: standard deviation of the truncated normal initializer, before truncation.
      positions: "learned" or "sinusoidal" position vectors, or "rotary" to rotate queries and keys
        by angles that grow with the position (Su et al. 2021, section 3.4).
      norm: "post" for a norm after each residual addition (BERT), or "pre" for a norm before each
        block in a layer and one after the last layer.
      embedding_dim: dimension of the three embedding tables and of the masked-LM head's transform.
        A dense layer projects the embeddings to `hidden_dim` (Lan et al. 2020, section 3.1,
        "factorized embedding parameterization"). If None, it is `hidden_dim` and there is no
        projection.
      position_offset: number of unused rows at the start of the position table (2 in RoBERTa's
        release).
      sharing: parameters that the layers in a group share: "none", "all", or only those of the
        "attention" or "ffn" (feed-forward) block and its norm (Lan et al. 2020, section 3.1).
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
        local attention (Beltagy et al. 2020, "Longformer", section 3.1). It must be odd, since a
        token attends to the same number of tokens on both sides. None for global attention in all
        layers.
      global_every: distance between layers with global attention, starting with the first layer.
        All other layers have local attention.
      norm_kind: "layer" for LayerNorm (Ba et al. 2016), or "rms" for RMSNorm, which only divides by
        the root mean square (Zhang and Sennrich 2019).
      norm_bias: whether norms have a bias.
      first_norm: whether the attention block of the first layer has a norm (required with
        norm="post"). If not, the norm of the embeddings replaces it (Warner et al. 2024,
        "ModernBERT", section 2.1.1).
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
      attention_output_dropout: dropout rate for the output of attention blocks; None for
        `hidden_dropout`. ModernBERT uses dropout only there (Warner et al. 2024, table 3).

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
    rotary_theta: float = ROTARY_THETA
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
    attention_output_dropout: float | None = None

    def __post_init__(self) -> None:
        for name in ("vocab_size", "hidden_dim", "num_layers", "num_heads", "ffn_dim"):
            require(getattr(self, name) >= 1, f"{name}={getattr(self, name)}: must be at least 1")
        require(self.max_positions >= 1, f"max_positions={self.max_positions}: must be >= 1")
        require(self.num_segments >= 0, f"num_segments={self.num_segments}: must be >= 0")
        check_limits(
            num_layers=self.num_layers,
            num_segments=self.num_segments,
            max_positions=self.max_positions,
            position_offset=self.position_offset,
            vocab_size=self.vocab_size,
            hidden_dim=self.hidden_dim,
            ffn_dim=self.ffn_dim,
            embedding_dim=self.embedding_dim,
        )
        require(
            self.hidden_dim % self.num_heads == 0,
            f"hidden_dim={self.hidden_dim}: not divisible by num_heads={self.num_heads}, but every "
            "head gets hidden_dim / num_heads features. Change one of them",
        )
        for name in ("hidden_dropout", "attention_dropout", "attention_output_dropout"):
            require(
                0.0 <= (getattr(self, name) or 0.0) < 1.0,
                f"{name}={getattr(self, name)}: a dropout rate must be in [0, 1)",
            )
        for name in ("layer_norm_epsilon", "initializer_range", "rotary_theta"):
            require(
                0.0 < getattr(self, name) < math.inf,
                f"{name}={getattr(self, name)}: must be positive and finite",
            )
        require_choice("activation", self.activation, Activation)
        require_choice("positions", self.positions, PositionKind)
        require_choice("norm", self.norm, NormPlacement)
        require_choice("sharing", self.sharing, Sharing)
        require_choice("pooler_activation", self.pooler_activation, PoolerActivation)
        require_choice("norm_kind", self.norm_kind, NormKind)
        require_choice("classifier_transform", self.classifier_transform, ClassifierTransform)
        require_choice("pooling", self.pooling, Pooling)
        require(
            self.embedding_dim is None or self.embedding_dim >= 1,
            f"embedding_dim={self.embedding_dim}: must be at least 1, or None for hidden_dim",
        )
        dim = "embedding_dim" if self.embedding_dim else "hidden_dim"
        require(
            self.positions != "sinusoidal" or self.table_dim % 2 == 0,
            f"{dim}={self.table_dim}: sinusoidal positions need an even {dim}",
        )
        require(
            self.position_offset == 0 or (self.position_offset > 0 and self.positions == "learned"),
            f"position_offset={self.position_offset}: must be >= 0, and 0 unless "
            "positions='learned'",
        )
        check_groups(self.num_layers, self.num_groups, self.sharing)
        check_rotary(
            self.positions,
            self.rotary_theta,
            self.local_rotary_theta,
            self.attention_window,
            self.num_heads,
            self.head_dim,
        )
        check_window(self.attention_window, self.global_every)
        check_norms(self.norm, self.norm_kind, self.norm_bias, self.first_norm, self.sharing)
        require(
            self.head_transform or self.embedding_dim is None,
            f"head_transform=False: with embedding_dim={self.embedding_dim}, the masked-LM head "
            "needs its transform to map to that dimension. Set head_transform=True",
        )

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

        Fields that were added after version 0.1.0 are left out if they have their default values,
        so that runs of earlier versions can be resumed.
        """
        values = dataclasses.asdict(self)
        for field in dataclasses.fields(self)[_FIELDS_OF_0_1:]:
            if values[field.name] == field.default:
                del values[field.name]
        return values

    @property
    def attention_output_rate(self) -> float:
        """The dropout rate for the output of attention blocks."""
        rate = self.attention_output_dropout
        return self.hidden_dropout if rate is None else rate

    @property
    def table_dim(self) -> int:
        """The dimension of the embedding tables."""
        return self.hidden_dim if self.embedding_dim is None else self.embedding_dim

    @property
    def head_dim(self) -> int:
        """The dimension of an attention head."""
        return self.hidden_dim // self.num_heads

    def parameter_owners(self, layer: int) -> tuple[int, int]:
        """Return the layers that provide the attention and feed-forward parameters for `layer`.

        Layers are numbered from 0. Shared parameters come from the first layer of the group.
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


def complete_identity(identity: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of `EncoderConfig.identity` along with the default values that it omits."""
    fields = dataclasses.fields(EncoderConfig)[_FIELDS_OF_0_1:]
    return {field.name: field.default for field in fields} | dict(identity)


# Encoder fields that matter only during training.
TRAINING_KEYS = (
    "hidden_dropout",
    "attention_dropout",
    "attention_output_dropout",
    "initializer_range",
)


def incompatible_fields(first: EncoderConfig, second: EncoderConfig) -> list[str]:
    """Return a line for each difference between two encoders that affects their outputs.

    Such a difference changes the outputs even if the parameters are equal. Dropout rates and the
    initializer are ignored because they matter only during training.
    """
    return [
        line
        for line in differences(dataclasses.asdict(first), dataclasses.asdict(second))
        if not line.startswith(TRAINING_KEYS)
    ]
