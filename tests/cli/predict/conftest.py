"""Provide fixtures for testing `predict`: models, and functions that run the command."""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path

import pytest

from bert_jax.cli import predict
from bert_jax.cli.main import main

from ...interop.conftest import make, quiet  # noqa: F401


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> dict[str, Path]:
    """Return a dict that maps each head to the work directory of a model with that head."""
    work_dirs = {}
    for head in ("pretraining", "classification", "tagging", "span", "multiple_choice"):
        directory = tmp_path_factory.mktemp(head)
        make(directory / "theirs", head)
        work_dirs[head] = directory / "ours"
        assert main(["import", str(directory / "theirs"), "--output", str(work_dirs[head])]) == 0
    return work_dirs


@pytest.fixture(autouse=True)
def no_compilation_cache(monkeypatch) -> None:
    monkeypatch.setattr(predict, "enable_compilation_cache", lambda: None)


@pytest.fixture
def standard_input(monkeypatch, tmp_path_factory):
    """Return a function that replaces standard input with the given text."""

    def replace(data: bytes) -> None:
        path = tmp_path_factory.mktemp("input") / "standard"
        path.write_bytes(data)
        monkeypatch.setattr(sys, "stdin", opened.enter_context(open(path)))

    with contextlib.ExitStack() as opened:
        yield replace


@pytest.fixture
def predicted(bert_jax_here, standard_input):
    """Return a function that runs `predict`, expects it to succeed, and returns the results."""

    def run(*words, text=None):
        if text is not None:
            standard_input(text.encode("utf-8"))
        finished = bert_jax_here("predict", *words)
        assert finished.code == 0, finished.errors
        return [json.loads(line) for line in finished.output.splitlines()]

    return run


@pytest.fixture
def refused(bert_jax_here, standard_input):
    """Return a function that runs `predict`, expects it to fail, and returns the error message."""

    def run(*words, data=b""):
        if data is not None:
            standard_input(data)
        finished = bert_jax_here("predict", *words)
        assert finished.code == 2, finished.output
        assert "Traceback" not in finished.errors
        return finished.errors

    return run


def objects(*records: dict) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)
