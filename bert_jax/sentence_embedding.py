"""The settings with which sentence-transformers models embed a text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from bert_jax.suggestions import nearest

# The library's names, in the order in which it concatenates modes given as flags.
PoolingMode = Literal["cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"]
Similarity = Literal["cosine", "dot", "euclidean", "manhattan"]
# A run that starts from such a model drops the settings, which do not apply to the trained encoder.
SETTINGS_DROPPED = "its sentence-embedding settings (pooling, prompts) are dropped"


@dataclass(frozen=True)
class SentenceEmbedding:
    """The settings of a sentence embedding.

    pooling: the pooling modes of the last layer's token vectors; the vectors of several modes are
      concatenated in this order.
    normalize: whether to scale the vector to length 1.
    max_length: most tokens of a text, including special tokens; None for all of the model's
      positions.
    prompts: prompts that can be prepended to a text, by name. default_prompt_name: the prompt used
      by default; None for none.
    include_prompt: whether to pool the prompt's tokens too.
    truncate_dim: the number of leading values of the vector to keep; None for all.
    similarity: the similarity measure that the vectors were trained for.
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
                f"default_prompt_name={self.default_prompt_name!r}: no such prompt. Expected one "
                f"of: {', '.join(map(repr, self.prompts)) or 'no prompts'}"
            )

    def prompt_for(self, prompt_name: str | None, prompt: str | None) -> str:
        """Return the prompt to prepend to a text: the given, the named or the default one.

        Raises:
          ValueError: the model has no such prompt, or both a prompt and a name are given.
        """
        if prompt is not None:
            if prompt_name is not None:
                raise ValueError(
                    f"prompt={prompt!r} and prompt_name={prompt_name!r} are both given. Give one"
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
        """Return the settings in readable form, by name, without those that have no effect."""
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
