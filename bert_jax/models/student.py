"""A model that learns the hidden states of a wider or narrower teacher."""

from __future__ import annotations

from collections.abc import Sequence

import jax
from flax import nnx

from bert_jax.models.config import ComputeConfig, EncoderConfig
from bert_jax.models.heads import PretrainingModel
from bert_jax.models.layers import dense

# What the names of parameters begin with that are no part of the model once it is trained.
TRAINING_ONLY = "to_teacher."


class ToTeacher(nnx.Module):
    """Two learned maps into a teacher's space: for the embeddings, and for all layers.

    Jiao et al. 2020 ("TinyBERT"), equations 8 and 9.
    """

    def __init__(
        self, config: EncoderConfig, compute: ComputeConfig, rngs: nnx.Rngs, teacher_dim: int
    ):
        axes = ("embed", None)
        self.embeddings = dense(config.hidden_dim, teacher_dim, axes, config, compute, rngs)
        self.layers = dense(config.hidden_dim, teacher_dim, axes, config, compute, rngs)

    def __call__(self, states: Sequence[jax.Array]) -> list[jax.Array]:
        """Embeddings and layers [batch, length, hidden_dim] to as many [.., teacher_dim]."""
        return [self.embeddings(states[0]), *(self.layers(state) for state in states[1:])]


class StudentModel(PretrainingModel):
    """A `PretrainingModel` with maps to the space of a teacher of another `hidden_dim`."""

    def __init__(
        self,
        config: EncoderConfig,
        compute: ComputeConfig,
        rngs: nnx.Rngs,
        *,
        next_sentence: bool,
        teacher_dim: int,
    ):
        # The model first: it begins with the same parameters as without a teacher.
        super().__init__(config, compute, rngs, next_sentence=next_sentence)
        self.to_teacher = ToTeacher(config, compute, rngs, teacher_dim)
