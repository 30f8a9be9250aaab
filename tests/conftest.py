"""Fixtures every room's tests may use."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

# Read by JAX when it is first imported, which only the tests that compute do: eight devices of
# the CPU stand for a mesh, programs are compiled in half the time (and run slower, which tests of
# this size never notice), and every program that took time to compile is kept.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.1")
if "device_count" not in os.environ.get("XLA_FLAGS", ""):
    flags = os.environ.get("XLA_FLAGS", "")
    flags += " --xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0"
    os.environ["XLA_FLAGS"] = flags.strip()
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


@dataclass(frozen=True)
class Document:
    """A sentence pair as it stands in a row; offsets count from its `[CLS]`."""

    token_ids: np.ndarray
    segment_ids: np.ndarray
    masked_offsets: np.ndarray
    masked_labels: np.ndarray
    next_sentence_label: int


DrawDocument = Callable[..., Document]
LayOut = Callable[..., dict[str, np.ndarray]]


@pytest.fixture(scope="session")
def draw_document() -> DrawDocument:
    """A function that makes a random document of `length` tokens."""

    def draw(rng: np.random.Generator, length: int, vocab_size: int, masked: int = 2) -> Document:
        return Document(
            token_ids=rng.integers(1, vocab_size, length),
            segment_ids=(np.arange(length) >= rng.integers(1, length)).astype(np.int64),
            masked_offsets=np.sort(rng.choice(np.arange(1, length), masked, replace=False)),
            masked_labels=rng.integers(1, vocab_size, masked),
            next_sentence_label=int(rng.integers(2)),
        )

    return draw


@pytest.fixture(scope="session")
def lay_out() -> LayOut:
    """A function that puts documents into rows: the batch of a pretraining task."""

    def lay(
        rows: Sequence[Sequence[Document]], *, length: int, predictions: int, pieces: int
    ) -> dict[str, np.ndarray]:
        count = len(rows)
        batch = {
            name: np.zeros((count, length), np.int32)
            for name in ("token_ids", "segment_ids", "position_ids", "document_ids")
        }
        for name in ("masked_positions", "masked_labels", "masked_weights"):
            dtype = np.float32 if name.endswith("weights") else np.int32
            batch[name] = np.zeros((count, predictions), dtype)
        for name in ("cls_positions", "next_sentence_labels", "next_sentence_weights"):
            dtype = np.float32 if name.endswith("weights") else np.int32
            batch[name] = np.zeros((count, pieces), dtype)
        for row, documents in enumerate(rows):
            start = predicted = 0
            for piece, document in enumerate(documents):
                place = slice(start, start + len(document.token_ids))
                batch["token_ids"][row, place] = document.token_ids
                batch["segment_ids"][row, place] = document.segment_ids
                batch["position_ids"][row, place] = np.arange(len(document.token_ids))
                batch["document_ids"][row, place] = piece + 1
                masked = slice(predicted, predicted + len(document.masked_offsets))
                batch["masked_positions"][row, masked] = start + document.masked_offsets
                batch["masked_labels"][row, masked] = document.masked_labels
                batch["masked_weights"][row, masked] = 1
                batch["cls_positions"][row, piece] = start
                batch["next_sentence_labels"][row, piece] = document.next_sentence_label
                batch["next_sentence_weights"][row, piece] = 1
                start, predicted = place.stop, masked.stop
        return batch

    return lay
