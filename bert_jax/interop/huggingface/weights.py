"""Read the tensors in a Hugging Face directory, and update outdated tensor names.

The tensors are stored in one or more safetensors files or PyTorch pickles.
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

from bert_jax.interop.huggingface.families import family_of
from bert_jax.interop.huggingface.family import Family
from bert_jax.interop.tensors import ForeignTensors
from bert_jax.json_files import read_json
from bert_jax.models.config import EncoderConfig

SAFETENSORS = "model.safetensors"
PICKLE = "pytorch_model.bin"
INDEX = ".index.json"
# Files that only transformers 4 can read, each with the `from_pretrained` argument that it needs.
OF_TRANSFORMERS_4 = {"flax_model.msgpack": "from_flax", "tf_model.h5": "from_tf"}


class SafetensorsFiles:
    """Tensors in .safetensors files. A file is open only while a tensor is being read.

    If a memory-mapped file stayed open, every page read from it would count towards this process's
    memory, like a second copy of all weights.
    """

    shapes: Mapping[str, tuple[int, ...]]

    def __init__(self, files: list[Path]):
        self._files: dict[str, Path] = {}
        shapes = {}
        for file in files:
            try:
                with safe_open(file, framework="np") as opened:
                    for name in opened.keys():
                        _check_new(name, file, self._files)
                        shapes[name] = tuple(opened.get_slice(name).get_shape())
                        self._files[name] = file
            except SafetensorError as error:
                raise ValueError(f"{file}: {_describe_invalid(file, error)}") from error
        self.shapes = shapes

    def read(self, name: str) -> NDArray[np.generic]:
        """See `ForeignTensors.read`."""
        with safe_open(self._files[name], framework="np") as opened:
            return opened.get_tensor(name)


class PickleFiles:
    """Tensors in PyTorch's .bin files, which PyTorch loads without executing code in them.

    As in `SafetensorsFiles`, a file is mapped only while a tensor is being read. Files written by
    PyTorch before version 1.6 (2020) cannot be mapped, so they are first copied to a temporary file
    in the current format.
    """

    shapes: Mapping[str, tuple[int, ...]]

    def __init__(self, files: list[Path]):
        self._files: dict[str, Path] = {}
        shapes = {}
        for file in files:
            tensors = _unpickled(file)
            mappable = file if zipfile.is_zipfile(file) else self._copy(tensors)
            for name, tensor in tensors.items():
                _check_new(name, file, self._files)
                shapes[name] = tuple(tensor.shape)
                self._files[name] = mappable
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

        tensor = _unpickled(self._files[name])[name].detach()
        # NumPy has no bfloat16 type, but float32 represents all of its values exactly.
        tensor = tensor.to(torch.float32) if tensor.dtype == torch.bfloat16 else tensor
        return tensor.numpy().copy()


def open_weights(directory: Path) -> SafetensorsFiles | PickleFiles:
    """Return the tensors in a directory, preferring safetensors files to pickles.

    Raises:
      ValueError: the directory has no weights, a file is missing or damaged, or PyTorch is required
        but not installed.
    """
    for name, kind in ((SAFETENSORS, SafetensorsFiles), (PICKLE, PickleFiles)):
        files = _files(directory, name)
        if files:
            return kind(files)
    parts = sorted(directory.glob("*-of-*"))
    if parts:
        raise ValueError(
            f"{directory}: contains {parts[0].name}, but no file *{INDEX} that lists all parts. "
            "Download it as well"
        )
    for name, argument in OF_TRANSFORMERS_4.items():
        if (directory / name).is_file():
            place = repr(str(directory))
            raise ValueError(
                f"{directory}: the weights are in {name}, which only version 4 of transformers can "
                f"read. Convert them with that version: BertForMaskedLM.from_pretrained({place}, "
                f"{argument}=True).save_pretrained({place}), replacing BertForMaskedLM with the "
                "model's own PyTorch class if that is a different one"
            )
    raise ValueError(
        f"{directory}: contains no weights. Expected {SAFETENSORS} or {PICKLE}, or one of these "
        f"names with {INDEX}"
    )


def _describe_invalid(file: Path, error: Exception) -> str:
    """Describe what is wrong with a file that safetensors cannot read, and how to fix it."""
    with open(file, "rb") as opened:
        beginning = opened.read(64)
    if beginning.startswith(b"version https://git-lfs"):
        return "a Git LFS pointer instead of weights. Run `git lfs pull` in the file's directory"
    if beginning.lstrip().startswith(b"<"):
        return "a web page instead of weights, so the download failed. Download it again"
    return f"damaged or truncated: {error}. Download it again"


def _check_new(name: str, file: Path, files: Mapping[str, Path]) -> None:
    if name in files:
        raise ValueError(f"{name} is in both {files[name]} and {file}. Remove one of them")


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
        raise ValueError(
            f"{index}: damaged: expected a weight_map of files in the same directory. Download it "
            "again"
        )
    absent = [part for part in parts if not (directory / part).is_file()]
    if absent:
        raise ValueError(
            f"{index} lists files that are not in {directory}: {', '.join(absent)}. Download them"
        )
    return [directory / part for part in parts]


def _unpickled(file: Path) -> dict[str, Any]:
    try:
        import torch
    except ImportError as error:
        raise ValueError(
            f"{file}: reading a PyTorch pickle requires PyTorch. Run `pip install -e '.[torch]'` "
            f"or download {SAFETENSORS} if the model has one"
        ) from error
    try:
        # Only the zip format (PyTorch >= 1.6, 2020) can be mapped; older files are read completely.
        loaded = torch.load(
            file, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(file)
        )
    except Exception as error:  # a pickle can make PyTorch raise any exception
        raise ValueError(
            f"{file}: PyTorch cannot read it without executing code: it is damaged, truncated or "
            "not a state_dict. Download it again"
        ) from error
    if not isinstance(loaded, dict) or not all(
        isinstance(name, str) and torch.is_tensor(tensor) for name, tensor in loaded.items()
    ):
        raise ValueError(f"{file}: expected a state_dict, which maps names to tensors")
    for name, tensor in loaded.items():
        if tensor.layout != torch.strided or tensor.is_meta or tensor.is_complex():
            raise ValueError(
                f"{file}: {name} is a {tensor.dtype} tensor on {tensor.device} with layout "
                f"{tensor.layout}; expected dense arrays of real numbers"
            )
    return loaded


class NewestNames:
    """Tensors renamed to match the current classes in transformers.

    Raises:
      ValueError: two tensors have the same current name.
    """

    shapes: Mapping[str, tuple[int, ...]]

    def __init__(self, tensors: ForeignTensors, encoder: EncoderConfig):
        family = family_of(encoder)
        self._tensors = tensors
        self._stored_names: dict[str, str] = {}
        for name in tensors.shapes:
            newest = _newest(name, family)
            if newest in self._stored_names:
                raise ValueError(
                    f"{self._stored_names[newest]} and {name} are two names for the same tensor. "
                    "Remove one of them"
                )
            self._stored_names[newest] = name
        # Some files contain only the copy of a tied tensor.
        for copy, original in family.tied_in(encoder).items():
            if copy in self._stored_names and original not in self._stored_names:
                self._stored_names[original] = self._stored_names.pop(copy)
        self.shapes = {name: tensors.shapes[stored] for name, stored in self._stored_names.items()}

    def read(self, name: str) -> NDArray[np.generic]:
        """See `ForeignTensors.read`."""
        return self._tensors.read(self._stored_names[name])


def _newest(name: str, family: Family) -> str:
    # Until 2019, the files used TensorFlow's names.
    if name.endswith(("LayerNorm.gamma", "LayerNorm.beta")):
        name = name.replace("LayerNorm.gamma", "LayerNorm.weight")
        name = name.replace("LayerNorm.beta", "LayerNorm.bias")
    bare = (
        "embeddings.",
        "embeddings_project.",
        "encoder.",
        "pooler.",
        "transformer.",
        "layers.",
        "final_norm.",
    )
    return family.prefix + name if name.startswith(bare) else name
