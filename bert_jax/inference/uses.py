"""Describe the purpose of a model, so that errors can suggest a class that fits its head."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, assert_never

from bert_jax.models.model import (
    CLASSIFICATION,
    MULTIPLE_CHOICE,
    SPAN,
    TAGGING,
    ClassifierHead,
    ModelConfig,
)
from bert_jax.runs.work_dir import PAIRS


class ModelUse(NamedTuple):
    """The purpose of a model.

    Attributes:
      does: a verb phrase that follows the words "this model", such as "fills masks".
      classes: the public classes that run the model's head, such as "bj.FillMask".
    """

    does: str
    classes: tuple[str, ...]


_FOLLOWS = "predicts whether one sentence follows another"
_CLASSIFIERS = {
    CLASSIFICATION.name: ModelUse("classifies texts", ("bj.Classify",)),
    MULTIPLE_CHOICE.name: ModelUse("chooses between continuations", ("bj.Choose",)),
    TAGGING.name: ModelUse("tags words", ("bj.Tag",)),
    SPAN.name: ModelUse("answers questions", ("bj.AnswerQuestion",)),
}


def use_of(config: ModelConfig, origin: Mapping[str, str]) -> ModelUse:
    """Return the purpose of a model.

    Args:
      config: the encoder and its head.
      origin: where the parameters come from, as recorded in `model.json`.
    """
    match config.head_kind:
        case "encoder":
            return ModelUse("has no head", ())
        case "pretraining" if origin.get(PAIRS) == "sentence_order":
            return ModelUse("fills masks", ("bj.FillMask",))
        case "pretraining":
            return ModelUse(f"fills masks and {_FOLLOWS}", ("bj.FillMask", "bj.NextSentence"))
        case "masked_lm":
            return ModelUse("fills masks", ("bj.FillMask",))
        case "next_sentence":
            return ModelUse(_FOLLOWS, ("bj.NextSentence",))
        case "replaced_token":
            return ModelUse("finds replaced tokens", ())
        case ClassifierHead(name=name):
            return _CLASSIFIERS.get(name, ModelUse(f"has the head {name!r}", ()))
        case _:
            assert_never(config.head_kind)


def unsuitable(
    model: object,
    config: ModelConfig,
    origin: Mapping[str, str],
    purpose: str,
    made_by: str,
    *,
    generator: bool = False,
) -> str:
    """Return an error message for a model that was not made for the given purpose.

    Args:
      model: the model's work directory or checkpoint, which the message begins with.
      config: the encoder and its head.
      origin: where the parameters come from, as recorded in `model.json`.
      purpose: the intended use of the model, such as "classify texts".
      made_by: the function that creates suitable models.
      generator: whether the model has a generator that is suitable (Clark et al. 2020, "ELECTRA").
    """
    does, classes = use_of(config, origin)
    names = " or ".join(f"`{name}`" for name in classes or ("bj.Embed",))
    extract = (
        "extract its generator with `bj.extract(..., generator=True)`, or " if generator else ""
    )
    return (
        f"{model}: this model does not {purpose}. It {does}: use {names}. To {purpose}, {extract}"
        f"use a model from {made_by}."
    )
