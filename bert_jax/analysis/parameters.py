"""Parameters of a model, part by part."""

from __future__ import annotations

from collections.abc import Mapping

import jax

from bert_jax.models.parameters import count

# Prefix of the parameter names -> what a person calls the part; the first match counts.
PARTS: tuple[tuple[str, str], ...] = (
    ("encoder.embeddings.token", "token embedding"),
    ("encoder.embeddings.position", "position embedding"),
    ("encoder.embeddings.segment", "segment embedding"),
    ("encoder.embeddings.norm", "embedding LayerNorm"),
    ("encoder.embeddings.projection", "embedding projection"),
    (".attention.", "self-attention"),
    (".attention_norm.", "attention LayerNorm"),
    (".ffn.", "feed-forward"),
    (".ffn_norm.", "feed-forward LayerNorm"),
    ("encoder.final_norm", "final LayerNorm"),
    ("pooler", "pooler"),
    ("masked_lm", "masked-LM head (output tied to the token embedding)"),
    ("next_sentence", "sentence-pair head"),
    ("classifier", "classifier"),
)


def parameters_by_part(
    shapes: Mapping[str, jax.ShapeDtypeStruct],
) -> dict[str, dict[str, jax.ShapeDtypeStruct]]:
    """The parameters of each part of `PARTS` that the model has, in that order.

    Raises:
      ValueError: a parameter belongs to no part.
    """
    parts: dict[str, dict[str, jax.ShapeDtypeStruct]] = {title: {} for _, title in PARTS}
    for name, shape in shapes.items():
        titles = [title for prefix, title in PARTS if prefix in name]
        if not titles:
            raise ValueError(f"parameter {name} belongs to no known part of the model")
        parts[titles[0]][name] = shape
    return {title: found for title, found in parts.items() if found}


def counts_by_part(shapes: Mapping[str, jax.ShapeDtypeStruct]) -> dict[str, int]:
    """Number of parameters in each part."""
    return {title: count(found) for title, found in parameters_by_part(shapes).items()}
