"""Distillation: pretraining with a teacher's outputs, hidden states and attention as targets.

The teacher sees every batch that the student sees.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, assert_never, get_args

import jax
import jax.numpy as jnp

from bert_jax.local_paths import LocalPath
from bert_jax.models.attention import document_mask
from bert_jax.models.config import DTypeName
from bert_jax.models.encoder import EncoderOutput
from bert_jax.models.heads import PretrainingModel, StudentModel
from bert_jax.models.layers import select_rows
from bert_jax.models.parameters import ModelDefinition
from bert_jax.tasks.pretraining import Pretraining, run
from bert_jax.tasks.task import Batch, Metric, Metrics, soft_cross_entropy, weighted_mean


def matched_layers(student: int, teacher: int) -> list[int]:
    """The teacher's layer, counted from 1, that each of the student's learns from.

    Evenly spaced, the last from the last: 3, 6, 9, 12 for 4 out of 12 (section 4.2).

    Raises:
      ValueError: the teacher has fewer.
    """
    if student > teacher:
        raise ValueError(
            f"model.num_layers={student}, but the teacher has {teacher} layers to learn from: "
            "choose fewer, or set distillation.hidden_weight=0 and attention_weight=0"
        )
    return [(number + 1) * teacher // student for number in range(student)]


def hidden_loss(student: Sequence[jax.Array], teacher: jax.Array, real: jax.Array) -> Metric:
    """Mean squared error of vectors over dims and real tokens, summed over `student`'s states.

    student: [batch, length, dim] each. teacher: [batch, states, length, dim]. real: 1.0 at tokens,
    0.0 at padding [batch, length]. Equations 8 and 9.
    """
    total = jnp.zeros(real.shape, jnp.float32)
    for number, state in enumerate(student):
        apart = state.astype(jnp.float32) - teacher[:, number].astype(jnp.float32)
        total += jnp.mean(jnp.square(apart), axis=-1)
    return weighted_mean(total, real)


def attention_loss(student: Sequence[jax.Array], teacher: jax.Array, pairs: jax.Array) -> Metric:
    """Mean squared error of scores over heads and visible pairs, summed over the layers.

    Of scores before the softmax, which the paper found to converge faster than probabilities
    (equation 7).

    student: [batch, heads, from, to] each. teacher: [batch, layers, heads, from, to]. pairs: see
    `visible_pairs`.
    """
    total = jnp.zeros(pairs.shape, jnp.float32)
    for number, scores in enumerate(student):
        total += jnp.mean(jnp.square(scores - teacher[:, number]), axis=1)
    return weighted_mean(total, pairs)


def cosine(left: jax.Array, right: jax.Array) -> jax.Array:
    """The cosine of the angle between vectors [..., dim], in float32: [...]."""
    left, right = left.astype(jnp.float32), right.astype(jnp.float32)
    product = jnp.sum(left * right, axis=-1)
    squares = jnp.sum(left * left, axis=-1) * jnp.sum(right * right, axis=-1)
    return product * jax.lax.rsqrt(jnp.maximum(squares, 1e-12))


def visible_pairs(document_ids: jax.Array) -> jax.Array:
    """1.0 where one token of a document may see the other, 0.0 elsewhere: [batch, from, to]."""
    seen = document_mask(document_ids)[:, 0] & (document_ids != 0)[:, :, None]
    return seen.astype(jnp.float32)


SoftTargets = Literal["masked", "all"]
_LOSSES = {
    "soft_weight": "soft_loss",
    "cosine_weight": "cosine_loss",
    "hidden_weight": "hidden_loss",
    "attention_weight": "attention_loss",
}


@dataclass(frozen=True)
class DistillationConfig:
    """What is learned from whom; weights and temperature are DistilBERT's by default.

    Sanh et al. 2019, section 3. TinyBERT's (Jiao et al. 2020, section 3) are soft_weight=0,
    mlm_weight=0, cosine_weight=0, hidden_weight=1, attention_weight=1, init_layers=False.

    teacher: a work directory with a masked-LM head.
    temperature: both models' token scores are divided by it before the softmax.
    soft_weight: of the cross-entropy against the teacher's probabilities, times temperature^2
      (Hinton et al. 2015, section 2), less the teacher's own entropy: 0 where the two agree.
    mlm_weight: of the masked-LM loss. pairs_weight: of that of sentence pairs, where there are
      some; 0 shows the student pairs and does not ask about them.
    cosine_weight: of 1 - the cosine of the angle between the models' last hidden vectors, at every
      token; 0 for models of different `hidden_dim`.
    hidden_weight: of the mean squared error of hidden states, summed over the embeddings and the
      layers; a teacher of another `hidden_dim` is met through learned maps.
    attention_weight: of that of attention scores before the softmax, summed over the layers, for
      models of as many heads. In both, layer m of M learns from the teacher's m x N / M of N.
    soft_targets: where the token scores are compared: at the "masked" positions, where the head is
      computed anyway, or at "all" tokens, as DistilBERT's code does unless told otherwise.
    init_layers: start from the teacher's parameters, layers from evenly spaced ones of its own: of
      6 out of 12 every second, the first included.
    dtype: of the teacher's computation; "auto" is that of the student's.
    """

    teacher: LocalPath
    temperature: float = 2.0
    soft_weight: float = 5.0
    mlm_weight: float = 2.0
    pairs_weight: float = 1.0
    cosine_weight: float = 1.0
    hidden_weight: float = 0.0
    attention_weight: float = 0.0
    soft_targets: SoftTargets = "masked"
    init_layers: bool = True
    dtype: DTypeName = "auto"

    def __post_init__(self) -> None:
        if not self.teacher:
            raise ValueError("distillation.teacher is empty: name the teacher's work directory")
        if not self.temperature > 0:
            raise ValueError(f"distillation.temperature={self.temperature}: must be positive")
        for name in (*_LOSSES, "mlm_weight", "pairs_weight"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"distillation.{name}={getattr(self, name)}: must be 0 or more")
        if not self.losses:
            raise ValueError(
                f"distillation.{', '.join(_LOSSES)} are all 0: nothing is learned from the "
                "teacher; leave distillation out"
            )
        if not self.soft_weight and (self.temperature != 2.0 or self.soft_targets != "masked"):
            raise ValueError(
                f"distillation.temperature={self.temperature} and soft_targets="
                f"{self.soft_targets!r} are of the soft targets, and soft_weight=0 leaves those "
                "out: leave them at 2.0 and 'masked', or give soft_weight a value"
            )
        if self.soft_targets not in get_args(SoftTargets):
            raise ValueError(
                f"distillation.soft_targets={self.soft_targets!r}: expected 'masked' or 'all'"
            )
        if self.dtype not in get_args(DTypeName):
            raise ValueError(
                f"distillation.dtype={self.dtype!r}: expected one of "
                + ", ".join(map(repr, get_args(DTypeName)))
            )

    @property
    def losses(self) -> tuple[str, ...]:
        """The losses against the teacher that have a weight."""
        return tuple(loss for weight, loss in _LOSSES.items() if getattr(self, weight))


class PretrainingTeacher:
    """A `Teacher` with a masked-LM head, seen without dropout.

    layers: which of its layers a student learns from, counted from 1.
    """

    def __init__(
        self,
        definition: ModelDefinition[PretrainingModel],
        config: DistillationConfig,
        layers: Sequence[int],
    ):
        self.definition = definition
        self.config = config
        self.layers = tuple(layers)

    def annotate(self, model: PretrainingModel, batch: Batch) -> Batch:
        """With what the config asks for.

        `teacher_logits` [batch, count, vocab_size], float32, at `soft_positions`; in the compute
        dtype `teacher_hidden` [batch, length, dim] and `teacher_states`
        [batch, layers + 1, length, dim], of the embeddings and `layers`; `teacher_scores`
        [batch, layers, heads, length, length], float32.
        """
        positions = soft_positions(batch, self.config.soft_targets)
        output = run(model, batch, positions, None, **_asked(self.config))
        annotated = dict(batch)
        if self.config.soft_weight:
            annotated["teacher_logits"] = output.token_logits
        if self.config.cosine_weight:
            annotated["teacher_hidden"] = output.encoder.hidden
        if (states := output.encoder.hidden_states) is not None:
            annotated["teacher_states"] = jnp.stack([states[n] for n in (0, *self.layers)], axis=1)
        if (scores := output.encoder.attention_scores) is not None:
            annotated["teacher_scores"] = jnp.stack([scores[n - 1] for n in self.layers], axis=1)
        return annotated


class Distillation:
    """`Pretraining` with losses against a teacher: see `DistillationConfig`.

    A batch also has what `PretrainingTeacher.annotate` adds to it.
    """

    loss_terms: Mapping[str, float]

    def __init__(self, student: Pretraining, config: DistillationConfig):
        self.student = student
        self.definition = student.definition
        self.config = config
        terms = {name: config.pairs_weight for name in student.loss_terms}
        terms["mlm_loss"] = config.mlm_weight
        terms |= {loss: getattr(config, weight) for weight, loss in _LOSSES.items()}
        self.loss_terms = {name: weight for name, weight in terms.items() if weight}

    def loss_weights(self, batch: Batch) -> dict[str, jax.Array]:
        """See `Task.loss_weights`."""
        weights = self.student.loss_weights(batch)
        weights["soft_loss"] = jnp.sum(self._soft_weights(batch))
        weights["cosine_loss"] = weights["hidden_loss"] = jnp.sum(_real_tokens(batch))
        weights["attention_loss"] = jnp.sum(visible_pairs(batch["document_ids"]))
        return {name: weights[name] for name in self.loss_terms}

    def metrics(
        self, model: PretrainingModel, batch: Batch, dropout_key: jax.Array | None
    ) -> Metrics:
        """Those of `Pretraining`, and the losses against the teacher.

        In nats, 1 - cosine, and squares.
        """
        positions = soft_positions(batch, self.config.soft_targets)
        output = run(model, batch, positions, dropout_key, **_asked(self.config))
        found = transferred(model, output.encoder, batch)
        if self.config.soft_weight:
            loss = soft_cross_entropy(
                output.token_logits,
                batch["teacher_logits"],
                self.config.temperature,
                self.student.compute.ops,
            )
            found["soft_loss"] = weighted_mean(loss, self._soft_weights(batch))
        if self.config.cosine_weight:
            loss = 1 - cosine(output.encoder.hidden, batch["teacher_hidden"])
            found["cosine_loss"] = weighted_mean(loss, _real_tokens(batch))
        if self.config.soft_targets == "all":
            # The head once more where tokens are masked: to choose those out of all logits would
            # be differentiated by scattering into an array as large as them.
            at_masks = select_rows(output.encoder.hidden, batch["masked_positions"])
            logits = model.masked_lm(at_masks, model.encoder.embeddings)
            output = output._replace(token_logits=logits)
        return self.student.metrics_of(output, batch) | found

    def _soft_weights(self, batch: Batch) -> jax.Array:
        match self.config.soft_targets:
            case "masked":
                return batch["masked_weights"]
            case "all":
                return _real_tokens(batch)
            case _:
                assert_never(self.config.soft_targets)


def _asked(config: DistillationConfig) -> dict[str, bool]:
    """What models tell of their layers, for the losses of a config."""
    return {
        "return_hidden_states": config.hidden_weight > 0,
        "return_attention_scores": config.attention_weight > 0,
    }


def transferred(model: PretrainingModel, output: EncoderOutput, batch: Batch) -> Metrics:
    """`hidden_loss` and `attention_loss`, of what the encoder told."""
    found = {}
    if output.hidden_states is not None:
        states: Sequence[jax.Array] = output.hidden_states
        if isinstance(model, StudentModel):
            states = model.to_teacher(states)
        found["hidden_loss"] = hidden_loss(states, batch["teacher_states"], _real_tokens(batch))
    if output.attention_scores is not None:
        pairs = visible_pairs(batch["document_ids"])
        scores = output.attention_scores
        found["attention_loss"] = attention_loss(scores, batch["teacher_scores"], pairs)
    return found


def soft_positions(batch: Batch, soft_targets: SoftTargets) -> jax.Array:
    """Where token scores are compared: [batch, count]."""
    match soft_targets:
        case "masked":
            return batch["masked_positions"]
        case "all":
            shape = batch["token_ids"].shape
            return jnp.broadcast_to(jnp.arange(shape[1], dtype=jnp.int32), shape)
        case _:
            assert_never(soft_targets)


def _real_tokens(batch: Batch) -> jax.Array:
    return (batch["document_ids"] != 0).astype(jnp.float32)


def chosen_layers(student: int, teacher: int) -> list[int]:
    """The teacher's layer that each of the student's starts from, evenly spaced, the first first.

    Raises:
      ValueError: the teacher has fewer.
    """
    if student > teacher:
        raise ValueError(
            f"model.num_layers={student}, but the teacher has {teacher} layers to start from: "
            "choose fewer, or distillation.init_layers=False"
        )
    return [number * teacher // student for number in range(student)]
