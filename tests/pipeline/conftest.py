"""The corpora that the tests of `corpus` use, and what the batches made from them contain."""

from ..corpus.conftest import (  # noqa: F401
    LENGTH,
    MAX_PIECES,
    SPAN,
    corpus,
    finished,
    make_source,
    named_corpus,
    pieces_of,
    prepare_options,
    tokenizer,
    unmasked,
    words,
    write_json_lines,
)
