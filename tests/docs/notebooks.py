"""Execute the notebooks of the course, for the tests or to store their outputs.

python -m tests.docs.notebooks            # execute all notebooks and store their outputs
python -m tests.docs.notebooks 1 4        # only those whose names begin with 1 or 4
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

from ..commands import REPOSITORY

COURSE = REPOSITORY / "docs/course"
NOTEBOOKS = sorted(COURSE.glob("*.ipynb"))
# The outputs of cells with this tag are the same on every machine.
EXACT = "exact"
# The number of seconds after which a cell is considered to be stuck.
TIMEOUT = 600
# The notebooks read these files and directories in a checkout.
LINKED = ("experiments", "bert_jax", "docs", "README.md")


def execute(path: Path, directory: Path, environment: Mapping[str, str]) -> Any:
    """Return the notebook at `path`, executed in a copy of the course.

    Args:
      path: the notebook, which is not changed.
      directory: an empty directory for the copy of the checkout.
      environment: the environment variables of the kernel.
    """
    course = directory / "checkout" / COURSE.relative_to(REPOSITORY)
    ignored = shutil.ignore_patterns("work", "__pycache__", ".ipynb_checkpoints")
    shutil.copytree(COURSE, course, ignore=ignored)
    link_checkout(directory / "checkout")
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook,
        timeout=TIMEOUT,
        kernel_name="python3",
        record_timing=False,
        resources={"metadata": {"path": str(course)}},
    )
    programs = Path(sys.executable).parent
    client.execute(
        env={
            # Pytest's variables are meant only for the process that runs the tests.
            **{key: environment[key] for key in environment if not key.startswith("PYTEST_")},
            "PATH": f"{programs}:{environment['PATH']}",
            "PYTHONPATH": str(REPOSITORY),
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYDEVD_DISABLE_FILE_VALIDATION": "1",
            "HF_HUB_OFFLINE": "1",
        }
    )
    for cell in code_cells(notebook):
        cell.outputs = merge_streams(cell.outputs)
    return notebook


def merge_streams(outputs: list[Any]) -> list[Any]:
    """Join consecutive outputs to the same stream, which arrive in arbitrary chunks."""
    merged: list[Any] = []
    for output in outputs:
        last = merged[-1] if merged else {}
        if output.output_type == "stream" and last.get("name") == output.name:
            last.text += output.text
        else:
            merged.append(output)
    return merged


def link_checkout(checkout: Path) -> None:
    """Link the notebooks' inputs into a directory that already contains `docs/course`."""
    for name in LINKED:
        if name == "docs":
            for page in REPOSITORY.glob("docs/*.md"):
                (checkout / "docs" / page.name).symlink_to(page)
        else:
            (checkout / name).symlink_to(REPOSITORY / name)


def code_cells(notebook: Any) -> list[Any]:
    """Return the code cells of a notebook."""
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def is_exact(cell: Any) -> bool:
    """Return whether a cell's outputs are the same on every machine."""
    return EXACT in cell.metadata.get("tags", ())


def texts(cell: Any) -> str:
    """Return a cell's text outputs."""
    return "\n".join(_texts(cell))


def _texts(cell: Any) -> Iterator[str]:
    for output in cell.outputs:
        if output.output_type == "stream":
            yield output.text
        elif "text/plain" in output.get("data", {}):
            yield output.data["text/plain"]


def normalize(notebook: Any) -> None:
    """Remove a notebook's timings, versions and counters, which differ between executions."""
    notebook.metadata = nbformat.from_dict(
        {
            "kernelspec": {
                "display_name": "Python 3 (ipykernel)",
                "language": "python",
                "name": "python3",
            },
            "language_info": {"name": "python"},
        }
    )
    for cell in notebook.cells:
        cell.metadata = {key: cell.metadata[key] for key in cell.metadata if key == "tags"}
    for cell in code_cells(notebook):
        for output in cell.outputs:
            if "data" in output and "text/html" in output.data:
                # Editors would remove trailing spaces.
                output.data["text/html"] = re.sub(r"[ \t]+\n", "\n", output.data["text/html"])


def main(prefixes: list[str]) -> None:
    """Execute the notebooks whose names begin with one of `prefixes`, and store their outputs."""
    for path in NOTEBOOKS:
        if prefixes and not path.name.startswith(tuple(prefixes)):
            continue
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as directory:
            notebook = execute(path, Path(directory), {"JAX_PLATFORMS": "cpu", **os.environ})
        normalize(notebook)
        nbformat.write(notebook, path)
        size = path.stat().st_size
        print(f"{path.name}: {time.monotonic() - began:.0f} s, {size:,} bytes", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
