"""BERT in JAX: corpus preparation, pretraining and checkpoints, on one core or a TPU slice.

Importing this package imports no JAX, so that the command line answers at once. The models that
take text are imported when they are first asked for: `from bert_jax import FillMask`.
"""

import importlib
from typing import Any

__version__ = "0.1.0"

_INFERENCE = {
    "AnswerQuestion": "answer_question",
    "Choose": "classify",
    "Classify": "classify",
    "Embed": "embed",
    "FillMask": "fill_mask",
    "NextSentence": "fill_mask",
    "Tag": "tag",
    "cosine_similarity": "embed",
}
__all__ = ["__version__", *_INFERENCE]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    if name not in _INFERENCE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.inference.{_INFERENCE[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_INFERENCE])
