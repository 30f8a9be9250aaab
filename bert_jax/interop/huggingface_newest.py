"""Tensors of older Hugging Face and TensorFlow files under the names of today."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from bert_jax.interop.foreign import ForeignTensors
from bert_jax.interop.huggingface_family import Family


class NewestNames:
    """Foreign tensors under the names that today's classes give them.

    Raises:
      ValueError: two of them have one name then.
    """

    shapes: Mapping[str, tuple[int, ...]]

    def __init__(self, tensors: ForeignTensors, family: Family):
        self._tensors = tensors
        self._there: dict[str, str] = {}
        for name in tensors.shapes:
            newest = _newest(name, family)
            if newest in self._there:
                raise ValueError(
                    f"{self._there[newest]} and {name} are two names of one tensor, and both are "
                    "there: which of them counts is not known"
                )
            self._there[newest] = name
        for copy, original in family.tied.items():  # either name may be the one that was kept
            if copy in self._there and original not in self._there:
                self._there[original] = self._there.pop(copy)
        self.shapes = {name: tensors.shapes[there] for name, there in self._there.items()}

    def read(self, name: str) -> NDArray[np.generic]:
        """See `ForeignTensors.read`."""
        return self._tensors.read(self._there[name])


def _newest(name: str, family: Family) -> str:
    if name.endswith(("LayerNorm.gamma", "LayerNorm.beta")):  # TensorFlow's words, up to 2019
        name = name.replace("LayerNorm.gamma", "LayerNorm.weight")
        name = name.replace("LayerNorm.beta", "LayerNorm.bias")
    bare = name.startswith(("embeddings.", "encoder.", "pooler.", "transformer."))
    return family.prefix + name if bare else name
