"""Google's original BERT checkpoints: TensorFlow variables under Hugging Face's names."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bert_jax.interop.huggingface.config import ImportOptions, read_encoder
from bert_jax.interop.huggingface.families import family_of
from bert_jax.interop.huggingface.load import ForeignModel, load_tokenizer, settle_directory
from bert_jax.interop.huggingface.weights import NewestNames
from bert_jax.json_files import read_json_object
from bert_jax.local_paths import check_local

CONFIG = "bert_config.json"
INDEX = ".index"
# What training keeps beside the parameters: Adam's and LAMB's moments, counters, loss scales.
_SLOT = re.compile(r"/(adam|lamb)_[mv](_\d+)?$|^(global_step|save_counter|_CHECKPOINTABLE)")
_LOSS_SCALE = re.compile(r"loss_scale|good_steps|beta[12]_power|signal_early_stopping")
_PIECES = (
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
    """The variables of a TensorFlow checkpoint, named and laid out as Hugging Face would.

    slots: how many variables were of the optimizer, and are none of these.
    """

    shapes: Mapping[str, tuple[int, ...]]

    def __init__(self, prefix: Path):
        """Opens `prefix`.index and its data files."""
        # Before the first import: its start-up messages are no business of the user's.
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
        try:
            import tensorflow
        except ImportError as error:
            raise ValueError(
                f"{prefix}: a TensorFlow checkpoint takes TensorFlow to read: "
                "pip install -e '.[tensorflow]'"
            ) from error
        try:
            self._reader: Any = tensorflow.train.load_checkpoint(str(prefix))
        except (tensorflow.errors.OpError, ValueError, RuntimeError, LookupError) as error:
            reason = str(error).partition("\n")[0]
            raise ValueError(f"{prefix}: TensorFlow cannot read it: {reason}") from error
        self._failure = tensorflow.errors.OpError
        self._prefix = prefix
        found = self._reader.get_variable_to_shape_map()
        names = [n for n in found if not (_SLOT.search(n) or _LOSS_SCALE.search(n))]
        self.slots = len(found) - len(names)
        self._there: dict[str, str] = {}
        for name in names:
            twin = self._there.setdefault(foreign_name(name), name)
            if twin != name:
                raise ValueError(f"{prefix}: {twin} and {name} are two names of one tensor")
        self.shapes = {
            name: tuple(found[there])[:: -1 if there.endswith("/kernel") else 1]
            for name, there in self._there.items()
        }

    def read(self, name: str) -> NDArray[np.generic]:
        """See `ForeignTensors.read`."""
        there = self._there[name]
        try:
            values = np.asarray(self._reader.get_tensor(there))
        except (self._failure, ValueError, RuntimeError, LookupError) as error:
            reason = str(error).partition("\n")[0]
            raise ValueError(f"{self._prefix}: {there} cannot be read: {reason}") from error
        return values.T if there.endswith("/kernel") else values


def foreign_name(variable: str) -> str:
    """Hugging Face's name of a variable, with TensorFlow's gamma and beta."""
    for pattern, replacement in _PIECES:
        variable = re.sub(pattern, replacement, variable)
    return variable


def checkpoint_prefix(source: Path) -> Path | None:
    """The checkpoint that `source` is or holds: its path without `.index`; None if there is none.

    Raises:
      ValueError: a directory holds several.
    """
    check_local(source)
    source = source.absolute()
    if source.name and source.with_name(source.name + INDEX).is_file():
        return source
    if source.is_file() and source.name.endswith(INDEX):
        return source.with_name(source.name.removesuffix(INDEX))
    found = sorted(source.glob(f"*{INDEX}")) if source.is_dir() else []
    if len(found) > 1:
        names = ", ".join(file.name.removesuffix(INDEX) for file in found)
        raise ValueError(f"{source} holds several checkpoints: give the path of one of {names}")
    return found[0].with_name(found[0].name.removesuffix(INDEX)) if found else None


def open_checkpoint(
    prefix: Path,
    options: ImportOptions,
    *,
    tokenizer: Path | None = None,
) -> ForeignModel:
    """Opens a checkpoint with bert_config.json and vocab.txt beside it.

    Arguments and errors as `huggingface.load.open_directory`.
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
    found = settle_directory(
        content,
        encoder,
        NewestNames(variables, family_of(encoder)),
        load_tokenizer(tokenizer, prefix.parent),
        prefix,
        options,
    )
    if variables.slots:
        found.notes.append(f"{variables.slots} variables of the optimizer are left out")
    return found
