"""Small random BERTs of Hugging Face's, and the work directories made of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from ..interop.conftest import make, quiet  # noqa: F401


@dataclass(frozen=True)
class Both:
    """The same model as a directory of Hugging Face's and as a work directory."""

    theirs: Path
    ours: Path


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Both]:
    """A function that makes a model of a head, with other settings of its config; each once."""
    from bert_jax.cli.main import main

    made: dict[str, Both] = {}

    def of(head: str, **changes: object) -> Both:
        key = f"{head} {sorted(changes.items())}"
        if key not in made:
            directory = tmp_path_factory.mktemp(head)
            make(directory / "theirs", head, **changes)
            source, output = str(directory / "theirs"), str(directory / "ours")
            assert main(["import", source, "--output", output]) == 0
            made[key] = Both(directory / "theirs", directory / "ours")
        return made[key]

    return of
