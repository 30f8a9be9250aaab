"""What a directory of the sentence-transformers library has behind its encoder."""

from __future__ import annotations

from pathlib import Path

from bert_jax.interop.huggingface_model import Wanted
from bert_jax.json_files import expecting_fields, read_json

MODULES_NAME = "modules.json"
_WITHOUT_WEIGHTS = ("Transformer", "Pooling", "Normalize")


def further_modules(directory: Path, wanted: Wanted) -> list[str]:
    """Lines: what is left out besides tensors of the encoder's own file.

    Raises:
      ValueError: a module with weights, which the vectors went through, and no head was asked for.
    """
    file = directory / MODULES_NAME
    if not file.is_file():
        return []
    with expecting_fields(file):
        told = [str(module["type"]) for module in read_json(file)]
    names = [each.rpartition(".")[2] for each in told]
    further = [name for name in names if name not in _WITHOUT_WEIGHTS]
    if further and wanted.head is None:
        raise ValueError(
            f"{file}: the vectors go through {', '.join(further)} behind the encoder, which is "
            "not understood; --head encoder takes the encoder without"
        )
    left = [name for name in names if name != "Transformer"]
    return [f"{file.name}: {', '.join(left)} behind the encoder left out"] if left else []
