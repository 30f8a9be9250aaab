"""Make fixtures of the corpus tests available here: corpora, and helpers to inspect batches."""

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
