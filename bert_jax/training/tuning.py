"""Which parameters are fine-tuned, and how fast."""

from __future__ import annotations

import re
from dataclasses import dataclass

from bert_jax.models.config import EncoderConfig

_LAYER = re.compile(r"encoder\.layers\.(\d+)\.")


@dataclass(frozen=True)
class TuningConfig:
    """What of a model is fine-tuned.

    top_layers: the last layers of the encoder, which learn with all that is above them; the
      embeddings learn only if every layer does. -1: all of them; 0: what is above the encoder
      alone (pooler and head).
    embeddings: whether they learn at all.
    layer_decay: what a layer learns at is the rate of the layer above times this; what is above
      the encoder has the full rate, the embeddings the least (Howard and Ruder 2018, section 3.2,
      "discriminative fine-tuning"). 1.0: the same rate for all.
    """

    top_layers: int = -1
    embeddings: bool = True
    layer_decay: float = 1.0

    def __post_init__(self) -> None:
        if self.top_layers < -1:
            raise ValueError(f"tuning.top_layers={self.top_layers}: expected -1 (all), 0, 1, ...")
        if not 0.0 < self.layer_decay <= 1.0:
            raise ValueError(
                f"tuning.layer_decay={self.layer_decay}: expected more than 0, up to 1"
            )


@dataclass(frozen=True)
class Tuning:
    """A `TuningConfig` for an encoder.

    Raises:
      ValueError: more layers are asked for than there are, layers are told apart that share
        parameters, or slowed down where none learns.
    """

    config: TuningConfig
    encoder: EncoderConfig

    def __post_init__(self) -> None:
        apart = self.num_trainable_layers not in (0, self.num_layers) or self.config.layer_decay < 1
        if self.encoder.sharing != "none" and apart:
            raise ValueError(
                f"tuning.top_layers={self.config.top_layers} and layer_decay="
                f"{self.config.layer_decay}, but the model's layers share parameters (sharing="
                f"{self.encoder.sharing!r}): all of them are trained, at one rate, or none: "
                "top_layers=-1 or 0 and layer_decay=1.0"
            )
        if self.config.top_layers == 0 and self.config.layer_decay < 1.0:
            raise ValueError(
                f"tuning.layer_decay={self.config.layer_decay} slows layers down, and top_layers=0 "
                "trains none of them: set layer_decay=1.0, or more top_layers"
            )
        if self.config.top_layers > self.num_layers:
            raise ValueError(
                f"tuning.top_layers={self.config.top_layers}: the model has {self.num_layers}"
            )

    @property
    def num_layers(self) -> int:
        """All layers of the encoder."""
        return self.encoder.num_layers

    @property
    def num_trainable_layers(self) -> int:
        """The last layers of the encoder, those that a backward pass goes through."""
        return self.num_layers if self.config.top_layers == -1 else self.config.top_layers

    def is_trainable(self, name: str) -> bool:
        """Return whether a parameter is trainable."""
        depth = self._depth(name)
        if depth == 0:
            return self.config.embeddings and self.num_trainable_layers == self.num_layers
        return depth > self.num_layers - self.num_trainable_layers

    def rate(self, name: str) -> float:
        """What the learning rate is multiplied by for a parameter."""
        return self.config.layer_decay ** (self.num_layers + 1 - self._depth(name))

    def _depth(self, name: str) -> int:
        """0 for the embeddings, 1 for the first layer, ..., num_layers + 1 above the last."""
        layer = _LAYER.match(name)
        if layer:
            return int(layer.group(1)) + 1
        return 0 if name.startswith("encoder.embeddings.") else self.num_layers + 1
