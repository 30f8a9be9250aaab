"""Configure, build and run models, each made up of an encoder and a head."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal, assert_never, cast, get_args

import jax
from flax import nnx

from bert_jax.models.classifiers import Classifier, SentenceClassifier, TokenClassifier
from bert_jax.models.compute_config import ComputeConfig
from bert_jax.models.config import EncoderConfig
from bert_jax.models.parameters import ModelDefinition, define
from bert_jax.models.pretraining_models import (
    EncoderModel,
    NextSentenceModel,
    PretrainingModel,
    ReplacedTokenModel,
)

Problem = Literal["single_label", "multi_label", "regression"]
# The pretraining heads, and "encoder" for an encoder without a head.
PretrainingHead = Literal["encoder", "pretraining", "masked_lm", "next_sentence", "replaced_token"]
PRETRAINING_HEADS: tuple[PretrainingHead, ...] = get_args(PretrainingHead)
Scored = Literal["sequence", "choices", "tokens"]


@dataclass(frozen=True)
class ClassifierHead:
    """A head that computes scores for fine-tuning tasks (Devlin et al. 2019, figure 4).

    Attributes:
      name: the head's name in `model.json`.
      scored: the unit that is scored: a "sequence" (by its pooled `[CLS]` vector), "choices" (each
        choice is a sequence with one score), or all "tokens" of a sequence.
      labels: the names of the scores, in order; None if every task has its own.
      dropout: whether the head applies dropout to the vectors that it scores.
      problems: the ways in which the scores can be interpreted.

    Raises:
      ValueError: a value is unknown, or a choice would have more than one score.
    """

    name: str
    scored: Scored
    labels: tuple[str, ...] | None = None
    dropout: bool = True
    problems: tuple[Problem, ...] = ("single_label",)

    def __post_init__(self) -> None:
        if self.scored not in get_args(Scored):
            raise ValueError(
                f"scored={self.scored!r}: expected one of {', '.join(get_args(Scored))}"
            )
        if not self.problems or not set(self.problems) <= set(get_args(Problem)):
            raise ValueError(
                f"problems={self.problems}: expected one or more of {', '.join(get_args(Problem))}"
            )
        if self.scored == "choices" and (self.labels is None or len(self.labels) != 1):
            raise ValueError(f"labels={self.labels}: a choice has one score. Expected one label")

    @property
    def pools(self) -> bool:
        """Whether the head scores one vector for a whole sequence."""
        match self.scored:
            case "sequence" | "choices":
                return True
            case "tokens":
                return False
            case _:
                assert_never(self.scored)


CLASSIFICATION = ClassifierHead("classification", "sequence", problems=get_args(Problem))
MULTIPLE_CHOICE = ClassifierHead("multiple_choice", "choices", ("score",))
TAGGING = ClassifierHead("tagging", "tokens")
SPAN = ClassifierHead("span", "tokens", ("start", "end"), dropout=False)

_CLASSIFIER_HEADS: dict[str, ClassifierHead] = {
    head.name: head for head in (CLASSIFICATION, MULTIPLE_CHOICE, TAGGING, SPAN)
}


def register_head(head: ClassifierHead) -> None:
    """Register a head so that models can use it and `model.json` can refer to it.

    Raises:
      ValueError: another head already has this name.
    """
    if head.name in PRETRAINING_HEADS or _CLASSIFIER_HEADS.get(head.name, head) != head:
        raise ValueError(f"head={head.name!r}: another head already has this name. Use a new name")
    _CLASSIFIER_HEADS[head.name] = head


def classifier_heads() -> tuple[ClassifierHead, ...]:
    """Return the heads for all kinds of fine-tuning tasks."""
    return tuple(_CLASSIFIER_HEADS.values())


def scores_choices(head: str) -> bool:
    """Return whether a head scores choices and therefore takes inputs [batch, choices, length]."""
    classifier = _CLASSIFIER_HEADS.get(head)
    return classifier is not None and classifier.scored == "choices"


def head_names() -> tuple[str, ...]:
    """Return the names of all heads."""
    return (*PRETRAINING_HEADS, *_CLASSIFIER_HEADS)


def _heads_with_dropout() -> str:
    return ", ".join(head.name for head in classifier_heads() if head.dropout)


@dataclass(frozen=True)
class ModelConfig:
    """The architecture of a model, which is an encoder with a head.

    Attributes:
      encoder: the encoder's architecture.
      head: "encoder" means no head. "pretraining" has a masked-LM and a sentence-pair head, while
        "masked_lm" and "next_sentence" have only one of them. "replaced_token" scores whether each
        token has been replaced (ELECTRA's discriminator). All other values name one of the
        `classifier_heads`: "classification" scores every label for a sequence, "tagging" scores
        every label for each token, "multiple_choice" computes one score per sequence, and "span"
        scores each token as the start and as the end of an answer (Devlin et al. 2019, figure 4).
      labels: names of the scores, in order, for heads whose labels depend on the task.
      pooler: whether a model with head="encoder" has a pooler. With any other head, the head
        determines this.
      head_dropout: dropout rate during training for the vectors that the head scores (0.1 in the
        paper); must be 0 for heads without dropout.
      problem: the meaning of the scores: exactly one label applies ("single_label"), any number of
        labels may apply ("multi_label"), or the scores are the predicted numbers ("regression").

    Raises:
      ValueError: the head is unknown, or it does not support the labels, pooler, dropout or
        problem.
    """

    encoder: EncoderConfig
    head: str = "pretraining"
    labels: tuple[str, ...] = ()
    pooler: bool = True
    head_dropout: float = 0.0
    problem: Problem = "single_label"

    def __post_init__(self) -> None:
        if self.head not in head_names():
            raise ValueError(f"head={self.head!r}: expected one of {', '.join(head_names())}")
        classifier = self.classifier
        named_by_task = classifier is not None and classifier.labels is None
        if named_by_task != bool(self.labels):
            raise ValueError(
                f"head={self.head!r}: needs labels. Specify a name for each score"
                if named_by_task
                else f"head={self.head!r}: does not take labels, got {self.labels}"
            )
        if len(set(self.labels)) != len(self.labels):
            raise ValueError(f"labels={self.labels}: label names must be unique")
        if not self.pooler and self.head != "encoder":
            raise ValueError(f"pooler=False: requires head='encoder', not {self.head!r}")
        if self.problem not in get_args(Problem):
            raise ValueError(
                f"problem={self.problem!r}: expected one of {', '.join(get_args(Problem))}"
            )
        if self.problem not in (classifier.problems if classifier else ("single_label",)):
            fitting = (head for head in classifier_heads() if self.problem in head.problems)
            raise ValueError(
                f"problem={self.problem!r}: not supported by head={self.head!r}. Use head="
                + " or ".join(repr(head.name) for head in fitting)
            )
        if not 0.0 <= self.head_dropout < 1.0:
            raise ValueError(f"head_dropout={self.head_dropout}: a dropout rate must be in [0, 1)")
        if self.head_dropout and not (classifier and classifier.dropout):
            raise ValueError(
                f"head_dropout={self.head_dropout}: head={self.head!r} has no dropout. Set "
                f"head_dropout=0 or use one of these heads: {_heads_with_dropout()}"
            )

    @property
    def classifier(self) -> ClassifierHead | None:
        """The head if it is a classifier head, otherwise None."""
        return _CLASSIFIER_HEADS.get(self.head)

    @property
    def head_kind(self) -> PretrainingHead | ClassifierHead:
        """The head in a form that a `match` statement can handle exhaustively."""
        return self.classifier or cast(PretrainingHead, self.head)

    @property
    def scores(self) -> tuple[str, ...]:
        """The names of a classifier's scores, in order; () for all other heads."""
        return self.labels or (self.classifier and self.classifier.labels) or ()

    @property
    def has_pooler(self) -> bool:
        """Whether the model has a pooler, a dense layer for the vector of a sequence."""
        match self.head_kind:
            case "encoder":
                return self.pooler
            case "pretraining" | "next_sentence":
                return True
            case "masked_lm" | "replaced_token":
                return False
            case ClassifierHead() as head:
                pooler = self.encoder.classifier_transform == "pooler"
                return pooler and head.scored != "tokens"
            case _:
                assert_never(self.head_kind)


Model = EncoderModel | PretrainingModel | NextSentenceModel | ReplacedTokenModel | Classifier


def build_model(config: ModelConfig, compute: ComputeConfig, rngs: nnx.Rngs) -> Model:
    """Return a randomly initialized model."""
    encoder = config.encoder
    match config.head_kind:
        case "encoder":
            return EncoderModel(encoder, compute, rngs, pooler=config.pooler)
        case "pretraining" | "masked_lm":
            next_sentence = config.head == "pretraining"
            return PretrainingModel(encoder, compute, rngs, next_sentence=next_sentence)
        case "next_sentence":
            return NextSentenceModel(encoder, compute, rngs)
        case "replaced_token":
            return ReplacedTokenModel(encoder, compute, rngs)
        case ClassifierHead() as head:
            build = _classifier_class(head)
            dropout = config.head_dropout
            return build(encoder, compute, rngs, scores=len(config.scores), dropout=dropout)
        case _:
            assert_never(config.head_kind)


def _classifier_class(head: ClassifierHead) -> type[Classifier]:
    match head.scored:
        case "sequence" | "choices":
            return SentenceClassifier
        case "tokens":
            return TokenClassifier
        case _:
            assert_never(head.scored)


@lru_cache(maxsize=32)  # a single command defines the same model up to seven times
def define_model(config: ModelConfig, compute: ComputeConfig) -> ModelDefinition[Model]:
    """Return the definition of the model that `build_model` returns."""
    return define(lambda rngs: build_model(config, compute, rngs))


# Heads that can be separated from a pretraining model.
_PARTS = ("masked_lm", "next_sentence")


def part_of(config: ModelConfig, head: str | None) -> ModelConfig:
    """Return the config of a model with only `head`, or of the whole model if `head` is None.

    Raises:
      ValueError: `head` needs parameters that the model does not have.
    """
    if head is None or head == config.head:
        return config
    parts = parts_of(config)
    if head not in parts:
        raise ValueError(
            f"head={head!r}: not contained in a model with head={config.head!r}. Expected "
            + " or ".join(map(repr, (config.head, *parts)))
        )
    return parts[head]


def parts_of(config: ModelConfig) -> dict[str, ModelConfig]:
    """Return the configs of the smaller models that a model contains, keyed by their heads."""
    compute = ComputeConfig(dtype="float32", attention="xla")
    whole = define_model(config, compute).shapes
    encoder = replace(config, head="encoder", labels=(), head_dropout=0.0, problem="single_label")
    parts = {"encoder": replace(encoder, pooler="pooler.dense.kernel" in whole)}
    parts |= {head: replace(encoder, head=head, pooler=True) for head in _PARTS}
    return {
        head: part
        for head, part in parts.items()
        if head != config.head and define_model(part, compute).shapes.keys() <= whole.keys()
    }


def infer(
    model: Model,
    token_ids: jax.Array,
    segment_ids: jax.Array | None,
    attention_mask: jax.Array | None,
    *,
    hidden_states: bool = False,
) -> dict[str, jax.Array]:
    """Run a model and its head on every position, without dropout.

    Args:
      model: the model.
      token_ids: [batch, length], or [batch, choices, length] for multiple choice, in which case all
        outputs except `logits` have batch * choices rows.
      segment_ids: shaped like `token_ids`; None for all zeros.
      attention_mask: shaped like `token_ids`, 1 for tokens and 0 for padding; None if there is no
        padding.
      hidden_states: whether to also return `hidden_0` (the embeddings), `hidden_1`, ... (the
        layers' outputs).

    Returns:
      A dict with `hidden` [batch, length, hidden_dim], which is the last layer's output, and the
      outputs of the head. Depending on the head, these are some of the following: `pooled` [batch,
      hidden_dim], `token_logits` [batch, length, vocab_size], `next_sentence_logits` [batch, 2],
      `replaced_token_logits` [batch, length], and `logits` [batch, labels], [batch, choices] or
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
    outputs = {"hidden": output.hidden, **model.read_out(output.hidden, attention_mask)}
    if choices:
        outputs["logits"] = outputs["logits"].reshape(choices)
    for number, states in enumerate(output.hidden_states or ()):
        outputs[f"hidden_{number}"] = states
    return outputs
