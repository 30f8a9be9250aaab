"""Provide randomly initialized Hugging Face models of every family, and their work directories."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from bert_jax.cli.main import main

from ..interop.conftest import make, quiet  # noqa: F401
from ..interop.families import make as make_family

ImportModel = Callable[[str, str], tuple[Path, Path]]


@pytest.fixture(scope="session")
def import_pair(tmp_path_factory: pytest.TempPathFactory) -> ImportModel:
    """Return a function that maps (family, head) to (Hugging Face directory, work directory)."""
    created: dict[tuple[str, str], tuple[Path, Path]] = {}

    def create(family: str, head: str) -> tuple[Path, Path]:
        if (family, head) not in created:
            directory = tmp_path_factory.mktemp(f"{family}-{head}")
            source, output = directory / "theirs", directory / "ours"
            if family == "Bert":
                make(source, head)
            else:
                make_family(source, family, head)
            assert main(["import", str(source), "--output", str(output)]) == 0
            created[family, head] = source, output
        return created[family, head]

    return create
