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
    """Return the names of all recipes of one kind, such as "tiny" and "small/bert_base"."""
    files = (RECIPES / kind).rglob("*.py")
    return sorted(file.relative_to(RECIPES / kind).with_suffix("").as_posix() for file in files)


def find_config(name: str, kind: Kind | None = None) -> Path:
    """Find a config file by recipe name or by path.

    Args:
      name: the name of a recipe, with or without its kind ("pretrain/tiny" or "tiny"), or the path
        to a file.
      kind: the kind to prefer if both kinds have a recipe with this name.

    Raises:
      ValueError: there is no such recipe or file (the message suggests close matches), or both
        kinds have such a recipe and `kind` is None.
    """
    if Path(name).suffix == ".py":
        if not Path(name).is_file():
            raise ValueError(f"{name}: no such file{_similar_files(name)}")
        return Path(name)
    kinds = [candidate for candidate in KINDS if name in recipe_names(candidate)]
    if len(kinds) > 1 and kind is None:
        choices = " or ".join(f"{candidate}/{name}" for candidate in kinds)
        raise ValueError(f"{name}: both kinds have a recipe with this name. Specify {choices}")
    if kinds:
        return RECIPES / (kind if kind in kinds else kinds[0]) / f"{name}.py"
    full_names = [f"{prefix}/{recipe}" for prefix in KINDS for recipe in recipe_names(prefix)]
    if name in full_names:
        return RECIPES / f"{name}.py"
    if Path(name).is_file():
        raise ValueError(f"{name}: not a Python file (its name must end in .py)")
    has_kind = name.startswith(tuple(f"{prefix}/" for prefix in KINDS))
    bare_names = [recipe for x in KINDS if kind in (x, None) for recipe in recipe_names(x)]
    hint = nearest(name, full_names if has_kind else bare_names)
    raise ValueError(f"{name}: no such recipe or file; {hint}")


def _similar_files(name: str) -> str:
    """Return a hint about a missing file: a recipe with that name, or similar files."""
    stem = Path(name).with_suffix("").as_posix()
    for recipe in (f"{kind}/{recipe}" for kind in KINDS for recipe in recipe_names(kind)):
        if stem.endswith(f"configs/{recipe}"):
            return f". To use the recipe that comes with bert_jax, specify its name: {recipe}"
    neighbors = [str(neighbor) for neighbor in sorted(Path(name).parent.glob("*.py"))]
    return f"; {nearest(name, neighbors)}" if neighbors else ""


def read_config_file(file: Path, *arguments: str) -> ConfigDict:
    """Run a config file and return the result of its `get_config(*arguments)`.

    The file may use relative imports to import other config files.

    Args:
      file: the config file.
      *arguments: the arguments to pass to `get_config`.

    Raises:
      ValueError: running the file raises an error, or the result is not a ConfigDict. The message
        names the file and, for an error, the line.
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
            location = f"{file}:{lines[-1]}" if lines else file
            raise ValueError(f"{location}: {_problem(error)}") from error
    if not isinstance(config, ConfigDict):
        raise ValueError(f"{file}: get_config() must return a ConfigDict, got {config!r}")
    return config


def _problem(error: BaseException) -> str:
    """Describe an error that a config file raised."""
    cause = error.args[0] if error.args else None
    if not (isinstance(error, AttributeError) and isinstance(cause, KeyError)):
        return f"{type(error).__name__}: {error}"
    # A ConfigDict's message names the missing key and may suggest a similar one on a second line.
    key, _, similar = str(cause.args[0]).partition("\n")
    hint = f" ({similar})" if similar else ""
    return (
        f"the config has no key {key}{hint}. To add a section, assign it as a whole, for example "
        "config.reporting = dict(every_steps=10)"
    )


_LOAD_NUMBERS = itertools.count()


@contextmanager
def _importable(file: Path) -> Iterator[str]:
    """Make a file's parent directories importable as packages, and yield its module name.

    Each load creates its own packages and removes them at the end, so that modified files are read
    again and threads do not share modules.
    """
    file = file.absolute()
    root = package = f"bert_jax_config_{next(_LOAD_NUMBERS)}"
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
