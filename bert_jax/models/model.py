"""A model as one value: build an encoder with its head, and compute all its outputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal, assert_never, get_args

import jax
from flax import nnx

from bert_jax.models.config import ComputeConfig, EncoderConfig
from bert_jax.models.heads import (
    Classifier,
    EncoderModel,
    NextSentenceModel,
    PretrainingModel,
    SentenceClassifier,
    TokenClassifier,
)
from bert_jax.models.parameters import ModelDefinition, define

Head = Literal[
    "encoder",
    "pretraining",
    "masked_lm",
    "next_sentence",
    "classification",
    "multiple_choice",
    "tagging",
    "span",
]
Problem = Literal["single_label", "multi_label", "regression"]
HEADS: tuple[Head, ...] = get_args(Head)
# The heads that read their vectors through dropout.
CLASSIFIERS: tuple[Head, ...] = ("classification", "tagging", "multiple_choice")
# What the heads with a fixed number of scores call them.
FIXED_LABELS: Mapping[str, tuple[str, ...]] = {
    "multiple_choice": ("score",),
    "span": ("start", "end"),
}


@dataclass(frozen=True)
class ModelConfig:
    """An encoder and its head: everything that decides a model's parameters.

    head: "encoder" is the encoder alone; "pretraining" has masked-LM and sentence-pair heads,
      "masked_lm" and "next_sentence" one of them; "classification" scores `labels` for a sequence,
      "tagging" for every token, "multiple_choice" a sequence by one number, "span" every token as
      start and end of an answer (Devlin et al. 2019, figure 4).
    labels: names of the scores, in their order, of "classification" and "tagging".
    pooler: whether "encoder" has one; the other heads know whether they need it.
    head_dropout: on what "classification", "tagging" and "multiple_choice" read, in training
      (0.1 in the paper); no other head has any.
    problem: what the scores of "classification" mean: one label is true, any of them may be, or
      they are the numbers themselves.

    Raises:
      ValueError: an unknown head, or labels where it has none of its own (or none where it needs
        them).
    """

    encoder: EncoderConfig
    head: Head = "pretraining"
    labels: tuple[str, ...] = ()
    pooler: bool = True
    head_dropout: float = 0.0
    problem: Problem = "single_label"

    def __post_init__(self) -> None:
        if self.head not in HEADS:
            raise ValueError(f"head={self.head!r}: expected one of {', '.join(HEADS)}")
        own = self.head in ("classification", "tagging")
        if own != bool(self.labels):
            raise ValueError(
                f"head={self.head!r} needs labels, the names of its scores"
                if own
                else f"head={self.head!r} has no labels of its own, got {self.labels}"
            )
        if len(set(self.labels)) != len(self.labels):
            raise ValueError(f"labels={self.labels}: every label has a name of its own")
        if not self.pooler and self.head != "encoder":
            raise ValueError(f"pooler=False is for head='encoder', not for {self.head!r}")
        if self.problem not in get_args(Problem):
            raise ValueError(
                f"problem={self.problem!r}: expected one of {', '.join(get_args(Problem))}"
            )
        if self.problem != "single_label" and self.head != "classification":
            raise ValueError(f"problem={self.problem!r} is for head='classification'")
        if not 0.0 <= self.head_dropout < 1.0:
            raise ValueError(f"head_dropout={self.head_dropout}: a dropout rate lies in [0, 1)")
        if self.head_dropout and self.head not in CLASSIFIERS:
            raise ValueError(
                f"head_dropout={self.head_dropout}: head={self.head!r} has no dropout of its own; "
                f"expected 0, or one of the heads {', '.join(CLASSIFIERS)}"
            )

    @property
    def scores(self) -> tuple[str, ...]:
        """Names of what a head of the classifier kind gives, in order; () for the others."""
        return self.labels or FIXED_LABELS.get(self.head, ())


Model = EncoderModel | PretrainingModel | NextSentenceModel | Classifier


def build_model(config: ModelConfig, compute: ComputeConfig, rngs: nnx.Rngs) -> Model:
    """A model with fresh parameters."""
    encoder = config.encoder
    match config.head:
        case "encoder":
            return EncoderModel(encoder, compute, rngs, pooler=config.pooler)
        case "pretraining" | "masked_lm":
            next_sentence = config.head == "pretraining"
            return PretrainingModel(encoder, compute, rngs, next_sentence=next_sentence)
        case "next_sentence":
            return NextSentenceModel(encoder, compute, rngs)
        case "classification" | "multiple_choice":
            kind: type[Classifier] = SentenceClassifier
        case "tagging" | "span":
            kind = TokenClassifier
        case _:
            assert_never(config.head)
    return kind(encoder, compute, rngs, scores=len(config.scores), dropout=config.head_dropout)


@lru_cache(maxsize=32)  # a command asks for the same one up to seven times
def define_model(config: ModelConfig, compute: ComputeConfig) -> ModelDefinition[Model]:
    """The definition of the model that `build_model` makes."""
    return define(lambda rngs: build_model(config, compute, rngs))


def part_of(config: ModelConfig, head: Head | None) -> ModelConfig:
    """Return the model with only some of its heads; None keeps all.

    Raises:
      ValueError: `head` wants parameters that the model does not have.
    """
    if head is None or head == config.head:
        return config
    compute = ComputeConfig(dtype="float32", attention="xla")
    whole = define_model(config, compute).shapes
    encoder = replace(config, head="encoder", labels=(), head_dropout=0.0, problem="single_label")
    part = replace(encoder, pooler="pooler.dense.kernel" in whole) if head == "encoder" else None
    if head in ("masked_lm", "next_sentence"):
        part = replace(encoder, head=head, pooler=True)
    if part is None or not define_model(part, compute).shapes.keys() <= whole.keys():
        parts = ["encoder", *(("masked_lm",) if config.head == "pretraining" else ())]
        raise ValueError(
            f"a model with the head {config.head!r} has no part that is a {head!r}; expected "
            f"{config.head!r} or {' or '.join(map(repr, parts))}"
        )
    return part


def infer(
    model: Model,
    token_ids: jax.Array,
    segment_ids: jax.Array | None,
    attention_mask: jax.Array | None,
    *,
    hidden_states: bool = False,
) -> dict[str, jax.Array]:
    """Runs a model without dropout, its head at every position.

    Args:
      token_ids, segment_ids: [batch, length]; for multiple choice [batch, choices, length], and
        every choice is a row of a batch of batch * choices to all but `logits`.
      attention_mask: like `token_ids`, 1 for tokens and 0 for padding; None if there is none.
      hidden_states: also give `hidden_0` (the embeddings), `hidden_1`, ... of every layer.

    Returns:
      `hidden` [batch, length, hidden_dim], the last layer's output, and what the head gives:
      `pooled` [batch, hidden_dim], `token_logits` [batch, length, vocab_size],
      `next_sentence_logits` [batch, 2], `logits` [batch, labels], [batch, choices] or
      [batch, length, labels].
    """
    choices = token_ids.shape[:-1] if token_ids.ndim == 3 else None
    if choices:
        length = token_ids.shape[-1]
        token_ids = token_ids.reshape(-1, length)
        segment_ids = None if segment_ids is None else segment_ids.reshape(-1, length)
        attention_mask = None if attention_mask is None else attention_mask.reshape(-1, length)
    output = model.encoder(
        token_ids,
        segment_ids,
        None,
        attention_mask,
        packed=False,
        return_hidden_states=hidden_states,
    )
    outputs = {"hidden": output.hidden, **model.read_out(output.hidden)}
    if choices:
        outputs["logits"] = outputs["logits"].reshape(choices)
    for number, states in enumerate(output.hidden_states or ()):
        outputs[f"hidden_{number}"] = states
    return outputs
