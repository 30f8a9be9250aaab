"""Make the fixtures of the `corpus` tests available here."""

from ..corpus.conftest import tokenizer, words  # noqa: F401
