"""Define and check the options and inputs of corpus preparation."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

from bert_jax.corpus.packing import (
    SPECIAL_TOKENS_PER_FRAGMENT,
    check_language,
    default_max_fragments,
)
from bert_jax.field_options import option
from bert_jax.filtering.options import FilterOptions
from bert_jax.storage.locations import modified_ns
from bert_jax.storage.urls import Location, ObjectUrl, is_inside, parse_location
from bert_jax.text.documents import Document, SourceCounts, SourceOptions
from bert_jax.text.files import expand_inputs, identity, is_file_name
from bert_jax.text.sources import read_documents, source_name, total_bytes

MIN_LENGTH = 8
MAX_LENGTH = 65_535  # A record stores token counts in 16 bits.
# The versions of these libraries affect the bytes of a corpus.
_LIBRARIES = ("sentencex", "tokenizers", "array_record")


InputPaths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]


def input_names(inputs: InputPaths) -> list[str]:
    """Convert a path or an iterable of paths to a list of strings."""
    paths = [inputs] if isinstance(inputs, str | os.PathLike) else inputs
    return [os.fspath(path) for path in paths]


@dataclass(frozen=True)
class PrepareOptions:
    """The options that, along with the inputs and the tokenizer, determine the bytes of a corpus.

    Attributes:
      max_length: the length of a training sequence, including special tokens.
      max_documents_per_record: the maximum number of documents in one sequence. If None, it is
        max_length / 32, but at least 1.
      heldout_fraction: the fraction of documents held out for evaluation, selected by hash.
      language: the language whose sentence rules are used.
      unit_bytes: the amount of text in one shard, counting 256 extra bytes for every document. The
        size affects the memory of a worker: 32 MiB of English text needed 170 MiB, and two 16 MiB
        documents of one-letter sentences needed 570 MiB.
      sources: the options for reading the inputs.
      filters: which documents to leave out.
    """

    max_length: int = option(
        512, "number of positions in a training sequence, including special tokens"
    )
    max_documents_per_record: int | None = option(
        None,
        "maximum number of documents packed into one sequence (default: max-length / 32)",
    )
    heldout_fraction: float = 0.01
    language: str = option(
        "en",
        "ISO 639-1 code of the language, whose rules are used to split sentences",
        metavar="CODE",
    )
    unit_bytes: int = option(
        32 << 20, "bytes of text per shard; each worker needs about five times as much memory"
    )
    sources: SourceOptions = field(default_factory=SourceOptions)
    filters: FilterOptions = field(default_factory=FilterOptions)

    def __post_init__(self) -> None:
        if not MIN_LENGTH <= self.max_length <= MAX_LENGTH:
            raise ValueError(
                f"max_length={self.max_length}: expected {MIN_LENGTH} to {MAX_LENGTH}."
            )
        most = self.max_length // (SPECIAL_TOKENS_PER_FRAGMENT + 1)
        if not 1 <= self.max_fragments <= most:
            raise ValueError(
                f"max_documents_per_record={self.max_documents_per_record}: expected 1 to {most}, "
                f"since every document takes up at least {SPECIAL_TOKENS_PER_FRAGMENT + 1} "
                f"of {self.max_length} positions."
            )
        if not 0 <= self.heldout_fraction < 1:
            raise ValueError(
                f"heldout_fraction={self.heldout_fraction}: expected a fraction of the documents, "
                "at least 0 and less than 1."
            )
        if self.unit_bytes < 1024:
            raise ValueError(f"unit_bytes={self.unit_bytes}: expected at least 1024.")
        check_language(self.language)

    @property
    def max_fragments(self) -> int:
        """The maximum number of fragments in a record, each from a different document."""
        if self.max_documents_per_record is None:
            return default_max_fragments(self.max_length)
        return self.max_documents_per_record

    def as_json(self) -> dict[str, Any]:
        """Return the options for the manifest, along with the versions of `_LIBRARIES`."""
        sources = dataclasses.asdict(self.sources)
        del sources["tfds_data_dir"]  # The location of the data does not affect the documents.
        return {
            "max_length": self.max_length,
            "max_pieces": self.max_fragments,
            "heldout_fraction": self.heldout_fraction,
            "language": self.language,
            "unit_bytes": self.unit_bytes,
            **sources,
            **{f"filters.{name}": value for name, value in self.filters.as_json().items()},
            "libraries": {name: version(name) for name in _LIBRARIES} | self.filters.libraries(),
        }


# The manifest key that marks a source whose documents are all held out.
SPLIT_KEY = "split"
# The manifest keys for a file's modification time and checksum, which reveal later changes to it.
MTIME_KEY, CHECKSUM_KEY = "mtime_ns", "sha256"


@dataclass(frozen=True)
class PrepareInputs:
    """The inputs of a preparation, expanded into files and TFDS datasets.

    Attributes:
      split: the inputs whose documents are assigned to a split by their hash.
      heldout: the inputs whose documents are all held out. They are read first, so that
        duplicates of these documents are removed from the training split.
    """

    split: list[str]
    heldout: list[str]

    @property
    def paths(self) -> list[str]:
        """All inputs in reading order."""
        return [*self.heldout, *self.split]

    def describe(self, options: SourceOptions) -> list[dict[str, Any]]:
        """Describe the inputs for the manifest, in reading order."""
        return [
            {
                "path": source_name(path, options),
                "num_bytes": total_bytes([path], options),
                **_modification(path),
                **({SPLIT_KEY: "heldout"} if number < len(self.heldout) else {}),
            }
            for number, path in enumerate(self.paths)
        ]

    def with_checksums(
        self, sources: Sequence[dict[str, Any]], counts: SourceCounts
    ) -> tuple[dict[str, Any], ...]:
        """Return the result of `describe`, with checksums added for the files that were read."""
        checksums = counts.checksums
        assert checksums is not None, "checksums were not requested"
        return tuple(
            source | ({CHECKSUM_KEY: checksums[path]} if path in checksums else {})
            for path, source in zip(self.paths, sources, strict=True)
        )

    def documents(
        self, options: SourceOptions, counts: SourceCounts
    ) -> tuple[Iterator[Document], Iterator[Document]]:
        """Return (held-out documents, documents to split), which must be read in that order."""
        heldout = read_documents(self.heldout, options, counts) if self.heldout else iter(())
        return heldout, read_documents(self.split, options, counts)


def _modification(path: str) -> dict[str, int]:
    return {MTIME_KEY: modified_ns(parse_location(path))} if is_file_name(path) else {}


def resolve_inputs(
    inputs: Sequence[str],
    heldout_inputs: Sequence[str],
    output: str | os.PathLike[str],
    options: PrepareOptions,
) -> PrepareInputs:
    """Expand the inputs of a preparation.

    If a directory or pattern in `inputs` includes a held-out file, the file is left out. `inputs`
    must not name a held-out file explicitly.

    Raises:
      ValueError: an input is missing or contains `output`, a file is both an input and a held-out
        input, nothing is left to train on, or `heldout_inputs` are combined with a held-out
        fraction.
    """
    _check_output_outside([*inputs, *heldout_inputs], parse_location(output, "output"))
    if heldout_inputs and options.heldout_fraction:
        raise ValueError(
            f"heldout_fraction={options.heldout_fraction}: cannot be combined with held-out "
            "inputs. Set it to 0, or omit the held-out inputs."
        )
    split = expand_inputs(inputs)
    heldout = expand_inputs(heldout_inputs) if heldout_inputs else []
    heldout_identities = {_identity(path, options.sources) for path in heldout}
    named = [path for path in inputs if _identity(path, options.sources) in heldout_identities]
    if named:
        raise ValueError(
            f"{named[0]}: this is both an input and a held-out input. Remove it from one of the "
            "two lists."
        )
    split = [path for path in split if _identity(path, options.sources) not in heldout_identities]
    if not split:
        raise ValueError(
            "All inputs are held out, so nothing is left to train on. Add other inputs."
        )
    return PrepareInputs(split, heldout)


def _identity(path: str, options: SourceOptions) -> str:
    return identity(path) if is_file_name(path) else source_name(path, options)


def _check_output_outside(inputs: Sequence[str], output: Location) -> None:
    """Raise ValueError if the output is inside an input, where it would be read as text."""
    for name in inputs:
        if not is_file_name(name):
            continue
        directory = parse_location(name)
        if isinstance(directory, ObjectUrl) or directory.is_dir():
            if is_inside(output, directory):
                raise ValueError(
                    f"output={output}: this is inside the input directory {name}, where it would "
                    "be read as text. Choose another output directory."
                )
