"""The rooms of the package and who may know whom, read from the source and nothing else."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
PACKAGE = REPOSITORY / "bert_jax"
SOURCES = sorted(PACKAGE.rglob("*.py"))

ROOMS = {
    "models",
    "tasks",
    "data",
    "training",
    "interop",
    "analysis",
    "inference",
    "finetuning",
    "cli",
}
MAY_IMPORT = {
    "models": set(),
    "tasks": {"models"},
    "data": set(),
    "training": {"models", "tasks"},
    "interop": {"models", "data"},
    "analysis": {"models", "data"},
    "inference": {"models", "data", "tasks", "training"},
    "finetuning": {"models", "data", "tasks", "training"},
    "cli": ROOMS,
}
# `interop` and `analysis` need the words behind the ids, and nothing else of `data`.
TOKENIZER_ONLY = {"interop", "analysis"}
COMPUTING = {"jax", "jaxlib", "flax", "optax", "orbax", "chex"}
# Orbax will change its API before 1.0, so few files may depend on it.
USE_ORBAX = {"bert_jax/training/checkpoint.py", "bert_jax/training/checkpoint_parameters.py"}
MAX_LINES = 300


def room_of(path: Path) -> str | None:
    parts = path.relative_to(PACKAGE).parts
    return parts[0] if len(parts) > 1 else None


def imports_of(source: str, package: str = "") -> Iterator[str]:
    """Dotted names a source imports anywhere, also inside functions; `package` resolves dots."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package.split(".")[: 1 - node.level or None] if node.level else []
            stem = ".".join([*base, *([node.module] if node.module else [])])
            yield from (f"{stem}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            if node.args and isinstance(node.args[0], ast.Constant):
                yield node.args[0].value


def imports(path: Path) -> Iterator[str]:
    package = ".".join(path.relative_to(REPOSITORY).parts[:-1])
    return imports_of(path.read_text(encoding="utf-8"), package)


def name_of(path: Path) -> str:
    return path.relative_to(REPOSITORY).as_posix()


def test_every_kind_of_import_is_seen() -> None:
    source = """
import jax.numpy as jnp, os
from bert_jax.models import config
from . import sibling
from ..data.corpus import Corpus
def late():
    import flax
    importlib.import_module("optax")
"""
    assert set(imports_of(source, "bert_jax.tasks")) == {
        "jax.numpy",
        "os",
        "bert_jax.models.config",
        "bert_jax.tasks.sibling",
        "bert_jax.data.corpus.Corpus",
        "flax",
        "optax",
    }


def test_every_room_is_known() -> None:
    rooms = {room_of(path) for path in SOURCES} - {None}
    assert rooms <= ROOMS
    assert {"models", "tasks", "data", "training", "cli"} <= rooms


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_rooms_know_only_the_rooms_below(path: Path) -> None:
    room = room_of(path)
    allowed = MAY_IMPORT[room] | {room} if room else set()
    for name in imports(path):
        parts = name.split(".")
        if parts[0] != "bert_jax" or len(parts) < 2 or parts[1] not in ROOMS:
            continue
        assert parts[1] in allowed, f"{name_of(path)} imports {name}"
        if room in TOKENIZER_ONLY and parts[1] == "data":
            assert parts[2] == "tokenizer", f"{name_of(path)} imports {name}"


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_libraries_stay_behind_their_doors(path: Path) -> None:
    room, libraries = room_of(path), {name.split(".")[0] for name in imports(path)}
    if room in (None, "data"):
        assert not libraries & COMPUTING
    if room != "cli":
        assert "ml_collections" not in libraries
    if name_of(path) not in USE_ORBAX:
        assert "orbax" not in libraries


def test_the_command_line_starts_without_computing() -> None:
    for name in ("cli/main", "cli/__init__", "suggestions", "__init__"):
        libraries = {library.split(".")[0] for library in imports(PACKAGE / f"{name}.py")}
        assert not libraries & (COMPUTING | {"numpy", "ml_collections", "absl"})


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_files_are_short_and_say_what_they_are(path: Path) -> None:
    source = path.read_text(encoding="utf-8")
    assert source.count("\n") < MAX_LINES
    assert ast.get_docstring(ast.parse(source)), "a module begins by saying what it is for"
    assert path.stem not in {"utils", "util", "helpers", "misc", "common"}


# Has its own error class for unreadable files.
READS_ITS_OWN_JSON = {"bert_jax/training/checkpoint_checksums.py"}


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_json_files_are_read_by_json_files(path: Path) -> None:
    if name_of(path) in READS_ITS_OWN_JSON:
        return
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("json.load", "json.loads"):
            text = ast.unparse(node)
            assert "read" not in text and text.startswith("json.loads"), (
                f"{name_of(path)}: {text}: use bert_jax.json_files, which names the file"
            )
