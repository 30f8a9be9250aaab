"""Provide the small models that come with a checkout under short names, such as "mini-ner"."""

from __future__ import annotations

import argparse
import hashlib
from pathlib import Path

from bert_jax.validation import nearest
from bert_jax.version import __version__

_CHECKOUT = Path(__file__).resolve().parents[2]
# The folder of each model in a checkout: a Hugging Face directory with float16 parameters.
_FOLDERS = {
    "mini": "experiments/finetuning/bert-mini",
    "mini-albert": "experiments/small_models/mini-albert",
    "mini-sentiment": "experiments/small_models/mini-sentiment",
    "mini-ner": "experiments/small_models/mini-ner",
    "mini-qa": "experiments/small_models/mini-qa",
}
SMALL_MODELS = tuple(_FOLDERS)
# The attributes of parsed arguments that specify models.
_ARGUMENTS = ("work_dir", "work_dir_option", "init", "tokenizer", "first", "other")


def small_model(name: str) -> Path:
    """Return the work directory of a small model that comes with a checkout of bert_jax.

    "mini" and "mini-albert" are pretrained. "mini-sentiment" classifies reviews, "mini-ner" finds
    entities, and "mini-qa" answers questions about a passage. The first call imports the model into
    the user's cache directory. No network is needed.

    Args:
      name: one of `SMALL_MODELS`.

    Raises:
      ValueError: there is no such model, or bert_jax was installed from a wheel, which does not
        contain the models.
    """
    if name not in _FOLDERS:
        raise ValueError(f"{name}: no such small model; {nearest(name, SMALL_MODELS)}")
    source = _CHECKOUT / _FOLDERS[name]
    weights = source / "model.safetensors"
    if not weights.is_file():
        raise ValueError(
            f"{name}: the small models come with a checkout of bert_jax, but not with an installed "
            f"wheel. Clone the repository, or import a model from the hub with `bert-jax import`."
        )
    from bert_jax.interop.import_model import import_model  # imports JAX
    from bert_jax.runs.runtime import cache_directory

    # The version is part of the path because another version may write work directories that this
    # one does not read.
    digest = hashlib.sha256(weights.read_bytes()).hexdigest()[:12]
    directory = cache_directory() / "models" / __version__ / f"{name}-{digest}"
    if not directory.is_dir():
        try:
            import_model(source, directory)
        except (ValueError, OSError):
            if not directory.is_dir():  # otherwise, another process has just imported the model
                raise
    return directory


def replace_short_names(arguments: argparse.Namespace) -> None:
    """Replace the short names of small models in a command's arguments by their work directories.

    A file or directory with that name takes precedence.
    """
    for attribute in _ARGUMENTS:
        value = getattr(arguments, attribute, None)
        if value in SMALL_MODELS and not Path(value).exists():
            setattr(arguments, attribute, str(small_model(value)))
