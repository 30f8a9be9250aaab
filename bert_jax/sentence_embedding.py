"""How a model turns a text into one vector: settings that sentence-transformers models have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from bert_jax.suggestions import nearest

# The library's own names, in the order in which it concatenates modes that are given as flags.
PoolingMode = Literal["cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"]
Similarity = Literal["cosine", "dot", "euclidean", "manhattan"]
# For a run that starts from such a model: after training the settings are of another encoder.
SETTINGS_DROPPED = "its settings for the vector of a text (pooling, prompts) are dropped"


@dataclass(frozen=True)
class SentenceEmbedding:
    """The steps from a text to its vector.

    pooling: how the last layer's token vectors become one; several are concatenated in this order.
    normalize: scale the vector to length 1.
    max_length: most tokens of a text, special ones included; None for all positions of the model.
    prompts: texts to put before a text, by name. default_prompt_name: the one to use when none is
      asked for; None for none.
    include_prompt: pool the prompt's tokens too, and not only those after it.
    truncate_dim: keep the first N values of the vector; None keeps all.
    similarity: the measure that the vectors were trained for.
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
            raise ValueError("pooling is empty; expected at least one mode")
        for name, number in (("max_length", self.max_length), ("truncate_dim", self.truncate_dim)):
            if number is not None and number < 1:
                raise ValueError(f"{name}={number}: expected 1 or more")
        if self.default_prompt_name is not None and self.default_prompt_name not in self.prompts:
            raise ValueError(
                f"default_prompt_name={self.default_prompt_name!r}: no such prompt; the prompts "
                f"are {', '.join(map(repr, self.prompts)) or 'empty'}"
            )

    def prompt_for(self, prompt_name: str | None, prompt: str | None) -> str:
        """Return the prompt to put before a text: given, named or the default.

        Raises:
          ValueError: the model has no such prompt, or both a prompt and a name are given.
        """
        if prompt is not None:
            if prompt_name is not None:
                raise ValueError(
                    f"prompt={prompt!r} and prompt_name={prompt_name!r}: give only one of them"
                )
            return prompt
        name = self.default_prompt_name if prompt_name is None else prompt_name
        if name is None:
            return ""
        if name not in self.prompts:
            named = nearest(name, self.prompts) if self.prompts else "the model has no prompts"
            raise ValueError(f"prompt_name={name!r}: no such prompt; {named}")
        return self.prompts[name]

    def described(self) -> dict[str, str]:
        """Return the settings for people, by name; those that change nothing are left out."""
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
