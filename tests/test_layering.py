"""Check in the source code which packages and libraries each package in bert_jax imports."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
PACKAGE = REPOSITORY / "bert_jax"
SOURCES = sorted(PACKAGE.rglob("*.py"))

# This file exports the public names from all packages.
PUBLIC = PACKAGE / "__init__.py"
# The packages that each package may import. In addition, every package may import top-level
# modules, which must not import any package.
MAY_IMPORT = {
    "storage": set(),
    "tokenizers": {"storage"},
    "text": {"storage"},
    "filtering": {"storage", "text"},
    "corpus": {"filtering", "storage", "text", "tokenizers"},
    "pipeline": {"corpus", "tokenizers"},
    "labeled_data": {"corpus", "storage", "text", "tokenizers"},
    "models": set(),
    "goodput": set(),
    "analysis": {"models"},
    "tasks": {"models"},
    "training": {"analysis", "goodput", "models", "storage", "tasks"},
    "tracking": {"goodput", "training"},
    "runs": {"corpus", "goodput", "models", "storage", "tasks", "tokenizers", "training"},
    "inference": {"labeled_data", "models", "runs", "storage", "tasks", "text", "tokenizers"},
    "interpretability": {
        *("finetuning", "inference", "labeled_data", "models", "runs", "storage", "tasks"),
        *("tokenizers", "training"),
    },
    "language_scores": {
        *("corpus", "inference", "labeled_data", "models", "pipeline", "runs", "storage", "tasks"),
        *("text", "tokenizers", "training"),
    },
    "pretraining": {
        *("analysis", "corpus", "goodput", "language_scores", "models", "pipeline", "runs"),
        *("storage", "tasks", "tokenizers", "tracking", "training"),
    },
    "finetuning": {
        *("analysis", "goodput", "inference", "labeled_data", "models", "pipeline", "runs"),
        *("storage", "tasks", "text", "tokenizers", "tracking", "training"),
    },
    "recipes": {
        *("analysis", "corpus", "finetuning", "models", "pipeline", "pretraining", "runs"),
        *("storage", "tasks"),
    },
    "interop": {"finetuning", "models", "runs", "storage", "tokenizers", "training"},
    "downstream": {
        *("finetuning", "models", "pretraining", "recipes", "runs", "storage", "tokenizers"),
        "training",
    },
}
MAY_IMPORT["cli"] = set(MAY_IMPORT) - {"goodput", "storage", "tasks", "tracking"}
# Packages used by data workers and by commands that must start quickly. The key None covers
# top-level modules.
WITHOUT_JAX = {
    *(None, "storage", "tokenizers", "text", "filtering", "corpus", "pipeline", "labeled_data"),
}
COMPUTING = {"jax", "jaxlib", "flax", "optax", "orbax", "chex"}
# Orbax will change its API before version 1.0, so only a few files may depend on it.
USE_ORBAX = {"bert_jax/training/checkpoint.py", "bert_jax/training/checkpoint_parameters.py"}


parsed = cache(ast.parse)  # Most tests examine every source file.


def package_of(path: Path) -> str | None:
    parts = path.relative_to(PACKAGE).parts
    return parts[0] if len(parts) > 1 else None


def is_late(node: ast.AST) -> bool:
    """Return whether the imports inside `node` are skipped when the module is imported."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        return True
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def imports_of(source: str, package: str = "", *, late: bool = True) -> Iterator[str]:
    """Yield the dotted names that a module imports.

    Args:
      source: the module's source code.
      package: the module's package, which is needed to resolve relative imports.
      late: whether to include imports inside functions and under TYPE_CHECKING.
    """
    nodes: list[ast.AST] = [parsed(source)]
    while nodes:
        node = nodes.pop()
        nodes += [child for child in ast.iter_child_nodes(node) if late or not is_late(child)]
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package.split(".")[: 1 - node.level or None] if node.level else []
            stem = ".".join([*base, *([node.module] if node.module else [])])
            yield from (f"{stem}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            if node.args and isinstance(node.args[0], ast.Constant):
                yield node.args[0].value


def imports(path: Path, *, late: bool = True) -> Iterator[str]:
    package = ".".join(path.relative_to(REPOSITORY).parts[:-1])
    return imports_of(path.read_text(encoding="utf-8"), package, late=late)


def name_of(path: Path) -> str:
    return path.relative_to(REPOSITORY).as_posix()


def module_of(path: Path) -> str:
    name = ".".join(path.relative_to(REPOSITORY).with_suffix("").parts)
    return name.removesuffix(".__init__")


MODULES = {module_of(path): path for path in SOURCES}


def modules_imported_by(path: Path, *, late: bool = True) -> set[str]:
    """Return the bert_jax modules that a file imports, not counting their parent packages."""
    names = imports(path, late=late)
    modules = {name if name in MODULES else name.rpartition(".")[0] for name in names}
    return modules & MODULES.keys() - {module_of(path)}


def test_all_kinds_of_imports_are_detected() -> None:
    source = """
import jax.numpy as jnp, os
from bert_jax.models import config
from . import sibling
from ..corpus.records import Piece
if TYPE_CHECKING:
    import chex
def late():
    import flax
    importlib.import_module("optax")
"""
    eager = {
        "jax.numpy",
        "os",
        "bert_jax.models.config",
        "bert_jax.tasks.sibling",
        "bert_jax.corpus.records.Piece",
    }
    assert set(imports_of(source, "bert_jax.tasks", late=False)) == eager
    assert set(imports_of(source, "bert_jax.tasks")) == eager | {"chex", "flax", "optax"}


def test_there_are_no_import_cycles() -> None:
    """Count all imports, even those inside functions and those for type checkers."""
    graph = {module_of(path): modules_imported_by(path) for path in SOURCES}
    TopologicalSorter(graph).prepare()  # This raises a CycleError that contains the cycle.


def test_packages_import_only_permitted_packages() -> None:
    # This raises a CycleError if the rules contain a cycle.
    TopologicalSorter(MAY_IMPORT).prepare()
    assert {package_of(path) for path in SOURCES} == {None, *MAY_IMPORT}
    wrong = []
    for path in SOURCES:
        if path == PUBLIC:
            continue
        package = package_of(path)
        allowed = {package, *MAY_IMPORT.get(package, ())}
        for name in modules_imported_by(path):
            if name != "bert_jax" and package_of(MODULES[name]) not in {None, *allowed}:
                wrong.append(f"{name_of(path)} imports {name}")
    assert not wrong


def test_all_permitted_packages_are_imported() -> None:
    for package, allowed in MAY_IMPORT.items():
        paths = [path for path in SOURCES if package_of(path) == package]
        used = {package_of(MODULES[name]) for path in paths for name in modules_imported_by(path)}
        assert allowed - {"cli"} <= used, f"{package} does not import {allowed - used}"


def test_private_names_are_not_imported_by_other_modules() -> None:
    wrong = [
        f"{name_of(path)} imports {name}"
        for path in SOURCES
        for name in imports(path)
        if name.startswith("bert_jax.") and re.fullmatch(r"_[^_].*", name.rpartition(".")[2])
    ]
    assert not wrong


def test_libraries_are_imported_only_by_permitted_packages() -> None:
    wrong = []
    for path in SOURCES:
        package, libraries = package_of(path), {name.split(".")[0] for name in imports(path)}
        forbidden = COMPUTING if package in WITHOUT_JAX else set()
        if package != "recipes":
            forbidden = forbidden | {"ml_collections"}
        if name_of(path) not in USE_ORBAX:
            forbidden = forbidden | {"orbax"}
        wrong += [f"{name_of(path)} imports {name}" for name in libraries & forbidden]
    assert not wrong


def test_the_command_line_starts_without_heavy_libraries() -> None:
    """Follow imports from module to module, the way Python does."""
    queue, imported = ["bert_jax", "bert_jax.cli.main"], set()
    libraries = set()
    while queue:
        module = queue.pop()
        if module not in imported:
            imported.add(module)
            queue += modules_imported_by(MODULES[module], late=False)
            libraries |= {name.split(".")[0] for name in imports(MODULES[module], late=False)}
    assert {"bert_jax.argument_parser", "bert_jax.local_paths"} <= imported
    assert not libraries & (COMPUTING | {"numpy", "ml_collections", "absl"})


def test_modules_have_docstrings_and_specific_names() -> None:
    for path in SOURCES:
        assert ast.get_docstring(parsed(path.read_text(encoding="utf-8"))), name_of(path)
        assert path.stem not in {"utils", "util", "helpers", "misc", "common"}, name_of(path)


# This module raises an error class of its own if a file cannot be read.
READS_ITS_OWN_JSON = {"bert_jax/training/checkpoint_checksums.py"}


def test_json_files_are_read_with_the_json_files_module() -> None:
    wrong = []
    for path in SOURCES:
        if name_of(path) in READS_ITS_OWN_JSON:
            continue
        for node in ast.walk(parsed(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("json.load", "json.loads"):
                text = ast.unparse(node)
                if "read" in text or not text.startswith("json.loads"):
                    wrong.append(f"{name_of(path)}: {text}")
    assert not wrong, "use bert_jax.json_files, which names the file"


CLI = [path for path in SOURCES if package_of(path) == "cli"]
MAX_CLI_LINES, MAX_CLI_FILE_LINES, MAX_CLI_FUNCTION_LINES = 2000, 250, 40


def test_the_command_line_only_parses_and_prints() -> None:
    """Check that there are no classes and no long functions, which belong in the library."""
    wrong, total = [], 0
    for path in CLI:
        source = path.read_text(encoding="utf-8")
        num_lines = len(source.splitlines())
        total += num_lines
        if num_lines > MAX_CLI_FILE_LINES:
            wrong.append(f"{name_of(path)}: {num_lines} lines")
        for node in ast.walk(parsed(source)):
            if isinstance(node, ast.ClassDef):
                wrong.append(f"{name_of(path)}: class {node.name}")
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert node.end_lineno is not None
                length = node.end_lineno - node.lineno + 1
                if length > MAX_CLI_FUNCTION_LINES:
                    wrong.append(f"{name_of(path)}: {node.name} has {length} lines")
    assert not wrong
    assert total <= MAX_CLI_LINES


def printing(source: str) -> Iterator[str]:
    """Yield expressions that print, or that use a standard stream other than to flush it."""
    tree = parsed(source)
    flushed = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr == "flush"
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "print":
            if not any(keyword.arg == "file" for keyword in node.keywords):
                yield ast.unparse(node)
        elif isinstance(node, ast.Attribute) and id(node) not in flushed:
            if re.fullmatch(r"sys\.(__)?std(out|err)(__)?", ast.unparse(node)):
                yield ast.unparse(node)
    yield from (name for name in imports_of(source) if name in ("sys.stdout", "sys.stderr"))


def test_every_kind_of_printing_is_detected() -> None:
    source = """
import sys
from sys import stderr
print("a")
print("b", file=log)
print("c", file=sys.stderr)
sys.stdout.write("d")
sys.stdout.flush()
"""
    assert sorted(printing(source)) == ["print('a')", "sys.stderr", "sys.stderr", "sys.stdout"]


def test_only_the_command_line_prints() -> None:
    """Check that the library writes only to streams that its callers pass to it."""
    wrong = [
        f"{name_of(path)}: {text}"
        for path in SOURCES
        if path not in CLI
        for text in printing(path.read_text(encoding="utf-8"))
    ]
    assert not wrong
