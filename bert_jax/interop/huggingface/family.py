"""Define how a model family is described, so that its models can be imported and exported."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from bert_jax.finetuning.registry import kind_of_head, task_kinds
from bert_jax.models.config import EncoderConfig
from bert_jax.models.model import ModelConfig, PretrainingHead, Scored, classifier_heads
from bert_jax.objectives import SentencePairs

Refusal = tuple[str, str]


def _nothing(content: Mapping[str, Any]) -> dict[str, Any]:
    return {}


@dataclass(frozen=True)
class Family:
    """A model family in Hugging Face's library, with the names it uses in weights and configs.

    Below, HF stands for Hugging Face.

    Attributes:
      model_type: the family's `model_type` in config.json.
      title: the family's name in messages.
      prefix: the prefix of the encoder's tensor names, which files of bare models omit.
      pretraining_classes: the HF class for each pretraining head that the family supports.
      names: a function that returns a dict from our parameter names to HF's tensor names. It may
        only be called for models that the family supports.
      pooler: the prefix of the pooler in a bare model, or "" if bare models have no pooler.
      masked_lm: the prefix of the masked-LM head.
      pairs: the prefix of the sentence-pair head, or "" if the family has none.
      replaced_token: the prefix of the replaced-token head, or "" if the family has none.
      parts: the prefixes of all modules except the encoder.
      tied: a dict from the name of each tied tensor to the name of the tensor it copies.
      fields: a dict that maps our config fields to HF's keys, for settings with the same values.
      defaults: HF's default values for keys that config.json may omit.
      refusal: a function that returns unsupported settings and the reason, or None if the family
        supports the model.
      pairs_are: the task that the sentence-pair head is trained on.
      first_keys: HF's keys for the id of the first token of a sequence.
      last_keys: HF's keys for the id of the last token of a sequence.
      activation: HF's key for the activation.
      head_activation: HF's key for the activation in the heads, if they have a separate key.
      classifier_dropout: HF's key for the dropout rate before a classifier.
      tagger_dropout: HF's key for the dropout rate before a token classifier, if it is not
        `classifier_dropout`.
      choice_dropout: HF's key for the dropout rate before a multiple-choice classifier, if it is
        not `classifier_dropout`.
      constants: values of our config fields that config.json has no key for.
      only: a dict that maps keys for which HF's class allows several values to the only value that
        we support.
      blocks: a dict from names of our modules to (index, number of blocks). The parameters of such
        a module are one of several blocks of rows in an HF tensor.
      classifier: HF's name for the last layer of every classifier, if all have the same name.
      token_name: the name of the token embedding tensor, without `prefix`.
      read: a function that returns additional fields for our config from a parsed config.json.
      write: a function that returns additional keys to write to config.json.
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
    replaced_token: str = ""
    first_keys: tuple[str, ...] = ()
    last_keys: tuple[str, ...] = ()
    activation: str = "hidden_act"
    head_activation: str = ""
    classifier_dropout: str = "classifier_dropout"
    tagger_dropout: str = ""
    choice_dropout: str = ""
    constants: Mapping[str, Any] = field(default_factory=dict)
    only: Mapping[str, Any] = field(default_factory=dict)
    blocks: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    classifier: str = ""
    token_name: str = "embeddings.word_embeddings.weight"
    read: Callable[[Mapping[str, Any]], dict[str, Any]] = _nothing
    write: Callable[[EncoderConfig], dict[str, Any]] = lambda encoder: {}

    @property
    def architectures(self) -> dict[str, str]:
        """The HF class for each head that the family supports."""
        family_name = self.pretraining_classes["encoder"].removesuffix("Model")
        return {**self.pretraining_classes} | {
            kind.head.name: family_name + kind.huggingface.class_suffix
            for kind in task_kinds()
            if kind.huggingface is not None
        }

    @property
    def activation_keys(self) -> tuple[str, ...]:
        """HF's keys for the activation."""
        return tuple(filter(None, (self.activation, self.head_activation)))

    @property
    def token_table(self) -> str:
        """The name of the token embedding tensor."""
        return self.prefix + self.token_name

    @property
    def output_table(self) -> str:
        """The name of the masked-LM head's output table, which most models tie to `token_table`."""
        return next(copy for copy, original in self.tied.items() if original == self.token_table)

    def block_of(self, name: str) -> tuple[int, int]:
        """Return a parameter's (block index, number of blocks); (0, 1) if it fills the tensor."""
        module = name.rpartition(".")[0]
        return next((b for key, b in self.blocks.items() if module.endswith(f".{key}")), (0, 1))

    def tied_in(self, encoder: EncoderConfig) -> dict[str, str]:
        """Return a dict that maps each tied tensor in a model to the tensor it copies."""
        return dict(self.tied) if encoder.tied_output else {}

    def unused_in(self, encoder: EncoderConfig) -> dict[str, str]:
        """Return a dict that maps each unused tensor of a model to the tensor used instead.

        An untied output layer has its own bias. HF's classes also contain the bias that a tied
        layer would use, but never read it.
        """
        if encoder.tied_output:
            return {}
        return {old: new for new, old in self.tied.items() if old != self.token_table}

    @property
    def position_table(self) -> str:
        """The name of the position embedding tensor."""
        return f"{self.prefix}embeddings.position_embeddings.weight"

    def dropout_before(self, head: str) -> str:
        """Return HF's key for the dropout rate before a classifier with the given head."""
        scored = {candidate.name: candidate.scored for candidate in classifier_heads()}[head]
        own: dict[Scored, str] = {"tokens": self.tagger_dropout, "choices": self.choice_dropout}
        return own.get(scored) or self.classifier_dropout

    def part_of(self, name: str) -> str:
        """Return the prefix in `parts` that a tensor's name begins with, or "" if there is none."""
        return next((part for part in self.parts if name.startswith(part)), "")


