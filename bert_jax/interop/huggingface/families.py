"""The families Hugging Face has, which of them a model is, and where its parameters lie there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bert_jax.interop.huggingface.albert import ALBERT
from bert_jax.interop.huggingface.bert import BERT, DISTILBERT, ROBERTA
from bert_jax.interop.huggingface.family import Family
from bert_jax.interop.tensors import Origin
from bert_jax.models.config import EncoderConfig
from bert_jax.models.model import ModelConfig

FAMILIES = (BERT, ROBERTA, ALBERT, DISTILBERT)
# Other names a family's models go by: model_type to how their classes' names begin. They compute
# what the family's do, from tensors of the same names.
OTHER_NAMES: Mapping[str, tuple[str, Family]] = {
    "xlm-roberta": ("XLMRoberta", ROBERTA),
    "camembert": ("Camembert", ROBERTA),
}


def family_of(encoder: EncoderConfig) -> Family:
    """The family that an encoder is of, or is nearest to."""
    if encoder.embedding_dim is not None or encoder.sharing != "none":
        return ALBERT
    if encoder.position_offset:
        return ROBERTA
    return BERT if encoder.num_segments else DISTILBERT


def family_named(content: Mapping[str, Any], where: str) -> Family:
    """The family a config.json names; ValueError for another. Old files name none: BERT."""
    kind = content.get("model_type", "bert")
    for family in FAMILIES:
        if family.model_type == kind:
            return family
    if kind in OTHER_NAMES:
        return OTHER_NAMES[kind][1]
    known = ", ".join(map(repr, [*(family.model_type for family in FAMILIES), *OTHER_NAMES]))
    raise ValueError(
        f"{where}: model_type is {kind!r}; expected {known}, the architectures that are understood"
    )


def refusal_of(config: ModelConfig) -> str | None:
    """Why a model is none of theirs, for people; None if it is one."""
    family = family_of(config.encoder)
    if config.head not in family.architectures:
        return (
            f"Hugging Face's {family.title} has no class for the head {config.head!r}; it has "
            f"{', '.join(map(repr, family.architectures))}: choose one with --head"
        )
    refusal = family.refusal(config)
    if refusal is None:
        return None
    what, why = refusal
    return f"{what} is none of Hugging Face's {family.title}, which {why}"


def architecture_of(config: ModelConfig) -> str:
    """The class of theirs that a model is; ValueError if it is none of them."""
    refusal = refusal_of(config)
    if refusal is not None:
        raise ValueError(refusal)
    return family_of(config.encoder).architectures[config.head]


def heads_of(family: Family) -> dict[str, str]:
    """Their classes to our heads."""
    return {theirs: ours for ours, theirs in family.architectures.items()}


def classes_of(content: Mapping[str, Any]) -> list[str]:
    """The classes a config.json names, each by what it is called in its family."""
    told = content.get("architectures") or []
    names = [told] if isinstance(told, str) else list(told)
    kind = content.get("model_type", "bert")
    if kind not in OTHER_NAMES:
        return names
    prefix, family = OTHER_NAMES[kind]
    own = family.architectures["encoder"].removesuffix("Model")
    return [own + name.removeprefix(prefix) if name.startswith(prefix) else name for name in names]


def origins(config: ModelConfig) -> dict[str, Origin]:
    """The tensor of `architecture_of(config)` behind each of our parameters.

    The encoder's begin with the family's prefix; the bare model, which is nothing else, leaves that
    out. A `.kernel` is [in, out] here and [out, in] there; nothing else is turned.

    Raises:
      ValueError: the model is none that Hugging Face's library can be.
    """
    architecture_of(config)
    names = family_of(config.encoder).names(config)
    return {ours: Origin(theirs, ours.endswith(".kernel")) for ours, theirs in names.items()}
