"""What is asked of a family of models to take it in from Hugging Face's library, and out again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from bert_jax.finetuning.registry import kind_of_head, task_kinds
from bert_jax.models.config import EncoderConfig
from bert_jax.models.model import ModelConfig, PretrainingHead, classifier_heads
from bert_jax.objectives import SentencePairs

Refusal = tuple[str, str]


def _nothing(content: Mapping[str, Any]) -> dict[str, Any]:
    return {}


@dataclass(frozen=True)
class Family:
    """A family: what its tensors, its classes and the keys of its config.json are called.

    model_type: in config.json. title: for people. prefix: of the encoder's tensors, which the bare
      model's own file leaves out.
    pretraining_classes: their class for each head of pretraining that has one.
    names: our parameters' names to theirs, of a model that `refusal` has nothing against.
    pooler: the prefix of a bare model's pooler; "" if it has none. masked_lm, pairs: those of
      the heads of pretraining; pairs_are: what the latter tells apart. parts: those of everything
      that is on the encoder.
    tied: tensors that are copies, to what they are copies of.
    fields: our names to theirs of values that are the same. activation: their name for that.
    defaults: what their class takes where the file does not say. constants: ours that their file
      has no word for.
    only: what their class can do and ours cannot: the one value that is understood.
    classifier_dropout: the key of the rate before a classifier; tagger_dropout: before one of
      tokens, where that is another.
    names_bounds: whether its config.json names a sequence's first and last token.
    read, write: what of our config the fields and constants do not say, from the file's content,
      and more keys of the file.
    refusal: what of a model of ours is none of the family, and why; None if it is one.
    """

    model_type: str
    title: str
    prefix: str
    pretraining_classes: Mapping[PretrainingHead, str]
    names: Callable[[ModelConfig], dict[str, str]]
    pooler: str
    masked_lm: str
    pairs: str
    parts: tuple[str, ...]
    tied: Mapping[str, str]
    fields: Mapping[str, str]
    defaults: Mapping[str, Any]
    refusal: Callable[[ModelConfig], Refusal | None]
    pairs_are: SentencePairs = "next_sentence"
    names_bounds: bool = False
    activation: str = "hidden_act"
    classifier_dropout: str = "classifier_dropout"
    tagger_dropout: str = ""
    constants: Mapping[str, Any] = field(default_factory=dict)
    only: Mapping[str, Any] = field(default_factory=dict)
    read: Callable[[Mapping[str, Any]], dict[str, Any]] = _nothing
    write: Callable[[EncoderConfig], dict[str, Any]] = lambda encoder: {}

    @property
    def architectures(self) -> dict[str, str]:
        """Their class for each head that has one."""
        family_name = self.pretraining_classes["encoder"].removesuffix("Model")
        return {**self.pretraining_classes} | {
            kind.head.name: family_name + kind.huggingface.class_suffix
            for kind in task_kinds()
            if kind.huggingface is not None
        }

    @property
    def token_table(self) -> str:
        """The tensor of token embeddings."""
        return f"{self.prefix}embeddings.word_embeddings.weight"

    @property
    def position_table(self) -> str:
        """The tensor of position embeddings."""
        return f"{self.prefix}embeddings.position_embeddings.weight"

    def dropout_before(self, head: str) -> str:
        """Return the key of the dropout rate before a classifier."""
        of_tokens = any(
            each.name == head and each.scored == "tokens" for each in classifier_heads()
        )
        return self.tagger_dropout if of_tokens and self.tagger_dropout else self.classifier_dropout

    def part_of(self, name: str) -> str:
        """Which of `parts` a tensor belongs to; "" for the encoder and what is unknown."""
        return next((part for part in self.parts if name.startswith(part)), "")


def whole_number(content: Mapping[str, Any], key: str) -> int:
    """Return the integer under `key` of a config.json; raise ValueError for anything else."""
    value = content[key]
    if type(value) is not int:
        raise ValueError(f"{key} is {value!r}; expected a whole number")
    return value


def dense(ours: str, theirs: str) -> dict[str, str]:
    """The names of a dense layer's kernel and bias."""
    return {f"{ours}.kernel": f"{theirs}.weight", f"{ours}.bias": f"{theirs}.bias"}


def norm(ours: str, theirs: str) -> dict[str, str]:
    """The names of a LayerNorm's scale and bias."""
    return {f"{ours}.scale": f"{theirs}.weight", f"{ours}.bias": f"{theirs}.bias"}


def layer(
    ours: str, theirs: str, products: Mapping[str, str], norms: Mapping[str, str]
) -> dict[str, str]:
    """The names of a layer's parameters, from those of its parts."""
    names: dict[str, str] = {}
    for here, there in products.items():
        names |= dense(f"{ours}.{here}", f"{theirs}.{there}")
    for here, there in norms.items():
        names |= norm(f"{ours}.{here}", f"{theirs}.{there}")
    return names


def classifier(config: ModelConfig) -> dict[str, str]:
    """Return the names of the dense layer that computes a classifier's scores."""
    kind = kind_of_head(config.head)
    assert kind is not None and kind.huggingface is not None
    return dense("classifier", kind.huggingface.classifier)


def odd_encoder(config: ModelConfig) -> Refusal | None:
    """What of an encoder none of the families has."""
    for name, value in (("norm", "post"), ("positions", "learned")):
        found = getattr(config.encoder, name)
        if found != value:
            return f"model.{name}={found!r}", f"has {value!r} alone"
    return None
