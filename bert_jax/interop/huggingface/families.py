"""Determine the Hugging Face family that a model belongs to, and the names of its tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, assert_never

from bert_jax.interop.huggingface.albert import ALBERT
from bert_jax.interop.huggingface.bert import BERT, DISTILBERT, ROBERTA
from bert_jax.interop.huggingface.electra import ELECTRA
from bert_jax.interop.huggingface.family import Family
from bert_jax.interop.huggingface.modernbert import MODERNBERT
from bert_jax.interop.tensors import Origin
from bert_jax.models.config import EncoderConfig
from bert_jax.models.model import ModelConfig, parts_of

FAMILIES = (BERT, ROBERTA, ALBERT, DISTILBERT, ELECTRA, MODERNBERT)
# Model types that are equivalent to one of the families. Each is mapped to the prefix of its class
# names and to the equivalent family. Equivalent models compute the same function from tensors with
# the same names.
OTHER_NAMES: Mapping[str, tuple[str, Family]] = {
    "xlm-roberta": ("XLMRoberta", ROBERTA),
    "camembert": ("Camembert", ROBERTA),
}


def family_of(encoder: EncoderConfig) -> Family:
    """Return the family that an encoder belongs to or resembles most closely."""
    match encoder.positions:
        case "rotary":
            return MODERNBERT
        case "learned" | "sinusoidal":
            pass
        case _:
            assert_never(encoder.positions)
    match encoder.pooler_activation:
        case "gelu":
            return ELECTRA
        case "tanh" | "relu":
            pass
        case _:
            assert_never(encoder.pooler_activation)
    if encoder.embedding_dim is not None or encoder.sharing != "none":
        return ALBERT
    if encoder.position_offset:
        return ROBERTA
    return BERT if encoder.num_segments else DISTILBERT


def family_named(content: Mapping[str, Any], where: str) -> Family:
    """Return the family that a config.json specifies, or BERT for an old file that does not.

    Raises:
      ValueError: the family is not supported.
    """
    kind = content.get("model_type", "bert")
    for family in FAMILIES:
        if family.model_type == kind:
            return family
    if kind in OTHER_NAMES:
        return OTHER_NAMES[kind][1]
    supported = ", ".join(map(repr, [*(family.model_type for family in FAMILIES), *OTHER_NAMES]))
    raise ValueError(f"{where}: model_type is {kind!r}; expected one of {supported}")


def refusal_of(config: ModelConfig) -> str | None:
    """Return the reason why Hugging Face's library cannot represent a model, or None if it can."""
    family = family_of(config.encoder)
    parts: dict[str, ModelConfig] = {}
    exported = config
    if config.head not in family.architectures:
        # A part of the model may still have a class.
        parts = parts_of(config)
        exported = parts["encoder"] = replace(parts["encoder"], pooler=False)
    refusal = family.refusal(exported)
    if refusal is not None:
        what, why = refusal
        verb = "are" if ", " in what else "is"
        return f"{what} {verb} not supported by Hugging Face's {family.title}, which {why}"
    if not parts:
        return None
    heads = [head for head, part in parts.items() if _has_class(family, part)]
    return (
        f"Hugging Face's {family.title} has no class for the {config.head!r} head. To export only "
        f"part of the model, set head to {' or '.join(map(repr, heads))}"
    )


def _has_class(family: Family, config: ModelConfig) -> bool:
    return config.head in family.architectures and family.refusal(config) is None


def architecture_of(config: ModelConfig) -> str:
    """Return the name of the Hugging Face class for a model.

    Raises:
      ValueError: Hugging Face's library has no class for the model.
    """
    refusal = refusal_of(config)
    if refusal is not None:
        raise ValueError(refusal)
    return family_of(config.encoder).architectures[config.head]


def heads_of(family: Family) -> dict[str, str]:
    """Return a dict that maps the names of a family's Hugging Face classes to our heads."""
    return {architecture: head for head, architecture in family.architectures.items()}


def classes_of(content: Mapping[str, Any]) -> list[str]:
    """Return the class names in a config.json, converted to the equivalent family's names."""
    architectures = content.get("architectures") or []
    names = [architectures] if isinstance(architectures, str) else list(architectures)
    kind = content.get("model_type", "bert")
    if kind not in OTHER_NAMES:
        return names
    prefix, family = OTHER_NAMES[kind]
    own = family.architectures["encoder"].removesuffix("Model")
    return [own + name.removeprefix(prefix) if name.startswith(prefix) else name for name in names]


def origins(config: ModelConfig) -> dict[str, Origin]:
    """Return the origin of each parameter in a model of the class `architecture_of(config)`.

    The names of the encoder's tensors begin with the family's prefix, which bare models omit. Only
    kernels are transposed: ours are [in, out], and Hugging Face's are [out, in]. Several parameters
    may come from blocks of the same tensor.

    Raises:
      ValueError: Hugging Face's library has no class for the model.
    """
    architecture_of(config)
    family = family_of(config.encoder)
    names = family.names(config)
    if config.head in ("pretraining", "masked_lm") and not config.encoder.tied_output:
        names["masked_lm.output"] = family.output_table
        unused = family.unused_in(config.encoder)
        names["masked_lm.bias"] = unused.get(names["masked_lm.bias"], names["masked_lm.bias"])
    return {
        name: Origin(hf_name, name.endswith(".kernel"), block=family.block_of(name))
        for name, hf_name in names.items()
    }
