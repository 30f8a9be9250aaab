"""Count the FLOPs of a model's matmuls, where one multiply-add is two FLOPs."""

from __future__ import annotations

from dataclasses import dataclass

from bert_jax.models.config import EncoderConfig

# For each matmul in the forward pass, the backward pass has two: one for the gradient with respect
# to the inputs and one for the gradient with respect to the parameters.
TRAINING_FACTOR = 3


@dataclass(frozen=True)
class LayerFlops:
    """One layer's FLOPs in the forward pass on one sequence.

    Attributes:
      projections: the query, key and value projections.
      attention: the attention scores, the weighted sum and the output projection.
      ffn: all dense layers of the feed-forward network.
    """

    projections: int
    attention: int
    ffn: int

    @property
    def dense(self) -> int:
        """The FLOPs of the dense layers: all projections and the feed-forward network."""
        output = self.projections // 3
        return self.projections + output + self.ffn

    @property
    def total(self) -> int:
        """The FLOPs in the entire layer."""
        return self.projections + self.attention + self.ffn


def layer_flops(config: EncoderConfig, length: int, layer: int = 0) -> LayerFlops:
    """Return one layer's FLOPs in the forward pass on one sequence.

    Element-wise operations (softmax, norms, activations) are not counted, and neither are pairs of
    tokens that do not attend to each other because of the layer's window.

    Args:
      config: the encoder's architecture.
      length: the number of tokens, including padding.
      layer: the number of the layer, counted from 0.
    """
    dim = config.hidden_dim
    dense = 2 * length * dim * dim
    mixing = 2 * _visible_pairs(length, config.window_of(layer)) * dim
    return LayerFlops(
        projections=3 * dense,
        attention=2 * mixing + dense,
        ffn=(3 if config.gated_ffn else 2) * (2 * length * dim * config.ffn_dim),
    )


def _visible_pairs(length: int, window: int | None) -> int:
    """Return the number of pairs of tokens in a sequence that attend to each other."""
    if window is None:
        return length * length
    side = min(window // 2, length - 1)
    # Close to the ends of the sequence, a token attends to fewer than `side` tokens on one side.
    return length * (2 * side + 1) - side * (side + 1)


def encoder_training_flops(config: EncoderConfig, length: int, trainable_layers: int) -> int:
    """Return the FLOPs of the forward and backward passes through all layers on one sequence.

    Args:
      config: the encoder's architecture.
      length: the number of tokens, including padding.
      trainable_layers: the number of layers, counted from the last, that have a backward pass. If
        the embeddings are trainable, all layers have a backward pass.
    """
    assert 0 <= trainable_layers <= config.num_layers
    flops = [layer_flops(config, length, layer).total for layer in range(config.num_layers)]
    trainable = flops[config.num_layers - trainable_layers :]
    return sum(flops) + (TRAINING_FACTOR - 1) * sum(trainable)


@dataclass(frozen=True)
class PretrainingFlops:
    """The FLOPs of a pretraining model's forward pass on one sequence.

    Attributes:
      projection: the projection of embeddings to the hidden dimension; 0 if there is none.
      layers: all the encoder's layers.
      masked_lm: the masked-LM head.
      next_sentence: the pooler and the sentence-pair head.
    """

    projection: int
    layers: int
    masked_lm: int
    next_sentence: int

    @property
    def forward(self) -> int:
        """The FLOPs in the forward pass."""
        return self.projection + self.layers + self.masked_lm + self.next_sentence

    @property
    def training(self) -> int:
        """The FLOPs in the forward and backward passes, without rematerialization.

        Utilization is measured relative to this number.
        """
        return TRAINING_FACTOR * self.forward


def pretraining_flops(
    config: EncoderConfig,
    length: int,
    predictions: int,
    *,
    documents_per_row: int = 1,
    next_sentence: bool,
) -> PretrainingFlops:
    """Return the FLOPs needed to pretrain on one sequence.

    Args:
      config: the encoder's architecture.
      length: the number of tokens, including padding.
      predictions: the number of positions at which the masked-LM head is evaluated.
      documents_per_row: the number of documents in the sequence, each of which is a sentence pair.
      next_sentence: whether there is a sentence-pair head.
    """
    dim, table_dim = config.hidden_dim, config.table_dim
    transform = dim if config.head_transform else 0
    projection = 0 if config.embedding_dim is None else 2 * length * table_dim * dim
    pairs = 2 * documents_per_row * (dim * dim + 2 * dim) if next_sentence else 0
    return PretrainingFlops(
        projection=projection,
        layers=encoder_training_flops(config, length, trainable_layers=0),
        masked_lm=2 * predictions * table_dim * (transform + config.vocab_size),
        next_sentence=pairs,
    )


def replaced_token_flops(
    discriminator: EncoderConfig, generator: EncoderConfig, length: int, predictions: int
) -> int:
    """Return the FLOPs of the forward pass of ELECTRA's two models on one sequence.

    Args:
      discriminator: the discriminator's encoder.
      generator: the generator's encoder.
      length: the number of tokens, including padding.
      predictions: the number of masked positions.
    """
    small = pretraining_flops(generator, length, predictions, next_sentence=False)
    large = pretraining_flops(discriminator, length, 0, next_sentence=False)
    dim = discriminator.hidden_dim
    return small.forward + large.forward + 2 * length * (dim * dim + dim)
