"""Read Google's original BERT checkpoints, and give their tensors Hugging Face's names."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bert_jax.interop.huggingface.config import read_encoder
from bert_jax.interop.huggingface.import_config import ImportOptions
from bert_jax.interop.huggingface.load import ForeignModel, load_tokenizer, resolve_directory
from bert_jax.interop.huggingface.weights import NewestNames
from bert_jax.json_files import read_json_object
from bert_jax.local_paths import check_local

CONFIG = "bert_config.json"
INDEX = ".index"
# Variables used only for training: the moments of Adam and LAMB, counters and loss scales.
_SLOT = re.compile(r"/(adam|lamb)_[mv](_\d+)?$|^(global_step|save_counter|_CHECKPOINTABLE)")
_LOSS_SCALE = re.compile(r"loss_scale|good_steps|beta[12]_power|signal_early_stopping")
_REPLACEMENTS = (
    (r"layer_(\d+)", r"layer.\1"),
    (r"cls/squad/output_weights$", "qa_outputs.weight"),
    (r"cls/squad/output_bias$", "qa_outputs.bias"),
    (r"^output_weights$", "classifier.weight"),
    (r"^output_bias$", "classifier.bias"),
    (r"predictions/output_bias$", "predictions.bias"),
    (r"seq_relationship/output_weights$", "seq_relationship.weight"),
    (r"seq_relationship/output_bias$", "seq_relationship.bias"),
    (r"/kernel$", ".weight"),
    (r"(_embeddings)$", r"\1.weight"),
    (r"/", "."),
)


class CheckpointVariables:
    """The variables in a TensorFlow checkpoint, with Hugging Face's names and layout.

    Attributes:
      shapes: the shape of each tensor, keyed by its name.
      slots: the number of optimizer variables, which are skipped.
    """

    shapes: Mapping[str, tuple[int, ...]]

    def __init__(self, prefix: Path):
        """Open `prefix`.index and the data files that belong to it."""
        # Suppress TensorFlow's startup messages; this works only before the first import.
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
        try:
            import tensorflow
        except ImportError as error:
            raise ValueError(
                f"{prefix}: reading a TensorFlow checkpoint requires TensorFlow. Run "
                "`pip install -e '.[tensorflow]'`"
            ) from error
        try:
            self._reader: Any = tensorflow.train.load_checkpoint(str(prefix))
        except (tensorflow.errors.OpError, ValueError, RuntimeError, LookupError) as error:
            reason = str(error).partition("\n")[0]
            raise ValueError(f"{prefix}: TensorFlow cannot read it: {reason}") from error
        self._failure = tensorflow.errors.OpError
        self._prefix = prefix
        shapes = self._reader.get_variable_to_shape_map()
        names = [n for n in shapes if not (_SLOT.search(n) or _LOSS_SCALE.search(n))]
        self.slots = len(shapes) - len(names)
        self._variables: dict[str, str] = {}
        for name in names:
            other = self._variables.setdefault(foreign_name(name), name)
            if other != name:
                raise ValueError(f"{prefix}: {other} and {name} are two names for the same tensor")
        self.shapes = {
            name: tuple(shapes[variable])[:: -1 if variable.endswith("/kernel") else 1]
            for name, variable in self._variables.items()
        }

    def read(self, name: str) -> NDArray[np.generic]:
        """See `ForeignTensors.read`."""
        variable = self._variables[name]
        try:
            values = np.asarray(self._reader.get_tensor(variable))
        except (self._failure, ValueError, RuntimeError, LookupError) as error:
            reason = str(error).partition("\n")[0]
            raise ValueError(f"{self._prefix}: {variable} cannot be read: {reason}") from error
        return values.T if variable.endswith("/kernel") else values


def foreign_name(variable: str) -> str:
    """Return Hugging Face's name for a variable, except that gamma and beta keep their names."""
    for pattern, replacement in _REPLACEMENTS:
        variable = re.sub(pattern, replacement, variable)
    return variable


def checkpoint_prefix(source: Path) -> Path | None:
    """Return the prefix (the path without `.index`) of the checkpoint at or in `source`, if any.

    Raises:
      ValueError: a directory contains multiple checkpoints.
    """
    check_local(source)
    source = source.absolute()
    if source.name and source.with_name(source.name + INDEX).is_file():
        return source
    if source.is_file() and source.name.endswith(INDEX):
        return source.with_name(source.name.removesuffix(INDEX))
    files = sorted(source.glob(f"*{INDEX}")) if source.is_dir() else []
    if len(files) > 1:
        names = ", ".join(file.name.removesuffix(INDEX) for file in files)
        raise ValueError(
            f"{source} contains multiple checkpoints. Specify the path of one of them: {names}"
        )
    return files[0].with_name(files[0].name.removesuffix(INDEX)) if files else None


def open_checkpoint(
    prefix: Path,
    options: ImportOptions,
    *,
    tokenizer: Path | None = None,
) -> ForeignModel:
    """Open a checkpoint whose directory also contains bert_config.json and vocab.txt.

    The arguments and errors are the same as for `huggingface.load.open_directory`.
    """
    check_local(prefix)
    file = prefix.parent / CONFIG
    if not file.is_file():
        raise ValueError(
            f"{prefix}: no {CONFIG} in the same directory. Copy it there from the model's release"
        )
    content = read_json_object(file)
    encoder = read_encoder(content, str(file))
    variables = CheckpointVariables(prefix)
    model = resolve_directory(
        content,
        encoder,
        NewestNames(variables, encoder),
        load_tokenizer(tokenizer, prefix.parent),
        prefix,
        options,
    )
    if variables.slots:
        model.notes.append(f"{variables.slots} optimizer variables are left out")
    return model
