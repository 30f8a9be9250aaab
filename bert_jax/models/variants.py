"""Define the published encoders (`VARIANTS`); `variant` returns one of them by name."""

from __future__ import annotations

from typing import Any

from bert_jax.models.config import EncoderConfig


def _sizes(num_layers: int, hidden_dim: int, num_heads: int) -> dict[str, Any]:
    """Return the sizes of an encoder whose feed-forward dimension is 4 x `hidden_dim`."""
    return dict(
        num_layers=num_layers, hidden_dim=hidden_dim, num_heads=num_heads, ffn_dim=4 * hidden_dim
    )


# RoBERTa has a byte-level vocabulary. In its release, positions start at row 2 of the table and
# there is one segment.
_ROBERTA: dict[str, Any] = dict(
    vocab_size=50_265,
    num_segments=1,
    position_offset=2,
    layer_norm_epsilon=1e-5,
    pooler_dropout=True,
)
_ALBERT: dict[str, Any] = dict(vocab_size=30_000, embedding_dim=128, sharing="all")
# These values are from the second release. The first release uses the erf form of GELU, and a
# dropout rate of 0.1 for all sizes up to xlarge.
_ALBERT_2 = _ALBERT | dict(activation="gelu_tanh", hidden_dropout=0.0, attention_dropout=0.0)
_DISTILBERT: dict[str, Any] = dict(num_segments=0, pooler_activation="relu")
# Except in the small models, the embeddings are as wide as the discriminator.
_ELECTRA: dict[str, Any] = dict(pooler_activation="gelu", pooler_dropout=True)
_MODERNBERT: dict[str, Any] = dict(
    vocab_size=50_368,
    max_positions=8192,
    num_segments=0,
    hidden_dropout=0.0,
    attention_dropout=0.0,
    layer_norm_epsilon=1e-5,
    positions="rotary",
    rotary_theta=160_000.0,
    local_rotary_theta=10_000.0,
    attention_window=129,
    global_every=3,
    norm="pre",
    norm_bias=False,
    first_norm=False,
    dense_bias=False,
    gated_ffn=True,
    classifier_transform="prediction",
)
_NEOBERT: dict[str, Any] = dict(
    vocab_size=30_522,
    max_positions=4096,
    num_segments=0,
    hidden_dropout=0.0,
    attention_dropout=0.0,
    activation="silu",
    layer_norm_epsilon=1e-5,
    positions="rotary",
    norm="pre",
    norm_kind="rms",
    norm_bias=False,
    embedding_norm=False,
    dense_bias=False,
    gated_ffn=True,
    head_transform=False,
    tied_output=False,
)

# tiny, mini, small and medium: Turc et al. 2019, "Well-Read Students Learn Better", table 1.
# base and large: Devlin et al. 2019, section 3. roberta: Liu et al. 2019, "RoBERTa", section 3.1
# and appendix A. albert: Lan et al. 2020, "ALBERT", table 1. distilbert: Sanh et al. 2019,
# "DistilBERT", section 3. electra: Clark et al. 2020, "ELECTRA", table 6; the small generator has
# the sizes of the released model, which is as large as its discriminator. modernbert: Warner et al.
# 2024, "Smarter, Better, Faster, Longer", appendix A; its window of 128 tokens does not count the
# token itself. neobert: Le Breton et al. 2025, "NeoBERT", table 1 and its release.
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
    "electra-small": _sizes(12, 256, 4) | _ELECTRA | dict(embedding_dim=128),
    "electra-base": _sizes(12, 768, 12) | _ELECTRA,
    "electra-large": _sizes(24, 1024, 16) | _ELECTRA,
    "electra-small-generator": _sizes(12, 256, 4) | _ELECTRA | dict(embedding_dim=128),
    "electra-base-generator": _sizes(12, 256, 4) | _ELECTRA | dict(embedding_dim=768),
    "electra-large-generator": _sizes(24, 256, 4) | _ELECTRA | dict(embedding_dim=1024),
    "modernbert-base": _sizes(22, 768, 12) | _MODERNBERT | dict(ffn_dim=1152),
    "modernbert-large": _sizes(28, 1024, 16) | _MODERNBERT | dict(ffn_dim=2624),
    "neobert": _sizes(28, 768, 12) | _NEOBERT | dict(ffn_dim=2048),
}


def variant(name: str, **changes: Any) -> EncoderConfig:
    """Return the published encoder called `name`, with `changes` applied.

    Raises:
      ValueError: there is no such variant.
    """
    if name not in VARIANTS:
        raise ValueError(f"unknown variant {name!r}: expected one of {', '.join(VARIANTS)}")
    return EncoderConfig(**(VARIANTS[name] | changes))
