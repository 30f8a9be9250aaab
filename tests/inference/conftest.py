"""Provide small random Hugging Face BERTs and the work directories imported from them."""

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
    """Return a function that creates a model for a head and config changes, caching the result."""
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
