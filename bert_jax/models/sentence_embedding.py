"""Define the settings and the pooling of sentence embeddings, as in sentence-transformers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, assert_never

import jax
import jax.numpy as jnp

from bert_jax.validation import nearest

# sentence-transformers uses the same names. If a config of sentence-transformers enables several
# modes, their results are concatenated in this order.
PoolingMode = Literal["cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"]
Similarity = Literal["cosine", "dot", "euclidean", "manhattan"]
# A run that starts from a sentence-embedding model drops the settings, since they do not apply to
# the encoder that it trains.
SETTINGS_DROPPED = "its sentence-embedding settings (pooling, prompts) are dropped"


@dataclass(frozen=True)
class SentenceEmbedding:
    """Settings for computing sentence embeddings.

    Attributes:
      pooling: how the last layer's token vectors are pooled. If multiple modes are given, their
        results are concatenated in the given order.
      normalize: whether to scale the sentence vector to length 1.
      max_length: the maximum number of tokens in a text, including special tokens; if None, all of
        the model's positions can be used.
      prompts: prompts that can be prepended to a text, keyed by name.
      default_prompt_name: the name of the prompt to use by default; None for no prompt.
      include_prompt: whether pooling includes the prompt's tokens.
      truncate_dim: how many leading values of the vector to keep; None for all.
      similarity: the similarity measure for which the vectors were trained.
    """

    pooling: tuple[PoolingMode, ...] = ("mean",)
    normalize: bool = False
    max_length: int | None = None
    prompts: Mapping[str, str] = field(default_factory=dict, hash=False)
    default_prompt_name: str | None = None
    include_prompt: bool = True
    truncate_dim: int | None = None
    similarity: Similarity = "cosine"

    def __post_init__(self) -> None:
        if not self.pooling:
            raise ValueError("pooling is empty. Expected at least one mode")
        for name, number in (("max_length", self.max_length), ("truncate_dim", self.truncate_dim)):
            if number is not None and number < 1:
                raise ValueError(f"{name}={number}: expected 1 or more")
        if self.default_prompt_name is not None and self.default_prompt_name not in self.prompts:
            raise ValueError(
                f"default_prompt_name={self.default_prompt_name!r}: no such prompt. Available "
                f"prompts: {', '.join(map(repr, self.prompts)) or 'none'}"
            )

    def prompt_for(self, prompt_name: str | None, prompt: str | None) -> str:
        """Return the prompt to prepend: `prompt`, the one called `prompt_name`, or the default.

        Raises:
          ValueError: the model has no such prompt, or both a prompt and a name are given.
        """
        if prompt is not None:
            if prompt_name is not None:
                raise ValueError(
                    f"prompt={prompt!r} and prompt_name={prompt_name!r} are both set. Set only one "
                    "of them"
                )
            return prompt
        name = self.default_prompt_name if prompt_name is None else prompt_name
        if name is None:
            return ""
        if name not in self.prompts:
            hint = nearest(name, self.prompts) if self.prompts else "the model has no prompts"
            raise ValueError(f"prompt_name={name!r}: no such prompt; {hint}")
        return self.prompts[name]

    def described(self) -> dict[str, str]:
        """Return a dict with a readable value for each setting that has an effect."""
        rows = {
            "pooling": " + ".join(self.pooling),
            "normalized": "yes" if self.normalize else "no",
            "max_length": "" if self.max_length is None else str(self.max_length),
            "truncate_dim": "" if self.truncate_dim is None else str(self.truncate_dim),
            "prompts": ", ".join(f"{name}={text!r}" for name, text in self.prompts.items() if text),
            "default_prompt_name": self.default_prompt_name or "",
            "prompt pooled": "" if self.include_prompt else "no",
            "similarity": self.similarity,
        }
        return {name: value for name, value in rows.items() if value}


# The minimum vector length that normalization divides by, which avoids a division by zero.
_SHORTEST = 1e-12


def sentence_vectors(
    hidden: jax.Array,
    attention_mask: jax.Array,
    skipped: jax.Array | int,
    settings: SentenceEmbedding,
) -> jax.Array:
    """Pool the token vectors of each text according to `settings`.

    Args:
      hidden: [batch, length, hidden_dim], the last layer's output.
      attention_mask: [batch, length], 1 for tokens and 0 for the padding that follows them.
      skipped: the number of leading tokens to exclude from pooling.
      settings: the settings; only `pooling`, `normalize` and `truncate_dim` are used.

    Returns:
      float32 [batch, number of modes * hidden_dim], truncated to `truncate_dim` values per row.

    Source: Reimers and Gurevych 2019 ("Sentence-BERT"), section 3; weightedmean: Muennighoff 2022
    ("SGPT"), section 3.1.
    """
    hidden = hidden.astype(jnp.float32)
    kept = (attention_mask > 0) & (jnp.arange(hidden.shape[1]) >= skipped)
    vectors = jnp.concatenate([_pooled(mode, hidden, kept) for mode in settings.pooling], axis=-1)
    if settings.normalize:
        lengths = jnp.linalg.norm(vectors, axis=-1, keepdims=True)
        vectors = vectors / jnp.maximum(lengths, _SHORTEST)
    return vectors[:, : settings.truncate_dim]


def _pooled(mode: PoolingMode, hidden: jax.Array, kept: jax.Array) -> jax.Array:
    """Pool the vectors in `hidden` [batch, length, dim] where `kept` [batch, length] is True."""
    length = hidden.shape[1]
    weights = kept.astype(jnp.float32)[..., None]
    match mode:
        case "cls":
            return _at(hidden, jnp.argmax(kept, axis=1))
        case "lasttoken":
            return _at(hidden, length - 1 - jnp.argmax(kept[:, ::-1], axis=1))
        case "max":
            return jnp.where(kept[..., None], hidden, -jnp.inf).max(axis=1)
        case "mean":
            return (hidden * weights).sum(axis=1) / jnp.maximum(weights.sum(axis=1), 1)
        case "mean_sqrt_len_tokens":
            return (hidden * weights).sum(axis=1) / jnp.sqrt(jnp.maximum(weights.sum(axis=1), 1))
        case "weightedmean":
            # Weight each token by its position, counted from 1, since a decoder's later tokens have
            # more context.
            weights = weights * jnp.arange(1, length + 1, dtype=jnp.float32)[:, None]
            return (hidden * weights).sum(axis=1) / jnp.maximum(weights.sum(axis=1), 1)
    assert_never(mode)


def _at(hidden: jax.Array, places: jax.Array) -> jax.Array:
    """Return the vectors [batch, hidden_dim] at `places` [batch], one per row."""
    return jnp.take_along_axis(hidden, places[:, None, None], axis=1)[:, 0]
