"""The checked options of corpus preparation, and the text that it reads and holds out."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bert_jax.corpus.packing import SPECIAL_TOKENS_PER_PIECE, check_language, default_max_pieces
from bert_jax.text.documents import Document, SourceCounts, SourceOptions
from bert_jax.text.files import expand_inputs, is_tfds
from bert_jax.text.sources import read_documents, source_name, total_bytes

MIN_LENGTH = 8
MAX_LENGTH = 65_535  # a record counts tokens in 16 bits
_LIBRARIES = ("sentencex", "tokenizers", "array_record")  # their versions decide bytes, too


InputPaths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]


def input_names(inputs: InputPaths) -> list[str]:
    """Return inputs as a list of strings; a single input needs no list around it."""
    several = [inputs] if isinstance(inputs, str | os.PathLike) else inputs
    return [os.fspath(path) for path in several]


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


# The key of a source in a manifest that says on which side all of it is. Others have none.
SPLIT_KEY = "split"
# Keys of a file's modification time and checksum, which reveal later changes.
MTIME_KEY, CHECKSUM_KEY = "mtime_ns", "sha256"


@dataclass(frozen=True)
class PrepareInputs:
    """Files and TFDS datasets, expanded.

    Attributes:
        split: their documents go to one side or the other by their hash.
        heldout: all of their documents are held out. They are read first, so it is the
            training's copy of a text that is left out.
    """

    split: list[str]
    heldout: list[str]

    @property
    def paths(self) -> list[str]:
        """All of them, in the order they are read."""
        return [*self.heldout, *self.split]

    def described(self, options: SourceOptions) -> list[dict[str, Any]]:
        """The sources in the words of the manifest, in the order they are read."""
        return [
            {
                "path": source_name(path, options),
                "num_bytes": total_bytes([path], options),
                **({} if is_tfds(path) else {MTIME_KEY: os.stat(path).st_mtime_ns}),
                **({SPLIT_KEY: "heldout"} if number < len(self.heldout) else {}),
            }
            for number, path in enumerate(self.paths)
        ]

    def with_checksums(
        self, sources: Sequence[dict[str, Any]], counts: SourceCounts
    ) -> tuple[dict[str, Any], ...]:
        """Return the result of `described` with the checksums of the files that were read."""
        checksums = counts.checksums
        assert checksums is not None, "checksums were not requested"
        return tuple(
            source | ({CHECKSUM_KEY: checksums[path]} if path in checksums else {})
            for path, source in zip(self.paths, sources, strict=True)
        )

    def documents(
        self, options: SourceOptions, counts: SourceCounts
    ) -> tuple[Iterator[Document], Iterator[Document]]:
        """The documents held out and those to split; take all of the former first."""
        heldout = read_documents(self.heldout, options, counts) if self.heldout else iter(())
        return heldout, read_documents(self.split, options, counts)


def settle_inputs(
    inputs: Sequence[str],
    heldout_inputs: Sequence[str],
    output: str | os.PathLike[str],
    options: PrepareOptions,
) -> PrepareInputs:
    """Expand what the user names.

    A file that is held out by its name is not one of those of a directory or a pattern.

    Raises:
        ValueError: an input stands for nothing or holds `output`, a file is named on both sides,
            or a share is to be held out besides.
    """
    _check_apart([*inputs, *heldout_inputs], Path(output))
    if heldout_inputs and options.heldout_fraction:
        raise ValueError(
            f"a share of {options.heldout_fraction} is to be held out (--held-out), and inputs are "
            "(--held-out-input): leave one of the two out"
        )
    split = expand_inputs(inputs)
    heldout = expand_inputs(heldout_inputs) if heldout_inputs else []
    held_out = {_identity(path, options.sources) for path in heldout}
    named = [path for path in inputs if _identity(path, options.sources) in held_out]
    if named:
        raise ValueError(
            f"{named[0]} is named as an input to train on, and is held out: leave it out of one"
        )
    split = [path for path in split if _identity(path, options.sources) not in held_out]
    if not split:
        raise ValueError("all inputs are held out: there is nothing to train on; name others")
    return PrepareInputs(split, heldout)


def _identity(path: str, options: SourceOptions) -> str:
    return source_name(path, options) if is_tfds(path) else os.path.realpath(path)


def _check_apart(inputs: Sequence[str], output: Path) -> None:
    """Refuse an output within an input: the corpus and its tokenizer would be read as text."""
    for name in inputs:
        if not is_tfds(name) and os.path.isdir(name):
            if output.resolve().is_relative_to(Path(name).resolve()):
                raise ValueError(
                    f"the output {output} lies in the input directory {name}, where it would be "
                    "read as text itself; choose an output elsewhere"
                )
