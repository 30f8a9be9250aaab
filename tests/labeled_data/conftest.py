"""The tokenizer that the tests of `corpus` use."""

from ..corpus.conftest import tokenizer, words  # noqa: F401
