"""Compute scores of a masked language model, on one device or on all devices of a mesh."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from bert_jax.language_scores.batch_limits import BatchLimits
from bert_jax.models.config import EncoderConfig
from bert_jax.models.parameters import ModelDefinition, Parameters
from bert_jax.models.pretraining_models import PretrainingModel
from bert_jax.processes import available_cores
from bert_jax.tasks.task import cross_entropy
from bert_jax.training.sharding import layout, local_rows, to_global

HostBatch = Mapping[str, np.ndarray]
Score = Callable[[HostBatch], jax.Array]


class NotFinite(ValueError):
    """A model's scores are NaN or infinite."""


@dataclass(frozen=True)
class MaskedLM:
    """Functions that score batches with a masked language model.

    Attributes:
      loss_sums: returns the summed loss, the number of correct predictions and the number of
        predictions, float32 [3], for a batch from `masked_batches`.
      log_probabilities: returns the log-probabilities of `labels` [rows, labels] at `positions`
        [rows].
      limits: the limits on the shape of a batch.
      num_threads: the number of threads that may compute batches at the same time.
    """

    loss_sums: Score
    log_probabilities: Score
    limits: BatchLimits
    num_threads: int = 1

    @staticmethod
    def of(model: PretrainingModel) -> MaskedLM:
        """Return functions that run a model on this process's first device."""
        # Batches for a CPU fit in its caches, so it needs several of them to use all its cores. An
        # accelerator needs a second batch that waits while the first one is computed.
        on_cpu = jax.default_backend() == "cpu"
        return MaskedLM(
            partial(_compiled_loss_sums, model),
            partial(_compiled_log_probabilities, model),
            BatchLimits.of(model.encoder.config),
            num_threads=max(2, available_cores()) if on_cpu else 2,
        )


class MaskedLMPrograms:
    """Compiled functions that take a model's parameters, which may be sharded over a mesh.

    Each batch shape is compiled only once, even if the parameters change. Rows are split across the
    devices, and every process gets the results.

    Args:
      definition: a model with an encoder and a masked-LM head.
      encoder: the encoder's config.
      mesh: the device mesh.
      stored_names: a dict from the names of the model's parameters to their names in the parameters
        passed to `bind`; None if the names are the same.
    """

    def __init__(
        self,
        definition: ModelDefinition[Any],
        encoder: EncoderConfig,
        mesh: Mesh,
        stored_names: Mapping[str, str] | None = None,
    ):
        self._mesh = mesh
        self._limits = BatchLimits.of(encoder, mesh)
        self._stored_names = stored_names or {name: name for name in definition.shapes}
        replicated = NamedSharding(mesh, PartitionSpec())

        def on_mesh(function: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
            def score(parameters: Parameters, batch: Mapping[str, jax.Array]) -> jax.Array:
                with layout(mesh):
                    return function(definition.module(parameters), batch)

            return jax.jit(score, out_shardings=replicated)

        self._loss_sums = on_mesh(_loss_sums)
        self._log_probabilities = on_mesh(_log_probabilities)

    @property
    def num_compiled(self) -> int:
        """The number of programs that have been compiled so far."""
        programs: tuple[Any, ...] = (self._loss_sums, self._log_probabilities)
        return sum(program._cache_size() for program in programs)

    def bind(self, parameters: Parameters, after_batch: Callable[[], None]) -> MaskedLM:
        """Return the functions of the model with these parameters.

        Args:
          parameters: the parameters on the mesh; names that the model does not have are ignored.
          after_batch: called after every batch; it may raise an exception to end the evaluation.
        """
        own = {name: parameters[stored] for name, stored in self._stored_names.items()}

        def score(program: Callable[..., jax.Array], batch: HostBatch) -> jax.Array:
            size = len(batch["token_ids"])
            rows = local_rows(self._mesh, size)
            local = {name: array[rows] for name, array in batch.items()}
            output = program(own, to_global(local, self._mesh, rows, size))
            after_batch()
            return output

        return MaskedLM(
            partial(score, self._loss_sums),
            partial(score, self._log_probabilities),
            self._limits,
        )


def _loss_sums(model: PretrainingModel, batch: Mapping[str, jax.Array]) -> jax.Array:
    """Return the summed loss, the number of correct predictions and the number of predictions."""
    token_ids, weights = batch["token_ids"], batch["weights"]
    mask = (jnp.arange(token_ids.shape[1]) < batch["lengths"][:, None]).astype(jnp.int32)
    encoded = model.encoder(
        token_ids,
        jnp.zeros_like(token_ids),
        None,
        mask,
        packed=False,
        positions=batch["positions"],
    )
    logits = model.masked_lm(encoded.hidden, model.encoder.embeddings)
    scores = cross_entropy(logits, batch["labels"])
    return jnp.stack(
        [jnp.sum(scores.loss * weights), jnp.sum(scores.correct * weights), jnp.sum(weights)]
    )


def _log_probabilities(model: PretrainingModel, batch: Mapping[str, jax.Array]) -> jax.Array:
    """Return the log-probabilities of `labels` [rows, labels] at `positions` [rows]."""
    token_ids = batch["token_ids"]
    mask = (jnp.arange(token_ids.shape[1]) < batch["lengths"][:, None]).astype(jnp.int32)
    segment_ids, positions = jnp.zeros_like(token_ids), batch["positions"][:, None]
    encoded = model.encoder(token_ids, segment_ids, None, mask, packed=False, positions=positions)
    logits = model.masked_lm(encoded.hidden, model.encoder.embeddings)[:, 0]
    chosen = jnp.take_along_axis(logits, batch["labels"], axis=-1)
    highest = jnp.max(logits, axis=-1, keepdims=True)
    total = jnp.sum(jnp.exp(logits - highest), axis=-1, keepdims=True)
    return (chosen - highest) - jnp.log(total)


_compiled_loss_sums = jax.jit(_loss_sums)
_compiled_log_probabilities = jax.jit(_log_probabilities)
