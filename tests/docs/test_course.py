"""Execute the notebooks of the course, and check the outputs that are stored in them."""

import os
import re
from pathlib import Path

import nbformat
import pytest

from .notebooks import COURSE, NOTEBOOKS, code_cells, execute, is_exact, texts

MAX_BYTES = 300_000
# Paths on the machine where a notebook was executed, and memory addresses of objects.
LOCAL = re.compile(r"/(?:root|home|Users|tmp|var|work|opt|mnt)/|\b0x[0-9a-f]{6,}\b")

by_name = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def test_there_are_eight_notebooks_and_the_index_names_them_all() -> None:
    assert [path.name[0] for path in NOTEBOOKS] == list("12345678")
    index = (COURSE / "index.md").read_text(encoding="utf-8")
    assert all(path.name in index for path in NOTEBOOKS)


@by_name
def test_outputs_are_stored_in_order(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert 10 <= len(notebook.cells) <= 25
    cells = code_cells(notebook)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert path.stat().st_size <= MAX_BYTES
    outputs = [output for cell in cells for output in cell.outputs]
    assert all(output.output_type != "error" for output in outputs)
    assert all(output.get("name") != "stderr" for output in outputs)
    shown = {kind for output in outputs for kind in output.get("data", {})}
    assert shown & {"image/png", "text/html"}, "every notebook has a picture or a table"
    assert any(is_exact(cell) and texts(cell) for cell in cells)


@by_name
def test_outputs_do_not_depend_on_the_machine(path: Path) -> None:
    for cell in code_cells(nbformat.read(path, as_version=4)):
        for output in cell.outputs:
            data = {"text/plain": output.get("text", ""), **output.get("data", {})}
            for kind in ("text/plain", "text/html"):
                found = LOCAL.search(data.get(kind, ""))
                assert not found, f"{cell.id} shows {found[0] if found else ''}"


@by_name
def test_exercises_close_a_notebook(path: Path) -> None:
    last = nbformat.read(path, as_version=4).cells[-1]
    assert last.cell_type == "markdown"
    assert last.source.startswith("## Exercises")
    assert len(re.findall(r"^\d\. ", last.source, re.MULTILINE)) == 3
    assert last.source.count("<summary>Hint") == 3


@by_name
def test_linked_files_exist(path: Path) -> None:
    for cell in nbformat.read(path, as_version=4).cells:
        if cell.cell_type == "markdown":
            for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", cell.source):
                assert (COURSE / link).exists(), f"{cell.id} links to {link}"


@pytest.mark.slow
@by_name
def test_a_notebook_runs_and_reproduces_its_exact_outputs(path: Path, tmp_path: Path) -> None:
    stored = nbformat.read(path, as_version=4)
    # Compile programs with the same flags as when a reader runs the notebook.
    environment = {key: os.environ[key] for key in os.environ if key != "XLA_FLAGS"}
    # The notebooks import small models into this cache.
    environment["XDG_CACHE_HOME"] = str(tmp_path / "cache")
    executed = execute(path, tmp_path, environment)
    for before, after in zip(code_cells(stored), code_cells(executed), strict=True):
        if is_exact(before):
            assert texts(after) == texts(before), f"{path.name}, {before.id}"
