"""Choose the trainable parameters of a fine-tuning run, and their learning rates."""

from __future__ import annotations

import re
from dataclasses import dataclass

from bert_jax.models.config import EncoderConfig

_LAYER = re.compile(r"encoder\.layers\.(\d+)\.")


@dataclass(frozen=True)
class TuningConfig:
    """Settings for which parameters to train, and at which learning rates.

    Attributes:
      top_layers: the number of top encoder layers to train, in addition to the pooler and the head;
        -1 for all layers, 0 for only the pooler and the head. The embeddings are trained only if
        all layers are.
      embeddings: whether to train the embeddings.
      layer_decay: the factor by which the learning rate is multiplied from each layer to the layer
        below it. The pooler and the head have the full rate, and the embeddings have the lowest
        (Howard and Ruder 2018, section 3.2, "discriminative fine-tuning"). 1.0 gives all of them
        the same rate.
    """

    top_layers: int = -1
    embeddings: bool = True
    layer_decay: float = 1.0

    def __post_init__(self) -> None:
        if self.top_layers < -1:
            raise ValueError(f"tuning.top_layers={self.top_layers}: expected -1 (all), 0, 1, ...")
        if not 0.0 < self.layer_decay <= 1.0:
            raise ValueError(
                f"tuning.layer_decay={self.layer_decay}: must be greater than 0 and at most 1."
            )


@dataclass(frozen=True)
class Tuning:
    """Determines which parameters of a model are trainable, and their learning rates.

    Attributes:
      config: the tuning settings.
      encoder: the model's encoder.

    Raises:
      ValueError: the config trains more layers than the encoder has, distinguishes between layers
        that share parameters, or has a `layer_decay` without trainable layers.
    """

    config: TuningConfig
    encoder: EncoderConfig

    def __post_init__(self) -> None:
        apart = self.num_trainable_layers not in (0, self.num_layers) or self.config.layer_decay < 1
        if self.encoder.sharing != "none" and apart:
            raise ValueError(
                f"tuning.top_layers={self.config.top_layers} and layer_decay="
                f"{self.config.layer_decay}: the model's layers share parameters (sharing="
                f"{self.encoder.sharing!r}), so either all or none of them are trained, at one "
                "rate. Set top_layers to -1 or 0, and layer_decay to 1.0."
            )
        if self.config.top_layers == 0 and self.config.layer_decay < 1.0:
            raise ValueError(
                f"tuning.layer_decay={self.config.layer_decay} applies to layers, but top_layers=0 "
                "trains none of them. Set layer_decay=1.0, or train more layers."
            )
        if self.config.top_layers > self.num_layers:
            raise ValueError(
                f"tuning.top_layers={self.config.top_layers}: expected at most "
                f"{self.num_layers}, the number of layers in the model."
            )

    @property
    def num_layers(self) -> int:
        """The number of encoder layers."""
        return self.encoder.num_layers

    @property
    def num_trainable_layers(self) -> int:
        """The number of top encoder layers that are trained."""
        return self.num_layers if self.config.top_layers == -1 else self.config.top_layers

    def is_trainable(self, name: str) -> bool:
        """Return whether a parameter is trainable."""
        depth = self._depth(name)
        if depth == 0:
            return self.config.embeddings and self.num_trainable_layers == self.num_layers
        return depth > self.num_layers - self.num_trainable_layers

    def rate(self, name: str) -> float:
        """Return the factor by which a parameter's learning rate is multiplied."""
        return self.config.layer_decay ** (self.num_layers + 1 - self._depth(name))

    def _depth(self, name: str) -> int:
        """Return 0 for the embeddings, 1 for the first layer, ..., num_layers + 1 for the head."""
        layer = _LAYER.match(name)
        if layer:
            return int(layer.group(1)) + 1
        return 0 if name.startswith("encoder.embeddings.") else self.num_layers + 1
