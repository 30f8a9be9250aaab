"""Reuse the fixtures that are defined for the `corpus` tests."""

from ..corpus.conftest import tokenizer, words  # noqa: F401
