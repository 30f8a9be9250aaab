"""The description of a model family, from which models are imported and exported."""

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
    """A model family in Hugging Face's library: the names of tensors, classes and config keys.

    In the following, HF means Hugging Face.

    Attributes:
      model_type: the family's `model_type` in config.json.
      title: the family's name for messages.
      prefix: the prefix of the encoder's tensors, which the file of a bare model omits.
      pretraining_classes: HF's class for every pretraining head that the family supports.
      names: returns HF's tensor names by our parameter names for a model without a `refusal`.
      pooler: the prefix of a bare model's pooler; "" without one.
      masked_lm: the prefix of the masked-LM head.
      pairs: the prefix of the sentence-pair head; "" without one.
      parts: the prefixes of all modules besides the encoder.
      tied: the names of tensors that are copies, each with the name of the original tensor.
      fields: HF's names of config values by our names, where the values are the same.
      defaults: HF's values for keys that a config.json omits.
      refusal: returns an unsupported setting of a model and the reason; None if there is none.
      pairs_are: the task of the sentence-pair head.
      names_bounds: whether config.json names the first and the last token of a sequence.
      activation: HF's name of the activation.
      classifier_dropout: the key of the dropout rate before a classifier.
      tagger_dropout: the key for classifiers of tokens if it is a different one.
      constants: our values that config.json cannot express.
      only: the only values that are supported here for keys where HF's class supports others.
      read: returns additional fields of our config from the content of config.json.
      write: returns additional keys of config.json.
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
        """HF's class for every head that the family supports."""
        family_name = self.pretraining_classes["encoder"].removesuffix("Model")
        return {**self.pretraining_classes} | {
            kind.head.name: family_name + kind.huggingface.class_suffix
            for kind in task_kinds()
            if kind.huggingface is not None
        }

    @property
    def token_table(self) -> str:
        """The name of the tensor of token embeddings."""
        return f"{self.prefix}embeddings.word_embeddings.weight"

    @property
    def position_table(self) -> str:
        """The name of the tensor of position embeddings."""
        return f"{self.prefix}embeddings.position_embeddings.weight"

    def dropout_before(self, head: str) -> str:
        """Return the key of the dropout rate before a classifier."""
        scores_tokens = any(
            candidate.name == head and candidate.scored == "tokens"
            for candidate in classifier_heads()
        )
        if scores_tokens and self.tagger_dropout:
            return self.tagger_dropout
        return self.classifier_dropout

    def part_of(self, name: str) -> str:
        """Return the element of `parts` to which a tensor belongs; "" for all other tensors."""
        return next((part for part in self.parts if name.startswith(part)), "")


def whole_number(content: Mapping[str, Any], key: str) -> int:
    """Return the integer under `key` of a config.json; raise ValueError for anything else."""
    value = content[key]
    if type(value) is not int:
        raise ValueError(f"{key} is {value!r}; expected a whole number")
    return value


def dense(name: str, hf_name: str) -> dict[str, str]:
    """Return the names of a dense layer's kernel and bias."""
    return {f"{name}.kernel": f"{hf_name}.weight", f"{name}.bias": f"{hf_name}.bias"}


def norm(name: str, hf_name: str) -> dict[str, str]:
    """Return the names of a LayerNorm's scale and bias."""
    return {f"{name}.scale": f"{hf_name}.weight", f"{name}.bias": f"{hf_name}.bias"}


def layer(
    prefix: str, hf_prefix: str, products: Mapping[str, str], norms: Mapping[str, str]
) -> dict[str, str]:
    """Return the names of a layer's parameters from the names of its modules."""
    names: dict[str, str] = {}
    for name, hf_name in products.items():
        names |= dense(f"{prefix}.{name}", f"{hf_prefix}.{hf_name}")
    for name, hf_name in norms.items():
        names |= norm(f"{prefix}.{name}", f"{hf_prefix}.{hf_name}")
    return names


def classifier(config: ModelConfig) -> dict[str, str]:
    """Return the names of the dense layer that computes a classifier's scores."""
    kind = kind_of_head(config.head)
    assert kind is not None and kind.huggingface is not None
    return dense("classifier", kind.huggingface.classifier)


def odd_encoder(config: ModelConfig) -> Refusal | None:
    """Return a setting of an encoder that no family supports; None if there is none."""
    for name, supported in (("norm", "post"), ("positions", "learned")):
        value = getattr(config.encoder, name)
        if value != supported:
            return f"model.{name}={value!r}", f"supports only {supported!r}"
    return None
