"""Define ELECTRA for pretraining: a discriminator, and a generator that shares its embeddings."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from flax import nnx

from bert_jax.models.compute_config import ComputeConfig
from bert_jax.models.config import EncoderConfig
from bert_jax.models.devices import fits_norm_kernels
from bert_jax.models.heads import GENERATOR
from bert_jax.models.pretraining_models import PretrainingModel, ReplacedTokenModel

# The generator has its own projection, since its hidden states have a different dimension.
_SHARED = ("token", "position", "segment", "norm")
_EMBEDDINGS = "encoder.embeddings."


def generator_of(encoder: EncoderConfig, size: float) -> EncoderConfig:
    """Return the encoder of the generator that trains a discriminator.

    The generator has the discriminator's layers, but only a fraction of its attention heads, hidden
    features and feed-forward features. Heads have the same size in both models.

    Source: Clark et al. 2020 ("ELECTRA"), section 3.2 and table 6.

    Args:
      encoder: the discriminator's encoder.
      size: the fraction, which is rounded to whole heads.
    """
    num_heads = max(1, round(encoder.num_heads * size))
    hidden_dim = num_heads * encoder.head_dim
    return replace(
        encoder,
        num_heads=num_heads,
        hidden_dim=hidden_dim,
        ffn_dim=max(1, encoder.ffn_dim * num_heads // encoder.num_heads),
        embedding_dim=None if encoder.table_dim == hidden_dim else encoder.table_dim,
    )


def generator_compute(generator: EncoderConfig, compute: ComputeConfig) -> ComputeConfig:
    """Return the compute options for a generator, given those for its discriminator.

    The norms use XLA if the fused norm kernels do not support the generator's `hidden_dim`.
    """
    return compute if fits_norm_kernels(generator.hidden_dim) else replace(compute, norms="xla")


class ReplacedTokenPair(ReplacedTokenModel):
    """A discriminator and the generator that replaces tokens in its input.

    Both use the discriminator's token, position and segment tables and their norm (Clark et
    al. 2020, section 3.2, and the code released with it).

    Args:
      discriminator: the discriminator's encoder.
      generator: the generator's encoder, whose tables have the same shapes.
      compute: options for the computation.
      rngs: the keys for randomly initialized parameters.
    """

    def __init__(
        self,
        discriminator: EncoderConfig,
        generator: EncoderConfig,
        compute: ComputeConfig,
        rngs: nnx.Rngs,
    ):
        super().__init__(discriminator, compute, rngs)
        options = generator_compute(generator, compute)
        self.generator = PretrainingModel(generator, options, rngs, next_sentence=False)
        for name in self._shared():
            delattr(self.generator.encoder.embeddings, name)

    def whole_generator(self) -> PretrainingModel:
        """Return the generator with the shared embeddings."""
        for name in self._shared():
            shared = getattr(self.encoder.embeddings, name)
            setattr(self.generator.encoder.embeddings, name, shared)
        return self.generator

    def _shared(self) -> list[str]:
        return [name for name in _SHARED if hasattr(self.encoder.embeddings, name)]


def pair_names(generator: Iterable[str]) -> dict[str, str]:
    """Return a dict from the names of a generator's parameters to their names in a pair."""
    shared = tuple(f"{_EMBEDDINGS}{name}" for name in _SHARED)
    return {name: name if name.startswith(shared) else GENERATOR + name for name in generator}
