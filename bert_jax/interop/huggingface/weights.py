"""Read the tensors of a Hugging Face directory under the names that are used today.

They are in safetensors or PyTorch pickles, in one file or several.
"""

from __future__ import annotations

import shutil
import tempfile
import weakref
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from bert_jax.interop.huggingface.family import Family
from bert_jax.interop.tensors import ForeignTensors
from bert_jax.json_files import read_json

SAFETENSORS = "model.safetensors"
PICKLE = "pytorch_model.bin"
INDEX = ".index.json"


class SafetensorsFiles:
    """Tensors in .safetensors files; a file is open only while one of them is read.

    Kept open, the pages of a memory-mapped file that were read would count as this process's
    memory: all the weights a second time.
    """

    shapes: Mapping[str, tuple[int, ...]]

    def __init__(self, files: list[Path]):
        self._place: dict[str, Path] = {}
        shapes = {}
        for file in files:
            try:
                with safe_open(file, framework="np") as opened:
                    for name in opened.keys():
                        _check_new(name, file, self._place)
                        shapes[name] = tuple(opened.get_slice(name).get_shape())
                        self._place[name] = file
            except SafetensorError as error:
                raise ValueError(f"{file}: {_what_it_is(file, error)}") from error
        self.shapes = shapes

    def read(self, name: str) -> NDArray[np.generic]:
        """See `ForeignTensors.read`."""
        with safe_open(self._place[name], framework="np") as opened:
            return opened.get_tensor(name)


class PickleFiles:
    """Tensors in PyTorch's .bin files, loaded by PyTorch as data alone.

    A file is mapped only while a tensor of it is read, as in `SafetensorsFiles`. One from before
    PyTorch 1.6 (2020) cannot be mapped: a copy in today's format, on disk, stands in for it.
    """

    shapes: Mapping[str, tuple[int, ...]]

    def __init__(self, files: list[Path]):
        self._place: dict[str, Path] = {}
        shapes = {}
        for file in files:
            tensors = _unpickled(file)
            place = file if zipfile.is_zipfile(file) else self._copy(tensors)
            for name, tensor in tensors.items():
                _check_new(name, file, self._place)
                shapes[name] = tuple(tensor.shape)
                self._place[name] = place
        self.shapes = shapes

    def _copy(self, tensors: dict[str, Any]) -> Path:
        import torch

        directory = tempfile.mkdtemp(prefix="bert_jax-")
        weakref.finalize(self, shutil.rmtree, directory)
        torch.save(tensors, Path(directory) / PICKLE)
        return Path(directory) / PICKLE

    def read(self, name: str) -> NDArray[np.generic]:
        """See `ForeignTensors.read`."""
        import torch

        tensor = _unpickled(self._place[name])[name].detach()
        # NumPy has no bfloat16 of its own; float32 holds every value of it.
        tensor = tensor.to(torch.float32) if tensor.dtype == torch.bfloat16 else tensor
        return tensor.numpy().copy()


def open_weights(directory: Path) -> SafetensorsFiles | PickleFiles:
    """The tensors of a directory, safetensors where there are both.

    Raises:
      ValueError: there are none, a part of them is absent or damaged, or PyTorch is needed and
        not installed.
    """
    for name, kind in ((SAFETENSORS, SafetensorsFiles), (PICKLE, PickleFiles)):
        files = _files(directory, name)
        if files:
            return kind(files)
    parts = sorted(directory.glob("*-of-*"))
    if parts:
        raise ValueError(
            f"{directory}: it holds {parts[0].name}, but no {INDEX} that lists the parts"
        )
    raise ValueError(
        f"{directory}: no weights in it; expected {SAFETENSORS} or {PICKLE}, or their {INDEX}"
    )


def _what_it_is(file: Path, error: Exception) -> str:
    """What a file that is no safetensors file may be."""
    with open(file, "rb") as opened:
        beginning = opened.read(64)
    if beginning.startswith(b"version https://git-lfs"):
        return "a Git LFS pointer and not the weights themselves; run `git lfs pull` beside it"
    if beginning.lstrip().startswith(b"<"):
        return "a web page and not weights: the download was refused; fetch it again"
    return f"damaged or cut short: {error}; fetch it again"


def _check_new(name: str, file: Path, place: Mapping[str, Path]) -> None:
    if name in place:
        raise ValueError(f"{name} is in {place[name]} and in {file}: which counts is not known")


def _files(directory: Path, name: str) -> list[Path]:
    whole, index = directory / name, directory / (name + INDEX)
    if whole.is_file():
        return [whole]
    if not index.is_file():
        return []
    try:
        parts = sorted(set(read_json(index)["weight_map"].values()))
        plain = all(isinstance(part, str) and Path(part).name == part for part in parts)
    except (KeyError, AttributeError, TypeError):
        plain = False
    if not plain or not parts:
        raise ValueError(f"{index}: damaged: expected a weight_map of names of files beside it")
    absent = [part for part in parts if not (directory / part).is_file()]
    if absent:
        raise ValueError(f"{index} names {', '.join(absent)}, which {directory} does not hold")
    return [directory / part for part in parts]


def _unpickled(file: Path) -> dict[str, Any]:
    try:
        import torch
    except ImportError as error:
        raise ValueError(
            f"{file}: a PyTorch pickle takes PyTorch to read: pip install -e '.[torch]', or "
            f"use the model's {SAFETENSORS} if it has one"
        ) from error
    try:
        # Only the zip format (PyTorch >= 1.6, 2020) can be mapped; older files are read whole.
        loaded = torch.load(
            file, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(file)
        )
    except Exception as error:  # a pickle can make PyTorch raise anything
        raise ValueError(
            f"{file}: PyTorch cannot read it as data alone: it is damaged, cut short or no "
            "state_dict; fetch it again"
        ) from error
    if not isinstance(loaded, dict) or not all(
        isinstance(name, str) and torch.is_tensor(tensor) for name, tensor in loaded.items()
    ):
        raise ValueError(f"{file}: expected a state_dict, a dict of tensors by name")
    for name, tensor in loaded.items():
        if tensor.layout != torch.strided or tensor.is_meta or tensor.is_complex():
            raise ValueError(
                f"{file}: {name} is a {tensor.dtype} tensor on {tensor.device} with layout "
                f"{tensor.layout}; expected dense arrays of real numbers"
            )
    return loaded


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
