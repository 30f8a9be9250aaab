"""Find recipes by name and read config files."""

from __future__ import annotations

import importlib.util
import itertools
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Literal, get_args

from ml_collections import ConfigDict

from bert_jax.recipes import RECIPES
from bert_jax.validation import nearest

Kind = Literal["pretrain", "finetune"]
KINDS: tuple[Kind, ...] = get_args(Kind)


def recipe_names(kind: Kind) -> list[str]:
    """Return the names of all recipes of a kind, such as "tiny" and "small/bert_base"."""
    files = (RECIPES / kind).rglob("*.py")
    return sorted(file.relative_to(RECIPES / kind).with_suffix("").as_posix() for file in files)


def find_config(name: str, kind: Kind | None = None) -> Path:
    """Return the config file that a recipe's name or a path stands for.

    Args:
      name: a recipe, with or without its kind ("pretrain/tiny" or "tiny"), or the path of a file.
      kind: the kind to prefer if both kinds have a recipe of this name.

    Raises:
      ValueError: there is no such recipe or file, or both kinds have a recipe of this name and
        `kind` is None. The message contains the nearest names.
    """
    if Path(name).suffix == ".py":
        if not Path(name).is_file():
            raise ValueError(f"--config: there is no file {name}{_similar_files(name)}")
        return Path(name)
    kinds = [each for each in KINDS if name in recipe_names(each)]
    if len(kinds) > 1 and kind is None:
        choices = " or ".join(f"{each}/{name}" for each in kinds)
        raise ValueError(f"{name}: there is a recipe of each kind. Give {choices}.")
    if kinds:
        return RECIPES / (kind if kind in kinds else kinds[0]) / f"{name}.py"
    full_names = [f"{each}/{recipe}" for each in KINDS for recipe in recipe_names(each)]
    if name in full_names:
        return RECIPES / f"{name}.py"
    if Path(name).is_file():
        raise ValueError(f"--config: {name} is not a Python file (its name must end in .py)")
    bare_names = [recipe for each in KINDS if kind in (each, None) for recipe in recipe_names(each)]
    known = full_names if name.startswith(tuple(f"{each}/" for each in KINDS)) else bare_names
    raise ValueError(f"{name}: no such recipe or file; {nearest(name, known)}")


def _similar_files(name: str) -> str:
    """Return the end of a message: recipes that the missing file could be, or nearby files."""
    stem = Path(name).with_suffix("").as_posix()
    for recipe in (f"{kind}/{each}" for kind in KINDS for each in recipe_names(kind)):
        if stem.endswith(f"configs/{recipe}"):
            return f". For the recipe that comes with bert_jax, give its name: {recipe}"
    neighbors = [str(neighbor) for neighbor in sorted(Path(name).parent.glob("*.py"))]
    return f"; {nearest(name, neighbors)}" if neighbors else ""


def read_config_file(file: Path, *arguments: str) -> ConfigDict:
    """Run a config file and return what its `get_config(*arguments)` returns.

    The file may import other config files relative to its own directory.

    Raises:
      ValueError: the file raises an error, or its result is not a ConfigDict; the message begins
        with the file and, for an error, the line.
    """
    with _importable(file) as name:
        spec = importlib.util.spec_from_file_location(name, file)
        assert spec is not None and spec.loader is not None, file
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
            config = module.get_config(*arguments)
        except (Exception, SystemExit) as error:
            frames = traceback.extract_tb(error.__traceback__)
            lines = [frame.lineno for frame in frames if frame.filename == spec.origin]
            place = f"{file}:{lines[-1]}" if lines else file
            raise ValueError(f"{place}: {type(error).__name__}: {error}") from error
    if not isinstance(config, ConfigDict):
        raise ValueError(f"{file}: get_config() must return a ConfigDict, got {config!r}")
    return config


_LOADS = itertools.count()


@contextmanager
def _importable(file: Path) -> Iterator[str]:
    """Make the directories above a file packages and yield the name of the file's module.

    Every load has its own packages, which are removed at the end: a file that was changed is read
    again, and threads do not share modules.
    """
    file = file.absolute()
    root = package = f"bert_jax_config_{next(_LOADS)}"
    try:
        for directory in reversed(file.parents):
            if directory.name:
                package = f"{package}.{directory.name.replace('.', '_')}"
            spec = ModuleSpec(package, None, is_package=True)
            spec.submodule_search_locations = [str(directory)]
            sys.modules[package] = importlib.util.module_from_spec(spec)
        yield f"{package}.{file.stem.replace('.', '_')}"
    finally:
        for name in [name for name in sys.modules if name.split(".")[0] == root]:
            del sys.modules[name]
