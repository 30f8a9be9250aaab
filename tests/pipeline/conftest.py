"""Define fixtures for the corpus tests: corpora, and helpers that inspect batches."""

from ..corpus.conftest import (  # noqa: F401
    LENGTH,
    MAX_FRAGMENTS,
    SPAN,
    corpus,
    finished,
    fragments_of,
    make_source,
    named_corpus,
    prepare_options,
    tokenizer,
    unmasked,
    words,
    write_json_lines,
)
