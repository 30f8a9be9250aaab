"""Distill a teacher's outputs, hidden states and attention into a student during pretraining.

The teacher processes the same batches as the student.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, assert_never, get_args

import jax
import jax.numpy as jnp

from bert_jax.local_paths import PathOrUrl
from bert_jax.models.encoder import EncoderOutput
from bert_jax.models.layers import select_rows
from bert_jax.models.options import DTypeName
from bert_jax.models.parameters import ModelDefinition
from bert_jax.models.pretraining_models import PretrainingModel, StudentModel
from bert_jax.tasks.distillation_losses import attention_loss, cosine, hidden_loss, pair_weights
from bert_jax.tasks.pretraining import Pretraining, run
from bert_jax.tasks.task import Batch, Metrics, soft_cross_entropy, weighted_mean

SoftTargets = Literal["masked", "all"]
_LOSSES = {
    "soft_weight": "soft_loss",
    "cosine_weight": "cosine_loss",
    "hidden_weight": "hidden_loss",
    "attention_weight": "attention_loss",
}


@dataclass(frozen=True)
class DistillationConfig:
    """The teacher and the losses used for distillation.

    The defaults follow DistilBERT (Sanh et al. 2019, section 3). For TinyBERT (Jiao et al. 2020,
    section 3), set soft_weight=0, mlm_weight=0, cosine_weight=0, hidden_weight=1,
    attention_weight=1 and init_layers=False.

    Attributes:
      teacher: the work directory of a model with a masked-LM head.
      temperature: number by which both models' token logits are divided before the softmax.
      soft_weight: weight of the soft loss: the cross-entropy with the teacher's probabilities minus
        the teacher's entropy, times temperature^2 (Hinton et al. 2015, section 2). This loss is 0
        if the models agree.
      mlm_weight: weight of the masked-LM loss.
      pairs_weight: weight of the sentence-pair loss, if the student has one. If it is 0, the
        student still reads sentence pairs, but they do not contribute to the loss.
      cosine_weight: weight of the cosine loss: 1 minus the cosine of the angle between the models'
        last hidden vectors, averaged over all tokens. Must be 0 if the models differ in
        `hidden_dim`.
      hidden_weight: weight of the mean squared error between hidden states, summed over the
        embeddings and the layers. If the teacher has a different `hidden_dim`, the student's states
        are projected. Layer m of the student's M layers matches layer m x N / M of the teacher's N
        layers.
      attention_weight: weight of the mean squared error between attention scores before the
        softmax, summed over the layers, which match as for `hidden_weight`. Both models must have
        the same number of heads. In a layer with local attention, only pairs of tokens that attend
        to each other in both models are compared.
      soft_targets: "masked" to compare token logits at the masked positions, where the head is
        computed anyway, or "all" to compare them for all tokens, as DistilBERT's code does by
        default.
      init_layers: whether to initialize the student with the teacher's parameters. The student's
        layers are copied from evenly spaced layers of the teacher. For example, a student with 6
        layers gets every second layer of a teacher with 12, starting with the first.
      dtype: the dtype in which the teacher computes; "auto" means the student's.
    """

    teacher: PathOrUrl
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
            raise ValueError(
                "distillation.teacher is empty. Set it to the teacher's work directory"
            )
        if not self.temperature > 0:
            raise ValueError(f"distillation.temperature={self.temperature}: must be positive")
        for name in (*_LOSSES, "mlm_weight", "pairs_weight"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"distillation.{name}={getattr(self, name)}: must be 0 or more")
        if not self.losses:
            raise ValueError(
                f"distillation.{', '.join(_LOSSES)} are all 0: the teacher has no effect. Set one "
                "of them, or leave out the distillation section"
            )
        if not self.soft_weight and (self.temperature != 2.0 or self.soft_targets != "masked"):
            raise ValueError(
                f"distillation.temperature={self.temperature} and soft_targets="
                f"{self.soft_targets!r} have no effect if soft_weight=0. Leave them at 2.0 and "
                "'masked', or set soft_weight"
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
        """The names of the teacher losses that have a nonzero weight."""
        return tuple(loss for weight, loss in _LOSSES.items() if getattr(self, weight))


class PretrainingTeacher:
    """A `Teacher` with a masked-LM head that runs without dropout.

    Args:
      definition: the teacher's model.
      config: the losses that need the teacher's outputs.
      layers: the teacher layers that the student's layers match, counted from 1.
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
        """Return the batch extended with the teacher outputs that the losses need.

        The following arrays may be added:

        - `teacher_logits`: float32 [batch, count, vocab_size], the logits at `soft_positions`.
        - `teacher_hidden`: [batch, length, dim], the last layer's output in the compute dtype.
        - `teacher_states`: [batch, layers + 1, length, dim], the embeddings and the outputs of
          `layers` in the compute dtype.
        - `teacher_scores`: float32 [batch, layers, heads, length, length], the attention scores in
          `layers`.
        """
        positions = soft_positions(batch, self.config.soft_targets)
        output = run(model, batch, positions, None, **_requested_outputs(self.config))
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
    """`Pretraining` with additional distillation losses; see `DistillationConfig`.

    Batches must contain the arrays that `PretrainingTeacher.annotate` adds.

    Args:
      student: the student's model and its losses without a teacher.
      config: the teacher and the losses.
      windows: the `compared_windows` of the two models; () if attention is not compared.
    """

    loss_terms: Mapping[str, float]

    def __init__(
        self,
        student: Pretraining,
        config: DistillationConfig,
        windows: Sequence[int | None] = (),
    ):
        self.student = student
        self.definition = student.definition
        self.config = config
        self.windows = tuple(windows)
        assert self.windows or not config.attention_weight
        terms = {name: config.pairs_weight for name in student.loss_terms}
        terms["mlm_loss"] = config.mlm_weight
        terms |= {loss: getattr(config, weight) for weight, loss in _LOSSES.items()}
        self.loss_terms = {name: weight for name, weight in terms.items() if weight}

    def loss_weights(self, batch: Batch) -> dict[str, jax.Array]:
        """See `Task.loss_weights`."""
        weights = self.student.loss_weights(batch)
        weights["soft_loss"] = jnp.sum(self._soft_weights(batch))
        weights["cosine_loss"] = weights["hidden_loss"] = jnp.sum(_real_tokens(batch))
        weights["attention_loss"] = jnp.sum(pair_weights(batch["document_ids"]))
        return {name: weights[name] for name in self.loss_terms}

    def metrics(
        self, model: PretrainingModel, batch: Batch, dropout_key: jax.Array | None
    ) -> Metrics:
        """Return the metrics of `Pretraining` and the distillation losses.

        `soft_loss` is measured in nats, and `cosine_loss` is 1 minus the cosine. `hidden_loss` and
        `attention_loss` are squared errors.
        """
        positions = soft_positions(batch, self.config.soft_targets)
        output = run(model, batch, positions, dropout_key, **_requested_outputs(self.config))
        losses = layer_losses(model, output.encoder, batch, self.windows)
        if self.config.soft_weight:
            loss = soft_cross_entropy(
                output.token_logits,
                batch["teacher_logits"],
                self.config.temperature,
                self.student.compute.ops,
            )
            losses["soft_loss"] = weighted_mean(loss, self._soft_weights(batch))
        if self.config.cosine_weight:
            loss = 1 - cosine(output.encoder.hidden, batch["teacher_hidden"])
            losses["cosine_loss"] = weighted_mean(loss, _real_tokens(batch))
        if self.config.soft_targets == "all":
            # Apply the head again at the masked positions. If these logits were selected from the
            # logits of all tokens, the gradient would be a scatter into an array as large as all
            # logits.
            at_masks = select_rows(output.encoder.hidden, batch["masked_positions"])
            logits = model.masked_lm(at_masks, model.encoder.embeddings)
            output = output._replace(token_logits=logits)
        return self.student.metrics_of(output, batch) | losses

    def _soft_weights(self, batch: Batch) -> jax.Array:
        match self.config.soft_targets:
            case "masked":
                return batch["masked_weights"]
            case "all":
                return _real_tokens(batch)
            case _:
                assert_never(self.config.soft_targets)


def _requested_outputs(config: DistillationConfig) -> dict[str, bool]:
    """Return the arguments of `run` that request the layer outputs needed for the losses."""
    return {
        "return_hidden_states": config.hidden_weight > 0,
        "return_attention_scores": config.attention_weight > 0,
    }


def layer_losses(
    model: PretrainingModel, output: EncoderOutput, batch: Batch, windows: Sequence[int | None]
) -> Metrics:
    """Return `hidden_loss` and `attention_loss`, each only if `output` contains its inputs.

    For the arguments, see `Distillation`.
    """
    losses = {}
    if output.hidden_states is not None:
        states: Sequence[jax.Array] = output.hidden_states
        if isinstance(model, StudentModel):
            states = model.to_teacher(states)
        losses["hidden_loss"] = hidden_loss(states, batch["teacher_states"], _real_tokens(batch))
    if output.attention_scores is not None:
        scores, targets = output.attention_scores, batch["teacher_scores"]
        losses["attention_loss"] = attention_loss(scores, targets, windows, batch["document_ids"])
    return losses


def soft_positions(batch: Batch, soft_targets: SoftTargets) -> jax.Array:
    """Return the positions [batch, count] at which token logits are compared."""
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
