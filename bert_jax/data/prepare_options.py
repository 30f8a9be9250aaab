"""The options of corpus preparation, checked."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

from bert_jax.data.packing import SPECIAL_TOKENS_PER_PIECE, default_max_pieces
from bert_jax.data.sentences import check_language
from bert_jax.data.sources import SourceOptions

MIN_LENGTH = 8
MAX_LENGTH = 65_535  # a record counts tokens in 16 bits
_LIBRARIES = ("sentencex", "tokenizers", "array_record")  # their versions decide bytes, too


@dataclass(frozen=True)
class PrepareOptions:
    """All that decides the bytes of a corpus besides its inputs and its tokenizer.

    Attributes:
        max_length: positions of a training sequence, special tokens included.
        max_pieces: the most documents in one sequence; None for max_length / 32, at least 1.
        heldout_fraction: share of the documents held out for evaluation, chosen by their hash.
        language: whose rules find the sentences.
        unit_bytes: text in one shard, 256 bytes added for each document. A worker held 170 MiB
            with 32 MiB of English, and 570 MiB with two documents of 16 MiB each that consist of
            one-letter sentences.
    """

    max_length: int = 512
    max_pieces: int | None = None
    heldout_fraction: float = 0.01
    language: str = "en"
    unit_bytes: int = 32 << 20
    sources: SourceOptions = field(default_factory=SourceOptions)

    def __post_init__(self) -> None:
        if not MIN_LENGTH <= self.max_length <= MAX_LENGTH:
            raise ValueError(
                f"max_length is {self.max_length}; expected {MIN_LENGTH} to {MAX_LENGTH}"
            )
        most = self.max_length // (SPECIAL_TOKENS_PER_PIECE + 1)
        if not 1 <= self.piece_limit <= most:
            raise ValueError(
                f"max_pieces is {self.max_pieces}; expected 1 to {most}, since each piece takes "
                f"at least {SPECIAL_TOKENS_PER_PIECE + 1} of {self.max_length} positions"
            )
        if not 0 <= self.heldout_fraction < 1:
            raise ValueError(
                f"heldout_fraction is {self.heldout_fraction}; expected a share of the documents, "
                "at least 0 and below 1"
            )
        if self.unit_bytes < 1024:
            raise ValueError(f"unit_bytes is {self.unit_bytes}; expected at least 1024")
        check_language(self.language)

    @property
    def piece_limit(self) -> int:
        """The most pieces in a record."""
        if self.max_pieces is None:
            return default_max_pieces(self.max_length)
        return self.max_pieces

    def as_json(self) -> dict[str, Any]:
        """The options by name, with the versions of the libraries that decide bytes, too."""
        options = dataclasses.asdict(self)
        sources = options.pop("sources")
        del sources["tfds_data_dir"]  # where, not what
        options["max_pieces"] = self.piece_limit
        return {**options, **sources, "libraries": {name: version(name) for name in _LIBRARIES}}
