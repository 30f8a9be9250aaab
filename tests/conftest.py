"""Fixtures every room's tests may use."""

import os
from pathlib import Path

import pytest

if "JAX_COMPILATION_CACHE_DIR" in os.environ:
    # JAX writes cache entries in place, so processes that run side by side may not share them.
    worker = os.environ.get("PYTEST_XDIST_WORKER", "main")
    os.environ["JAX_COMPILATION_CACHE_DIR"] += f"/{worker}"

REPOSITORY = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Directory of public data sets beside the checkout; a test that asks skips without it."""
    root = Path(os.environ.get("BERT_JAX_SHARED", REPOSITORY.parent / "shared"))
    if not (root / "data").is_dir():
        pytest.skip(f"no data sets at {root} (set BERT_JAX_SHARED to the folder that holds data/)")
    return root / "data"
