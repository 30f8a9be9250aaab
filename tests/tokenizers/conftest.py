"""The tokenizer and the small corpus that the tests of `corpus` use."""

from ..corpus.conftest import (  # noqa: F401
    corpus,
    finished,
    prepare_options,
    tokenizer,
    words,
    write_json_lines,
)
