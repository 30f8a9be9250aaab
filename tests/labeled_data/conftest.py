"""Fixtures shared with the tests of `corpus`."""

from ..corpus.conftest import tokenizer, words  # noqa: F401
