"""Find a model on a local disk, or copy it there from a bucket."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path

from bert_jax.corpus.workspace import SWEEP_NAME
from bert_jax.local_paths import COPIES
from bert_jax.runs.bucket_layout import RUNS_NAME
from bert_jax.runs.views import local_run
from bert_jax.runs.work_dir import MODEL_NAME
from bert_jax.storage.cache import local_tree
from bert_jax.storage.errors import located, naming_store_errors
from bert_jax.storage.locations import nothing_at
from bert_jax.storage.objects import list_directory, list_objects
from bert_jax.storage.urls import ObjectUrl, parse_location

# Weights in a Hugging Face directory that are never read, and weights that are read only if there
# are no other ones.
_OTHER_WEIGHTS = re.compile(r"(tf_model\.h5|flax_model\.msgpack|rust_model\.ot)$")
_PICKLED, _SAFE = re.compile(r"pytorch_model[^/]*\.bin"), re.compile(r"model[^/]*\.safetensors$")


def local_model(
    path: str | os.PathLike[str],
    name: str = "",
) -> Path:
    """Return the path of a model on a local disk, copying the model there if it is in a bucket.

    The copy is kept until this process ends. The checkpoints of a work directory are copied when
    they are loaded (see `local_run`). If the URL of a model file is given, the objects next to it
    are copied too, since the model may need them.

    Args:
      path: a work directory, another program's directory or model file, or the prefix of a
        TensorFlow checkpoint. A path on a local disk is returned unchanged.
      name: the option or config key that specifies it, or "" if there is none.

    Raises:
      ValueError: there is nothing at or below the URL, or the store denies access.
      StorageError: an object cannot be read.
      NotWritten: the copy cannot be written.
    """
    location = parse_location(path, name)
    if not isinstance(location, ObjectUrl):
        return location
    with naming_store_errors(name, location):
        names = {location.relative(info.url) for info in list_objects(location)}
        if not names:
            return _with_neighbors(location, name)
        if SWEEP_NAME in names:
            raise ValueError(
                f"{located(location, name)}: this is a sweep. Specify the directory of one of its "
                f"runs, such as {location}/{RUNS_NAME}/NAME."
            )
        if MODEL_NAME not in names:
            return _copied(location, _is_foreign(names))
        return local_run(location)


def _copied(url: ObjectUrl, wanted: Callable[[str], bool]) -> Path:
    copy = local_tree(url, wanted)
    COPIES[str(copy)] = str(url)
    return copy


def _with_neighbors(url: ObjectUrl, name: str) -> Path:
    """Copy a file, or the files whose names begin with a prefix, and return the local path."""
    infos = list_directory(url.parent)[0] if url.key else []
    names = {info.url.name for info in infos}
    if not any(each == url.name or each.startswith(f"{url.name}.") for each in names):
        raise ValueError(nothing_at(url, name))
    if MODEL_NAME in names:
        raise ValueError(
            f"{located(url, name)}: this is a file in the work directory {url.parent}. Specify the "
            "directory."
        )
    return _copied(url.parent, lambda relative: "/" not in relative) / url.name


def _is_foreign(names: Iterable[str]) -> Callable[[str], bool]:
    """Return a function that decides which files in another program's directory are needed."""
    safe = {name.rpartition("/")[0] for name in names if _SAFE.fullmatch(name.rpartition("/")[2])}

    def wanted(name: str) -> bool:
        directory, _, file = name.rpartition("/")
        pickled = _PICKLED.match(file) is not None and directory in safe
        return not pickled and _OTHER_WEIGHTS.fullmatch(file) is None

    return wanted
