"""Reuse fixtures from the corpus tests: a tokenizer and a small corpus."""

from ..corpus.conftest import (  # noqa: F401
    corpus,
    finished,
    prepare_options,
    tokenizer,
    words,
    write_json_lines,
)
