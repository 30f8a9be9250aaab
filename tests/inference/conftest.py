"""Provide small, randomly initialized Hugging Face BERTs, and their work directories."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from ..interop.conftest import make, quiet  # noqa: F401


@dataclass(frozen=True)
class ModelPair:
    """One model, stored as a Hugging Face directory and as a work directory."""

    theirs: Path
    ours: Path


@pytest.fixture(scope="module")
def model_pair(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., ModelPair]:
    """Return a cached function that creates a model, given its head and changes to the config."""
    from bert_jax.cli.main import main

    created: dict[str, ModelPair] = {}

    def create(head: str, **changes: object) -> ModelPair:
        key = f"{head} {sorted(changes.items())}"
        if key not in created:
            directory = tmp_path_factory.mktemp(head)
            make(directory / "theirs", head, **changes)
            source, output = str(directory / "theirs"), str(directory / "ours")
            assert main(["import", source, "--output", output]) == 0
            created[key] = ModelPair(directory / "theirs", directory / "ours")
        return created[key]

    return create
