"""Train a tokenizer on raw text, and write it to a directory."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, assert_never, get_args

from bert_jax.corpus.bucket_workspace import check_outside_bucket_corpora
from bert_jax.corpus.inputs import InputPaths, input_names
from bert_jax.corpus.workspace import check_output
from bert_jax.files import NotWritten, temporary_beside, write_checksums, write_file, writing
from bert_jax.local_paths import cache_directory, make_directory
from bert_jax.storage.errors import naming_store_errors
from bert_jax.storage.objects import find, has_objects, upload_directory
from bert_jax.storage.urls import ObjectUrl, parse_location
from bert_jax.text.documents import SourceCounts, SourceOptions
from bert_jax.text.sources import read_documents, total_bytes
from bert_jax.tokenizers.byte_bpe_training import ROBERTA_VOCAB_SIZE, train_byte_bpe
from bert_jax.tokenizers.files import FILE_NAMES, has_tokenizer
from bert_jax.tokenizers.sentencepiece_files import SENTENCEPIECE_NAME
from bert_jax.tokenizers.sentencepiece_training import ALBERT_VOCAB_SIZE, train_sentencepiece
from bert_jax.tokenizers.tokenizer import Tokenizer
from bert_jax.tokenizers.training import MAX_SAMPLE_BYTES, MAX_SENTENCEPIECE_BYTES
from bert_jax.tokenizers.wordpiece_training import BERT_NUM_UNUSED, BERT_VOCAB_SIZE, train_wordpiece
from bert_jax.tokenizers.words import MarkedWords

logger = logging.getLogger(__name__)

TokenizerKind = Literal["wordpiece", "byte-bpe", "sentencepiece", "sentencepiece-bpe"]
KINDS: tuple[TokenizerKind, ...] = get_args(TokenizerKind)
MIN_FREQUENCY = 2


@dataclass(frozen=True)
class KindDefaults:
    """The defaults for a kind of vocabulary.

    Attributes:
      vocab_size: the number of tokens.
      max_bytes: the amount of text to train on.
      passes: the purpose of each of the two passes over the inputs.
    """

    vocab_size: int
    max_bytes: int
    passes: tuple[str, str]


_SENTENCEPIECE = KindDefaults(ALBERT_VOCAB_SIZE, MAX_SENTENCEPIECE_BYTES, ("measuring", "reading"))
DEFAULTS: Mapping[TokenizerKind, KindDefaults] = {
    "wordpiece": KindDefaults(
        BERT_VOCAB_SIZE, MAX_SAMPLE_BYTES, ("counting characters", "counting words")
    ),
    "byte-bpe": KindDefaults(ROBERTA_VOCAB_SIZE, MAX_SAMPLE_BYTES, ("measuring", "counting words")),
    "sentencepiece": _SENTENCEPIECE,
    "sentencepiece-bpe": _SENTENCEPIECE,
}


@dataclass
class ReadingProgress:
    """The progress of one of the two passes over the inputs, updated during the pass.

    Attributes:
      phase: the purpose of the pass, such as "counting words".
      counts: the counts of documents and bytes read so far.
      total_bytes: the size of the inputs on disk.
      finished: whether all inputs have been read.
      started: the value of `time.monotonic` at the beginning of the pass.
    """

    phase: str
    counts: SourceCounts
    total_bytes: int
    finished: bool = False
    started: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        """The time since the pass began."""
        return time.monotonic() - self.started

    @property
    def fraction(self) -> float:
        """The fraction of the inputs that has been read so far."""
        return min(1.0, self.counts.bytes_read / max(1, self.total_bytes))


OnReading = Callable[[ReadingProgress], None]


@dataclass(frozen=True)
class _Options:
    """The checked options of `train_tokenizer`."""

    kind: TokenizerKind
    vocab_size: int | None
    lowercase: bool | None
    keep_accents: bool
    num_unused: int | None
    min_frequency: int | None
    max_bytes: int | None

    def __post_init__(self) -> None:
        kind = self.kind
        if kind not in KINDS:
            raise ValueError(f"kind={kind!r}: expected one of {', '.join(map(repr, KINDS))}.")
        for name, value, kinds in (
            ("num_unused", self.num_unused, ("wordpiece",)),
            ("min_frequency", self.min_frequency, ("wordpiece", "byte-bpe")),
        ):
            if value is not None and kind not in kinds:
                raise ValueError(
                    f"{name}={value}: not supported by kind={kind!r}, only by {', '.join(kinds)}."
                )
        if self.keep_accents and (kind == "byte-bpe" or self.lowercase is False):
            cause = f"kind={kind!r}" if kind == "byte-bpe" else "lowercase=False"
            raise ValueError(f"keep_accents: {cause} already keeps accents. Omit one of the two.")
        if kind == "byte-bpe" and self.lowercase:
            raise ValueError(f"lowercase=True: kind={kind!r} is always cased. Use another kind.")


def train_tokenizer(
    inputs: InputPaths,
    *,
    kind: TokenizerKind = "wordpiece",
    vocab_size: int | None = None,
    output: str | os.PathLike[str] | None = None,
    lowercase: bool | None = None,
    keep_accents: bool = False,
    num_unused: int | None = None,
    min_frequency: int | None = None,
    max_bytes: int | None = None,
    sources: SourceOptions | None = None,
    show_progress: bool = False,
    on_progress: OnReading | None = None,
) -> Tokenizer:
    """Train a tokenizer on raw text.

    The same text always produces the same tokenizer. The inputs are read twice. If many words would
    lose accents, a warning is logged.

    Args:
      inputs: files, directories, patterns, "tfds:NAME/CONFIG:SPLIT" or "hf:OWNER/NAME:SPLIT".
      kind: BERT's WordPiece, RoBERTa's byte-level BPE, or SentencePiece with ALBERT's normalization
        (a unigram model or BPE).
      vocab_size: the number of tokens, including special tokens; None for the size of BERT's,
        RoBERTa's or ALBERT's vocabulary.
      output: a new directory, which may be in a bucket, or an existing one without a tokenizer;
        None to write no files.
      lowercase: whether text is lowercased and stripped of accents; None for the kind's default,
        which is False for byte-level BPE and True for the other kinds.
      keep_accents: whether lowercased text keeps its accents.
      num_unused: the number of [unusedN] tokens (only for "wordpiece"); None for BERT's 99.
      min_frequency: how many times a piece must occur; None for 2. It must be None for
        SentencePiece.
      max_bytes: the amount of text to train on, in whole documents spread evenly over the inputs;
        None for the kind's default.
      sources: the options for reading the inputs; None for the defaults.
      show_progress: whether the `tokenizers` library draws progress bars on standard error.
      on_progress: called after every document in both passes, and at the end of each pass.

    Raises:
      ValueError: an option, an input or the output is unusable, or there is too little text.
      OSError: a file cannot be read or written.
    """
    if output is not None:
        check_tokenizer_output(output)
    options = _Options(
        kind, vocab_size, lowercase, keep_accents, num_unused, min_frequency, max_bytes
    )
    texts = _Texts(input_names(inputs), sources or SourceOptions(), options, on_progress)
    tokenizer, files = _train(options, texts, show_progress)
    if output is not None:
        location = parse_location(output)
        if isinstance(location, ObjectUrl):
            _write_to_bucket(tokenizer, files, location)
        else:
            _write(tokenizer, files, location)
    return tokenizer


def check_tokenizer_output(path: str | os.PathLike[str], name: str = "output") -> None:
    """Check that a tokenizer may be written to an output directory.

    Args:
      path: the directory, which need not exist and may be in a bucket.
      name: the parameter or option that specifies the directory.

    Raises:
      ValueError: the directory already contains a tokenizer, a corpus, a model or other output, is
        inside a corpus, or is a file.
    """
    output = parse_location(path, name)
    if isinstance(output, ObjectUrl):
        with naming_store_errors(name, output):
            if has_objects(output) or find(output) is not None:
                raise ValueError(
                    f"{name}={output}: the bucket already contains objects below this URL. Choose "
                    "another one."
                )
            check_outside_bucket_corpora(output, name)
        return
    if has_tokenizer(output):
        raise ValueError(
            f"{name}={output}: already contains a tokenizer. Remove it or choose another directory."
        )
    if output.exists() and not output.is_dir():
        raise ValueError(f"{name}={output}: this is a file. Specify a directory.")
    check_output(output, name)


def _train(
    options: _Options, texts: _Texts, show_progress: bool
) -> tuple[Tokenizer, dict[str, bytes]]:
    """Train a tokenizer, and return it along with the names and contents of any extra files."""
    kind, defaults = options.kind, DEFAULTS[options.kind]
    max_bytes = defaults.max_bytes if options.max_bytes is None else options.max_bytes
    vocab_size = defaults.vocab_size if options.vocab_size is None else options.vocab_size
    min_frequency = MIN_FREQUENCY if options.min_frequency is None else options.min_frequency
    lowercase = options.lowercase is not False
    match kind:
        case "wordpiece":
            tokenizer = train_wordpiece(
                texts,
                vocab_size=vocab_size,
                lowercase=lowercase,
                keep_accents=options.keep_accents,
                num_unused=BERT_NUM_UNUSED if options.num_unused is None else options.num_unused,
                min_frequency=min_frequency,
                max_bytes=max_bytes,
                show_progress=show_progress,
            )
            return tokenizer, {}
        case "byte-bpe":
            tokenizer = train_byte_bpe(
                texts,
                vocab_size=vocab_size,
                min_frequency=min_frequency,
                max_bytes=max_bytes,
                show_progress=show_progress,
            )
            return tokenizer, {}
        case "sentencepiece" | "sentencepiece-bpe":
            tokenizer, model = train_sentencepiece(
                texts,
                model_type="bpe" if kind == "sentencepiece-bpe" else "unigram",
                vocab_size=vocab_size,
                lowercase=lowercase,
                keep_accents=options.keep_accents,
                max_bytes=max_bytes,
            )
            return tokenizer, {SENTENCEPIECE_NAME: model}
        case _:
            assert_never(kind)


class _Texts:
    """The texts in the inputs, which are read again in every loop over this object."""

    def __init__(
        self,
        inputs: Sequence[str],
        sources: SourceOptions,
        options: _Options,
        on_progress: OnReading | None,
    ) -> None:
        self._inputs, self._sources, self._on_progress = inputs, sources, on_progress
        self._marked = _marked_words(options)
        self._total_bytes = total_bytes(inputs, sources)
        self._passes = iter(DEFAULTS[options.kind].passes)

    def __iter__(self) -> Iterator[str]:
        counts = SourceCounts()
        progress = ReadingProgress(next(self._passes), counts, self._total_bytes)
        for document in read_documents(self._inputs, self._sources, counts):
            if self._marked is not None:
                self._marked.add(document.text)
            yield document.text
            self._report(progress)
        progress.finished = True
        self._report(progress)
        if self._marked is not None and (warning := self._marked.warning()):
            logger.warning("%s", warning)
        self._marked = None  # The second pass reads the same words.

    def _report(self, progress: ReadingProgress) -> None:
        if self._on_progress is not None:
            self._on_progress(progress)


def _marked_words(options: _Options) -> MarkedWords | None:
    """Return a counter of the words that lose accents, or None if the tokenizer keeps them."""
    if options.keep_accents or options.lowercase is False:
        return None
    match options.kind:
        case "byte-bpe":
            return None
        case "wordpiece":
            return MarkedWords("wordpiece")
        case "sentencepiece" | "sentencepiece-bpe":
            return MarkedWords("sentencepiece")
        case _:
            assert_never(options.kind)


def _write_to_bucket(tokenizer: Tokenizer, files: Mapping[str, bytes], output: ObjectUrl) -> None:
    """Write a tokenizer's files to a bucket, ending with the one that `Tokenizer.load` reads."""
    local = cache_directory() / "outputs" / output.name
    with writing(local):
        make_directory(local.parent)
        with temporary_beside(local, directory=True) as temporary:
            _save(tokenizer, files, temporary)
            upload_directory(temporary, output, last=FILE_NAMES[0])


def _save(tokenizer: Tokenizer, files: Mapping[str, bytes], directory: Path) -> None:
    tokenizer.save(directory)
    for name, content in files.items():
        write_file(directory / name, content)
    write_checksums(directory)


def _write(tokenizer: Tokenizer, files: Mapping[str, bytes], output: Path) -> None:
    """Write all of a tokenizer's files to `output`, or none if any of them cannot be written."""
    output = output.absolute()  # A temporary name cannot be derived from ".".
    with writing(output):
        make_directory(output.parent)
        # An existing directory may be a mount point, so the temporary directory is created inside
        # it.
        neighbor = output / FILE_NAMES[0] if output.exists() else output
        with temporary_beside(neighbor, directory=True) as temporary:
            try:
                _save(tokenizer, files, temporary)
            except NotWritten as error:
                raise NotWritten(output, error.cause) from error
            if not output.exists():
                temporary.rename(output)
                return
            # Keep any other files in the directory. The last file to be moved is the one that
            # `Tokenizer.load` looks for first.
            names = sorted(file.name for file in temporary.iterdir())
            for name in sorted(names, key=lambda name: name == FILE_NAMES[0]):
                os.replace(temporary / name, output / name)