def whole_number(content: Mapping[str, Any], key: str) -> int:
    """Return the integer stored under `key` in a config.json; raise ValueError for other types."""
    value = content[key]
    if type(value) is not int:
        raise ValueError(f"{key} is {value!r}; expected a whole number")
    return value


def dense(name: str, hf_name: str) -> dict[str, str]:
    """Map our names for a dense layer's kernel and bias to Hugging Face's names."""
    return {f"{name}.kernel": f"{hf_name}.weight", f"{name}.bias": f"{hf_name}.bias"}


def norm(name: str, hf_name: str) -> dict[str, str]:
    """Map our names for a norm's scale and bias to Hugging Face's names."""
    return {f"{name}.scale": f"{hf_name}.weight", f"{name}.bias": f"{hf_name}.bias"}


def layer(
    prefix: str, hf_prefix: str, products: Mapping[str, str], norms: Mapping[str, str]
) -> dict[str, str]:
    """Map our names for a layer's parameters to Hugging Face's names.

    Args:
      prefix: our prefix for the layer.
      hf_prefix: Hugging Face's prefix for the layer.
      products: a dict that maps our names for the layer's dense modules to Hugging Face's names.
      norms: a dict that maps our names for the layer's norms to Hugging Face's names.
    """
    names: dict[str, str] = {}
    for name, hf_name in products.items():
        names |= dense(f"{prefix}.{name}", f"{hf_prefix}.{hf_name}")
    for name, hf_name in norms.items():
        names |= norm(f"{prefix}.{name}", f"{hf_prefix}.{hf_name}")
    return names


def classifier(config: ModelConfig) -> dict[str, str]:
    """Map our names for a classifier's last layer to Hugging Face's names."""
    kind = kind_of_head(config.head)
    assert kind is not None and kind.huggingface is not None
    return dense("classifier", kind.huggingface.classifier)


def odd_encoder(config: ModelConfig) -> Refusal | None:
    """Return the settings in `_RARE` that differ from their defaults, or None if there are none."""
    return unsupported_values(
        config.encoder, {name: getattr(EncoderConfig, name) for name in _RARE}
    )


def unsupported_values(encoder: EncoderConfig, supported: Mapping[str, Any]) -> Refusal | None:
    """Return all settings with values other than the supported ones, or None if there are none.

    Args:
      encoder: the encoder.
      supported: a dict from the names of settings to their only supported values.
    """
    names = [name for name, value in supported.items() if getattr(encoder, name) != value]
    if not names:
        return None
    own = ", ".join(f"model.{name}={getattr(encoder, name)!r}" for name in names)
    only = ", ".join(f"model.{name}={supported[name]!r}" for name in names)
    return own, f"supports only {only if len(names) > 1 else repr(supported[names[0]])}"


# BERT, RoBERTa, ALBERT, DistilBERT and ELECTRA support only the default values of these fields.
_RARE = (
    "norm",
    "positions",
    "attention_window",
    "norm_kind",
    "norm_bias",
    "first_norm",
    "embedding_norm",
    "dense_bias",
    "gated_ffn",
    "head_transform",
    "classifier_transform",
    "pooling",
)
