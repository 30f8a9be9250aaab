"""Share the fixtures that the `corpus` tests define."""

from ..corpus.conftest import tokenizer, words  # noqa: F401
