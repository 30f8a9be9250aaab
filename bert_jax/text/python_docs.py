"""Write the English prose that ships with CPython: its language reference and docstrings."""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import logging
import os
import platform
import re
import sysconfig
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import BuiltinFunctionType, ModuleType

from bert_jax.files import temporary_beside, writing
from bert_jax.local_paths import check_local, make_directory

logger = logging.getLogger(__name__)

# Folders without standard-library prose: installed packages, tests, vendored wheels and build
# files.
_EXCLUDED_FOLDERS = re.compile(
    r"site-packages|dist-packages|tests?|idle_test|lib2to3|_bundled|pydoc_data|lib-dynload"
    r"|__pycache__|config-.*"
)
# C modules have no Python source to parse, but these can be imported without side effects. Modules
# that are missing from a Python build are skipped.
_C_MODULES = (
    *("builtins", "sys", "time", "gc", "math", "cmath", "itertools", "array", "zlib", "binascii"),
    *("unicodedata", "select", "_io", "_codecs", "_collections", "_datetime", "_decimal"),
    *("_functools", "_operator", "_socket", "_sqlite3", "_ssl", "_struct", "_thread"),
)
_HEADING_UNDERLINE = re.compile(r"[*=~^\"#+-]{3,}")
# Shorter documents are left out, since they give a model too little context.
_MIN_DOCUMENT_CHARACTERS = 200
# A class with at least this number of characters is a separate document.
_MIN_CLASS_CHARACTERS = 1000
# The documentation in CPython 3.11 to 3.13 has about 2.3 MB.
_MIN_CORPUS_BYTES = 500_000


@dataclass(frozen=True)
class PythonDocs:
    """The size of the written corpus."""

    num_documents: int
    num_bytes: int  # of text, as UTF-8

    def __str__(self) -> str:
        return (
            f"{self.num_documents} documents, {self.num_bytes / 1e6:.2f} MB of text from "
            f"{platform.python_implementation()} {platform.python_version()}"
        )


def write_python_docs(path: str | Path) -> PythonDocs:
    """Write the prose that ships with the running Python to a JSON Lines file.

    Each line is a document with a "source" and a "text". A document is a topic in the language
    reference, the docstrings of a module, or, for a class with many docstrings, the docstrings of
    that class. The order and the content depend only on the Python version.

    Raises:
      ValueError: the path does not end in .jsonl, or Python was installed without its sources or
        docstrings.
    """
    check_local(path)
    path = Path(path)
    if path.suffix != ".jsonl":
        raise ValueError(f"path={path}: expected a name that ends in .jsonl")
    make_directory(path.parent)
    num_documents = num_bytes = 0
    with writing(path), temporary_beside(path) as temporary:
        with open(temporary, "w", encoding="utf-8", newline="\n") as file:
            for source, text in _documents():
                file.write(json.dumps({"source": source, "text": text}, ensure_ascii=False) + "\n")
                num_documents += 1
                num_bytes += len(text.encode("utf-8"))
        if num_bytes < _MIN_CORPUS_BYTES:
            raise ValueError(
                f"{_library()}: the standard library has only {num_bytes} bytes of documentation "
                "instead of about 2,300,000, because it was installed without source files or "
                "docstrings. Use a full installation of CPython."
            )
        os.replace(temporary, path)
    return PythonDocs(num_documents, num_bytes)


def _documents() -> Iterator[tuple[str, str]]:
    # Inherited methods and C versions of functions repeat docstrings, so skip duplicates.
    seen: set[str] = set()
    for source, docstrings in _sections():
        new = []
        for docstring in docstrings:
            text = _clean(docstring)
            if text and text not in seen:
                seen.add(text)
                new.append(text)
        document = "\n\n".join(new)
        if len(document) >= _MIN_DOCUMENT_CHARACTERS:
            yield source, document


def _clean(docstring: str) -> str:
    """Remove common indentation and the underlines of headings."""
    lines = inspect.cleandoc(docstring).splitlines()
    return "\n".join(
        line.rstrip() for line in lines if not _HEADING_UNDERLINE.fullmatch(line.strip())
    ).strip()


def _sections() -> Iterator[tuple[str, list[str]]]:
    topics = importlib.import_module("pydoc_data.topics").topics
    for name in sorted(topics):
        yield f"topic {name}", [topics[name]]
    library = _library()
    for file in _source_files(library):
        module = ".".join(file.relative_to(library).with_suffix("").parts)
        yield from _module_sections(module.removesuffix(".__init__"), file)
    for name in _C_MODULES:
        try:
            imported = importlib.import_module(name)
        except ImportError:
            continue
        yield from _c_module_sections(name, imported)


def _library() -> Path:
    return Path(sysconfig.get_path("stdlib"))


def _source_files(library: Path) -> list[Path]:
    files = []
    for folder, subfolders, names in os.walk(library):
        subfolders[:] = [name for name in subfolders if not _EXCLUDED_FOLDERS.fullmatch(name)]
        # The build-time settings in _sysconfigdata files differ between machines.
        files += [
            Path(folder, name)
            for name in names
            if name.endswith(".py") and not name.startswith("_sysconfigdata")
        ]
    return sorted(files, key=lambda file: file.relative_to(library).parts)


def _module_sections(module: str, file: Path) -> Iterator[tuple[str, list[str]]]:
    try:
        with warnings.catch_warnings():
            # Ignore warnings about code that we cannot change.
            warnings.simplefilter("ignore", SyntaxWarning)
            # Before version 3.12, Python issues a DeprecationWarning for such code.
            warnings.simplefilter("ignore", DeprecationWarning)
            tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError) as error:
        logger.warning("skipped %s, which cannot be parsed: %s", file, error)
        return
    rest: list[str] = []
    large_classes = []
    for node in [tree, *tree.body]:
        docstrings = _docstrings(node, deep=node is not tree)
        if isinstance(node, ast.ClassDef) and sum(map(len, docstrings)) >= _MIN_CLASS_CHARACTERS:
            large_classes.append((f"class {module}.{node.name}", docstrings))
        else:
            rest += docstrings
    yield f"module {module}", rest
    yield from large_classes


def _docstrings(node: ast.AST, *, deep: bool) -> list[str]:
    docstrings = []
    for child in ast.walk(node) if deep else [node]:
        if isinstance(child, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            docstring = ast.get_docstring(child)
            if docstring:
                docstrings.append(docstring)
    return docstrings


def _c_module_sections(name: str, module: ModuleType) -> Iterator[tuple[str, list[str]]]:
    rest = [_doc(module)]
    for attribute, value in sorted(vars(module).items()):
        if isinstance(value, type) and not issubclass(value, BaseException):
            members = [_doc(member) for _, member in sorted(vars(value).items())]
            yield f"class {name}.{attribute}", [_doc(value), *members]
        elif isinstance(value, BuiltinFunctionType):
            # This excludes hooks that a program has set.
            rest.append(_doc(value))
    yield f"module {name}", rest


def _doc(value: object) -> str:
    docstring = getattr(value, "__doc__", None)
    return docstring if isinstance(docstring, str) else ""
