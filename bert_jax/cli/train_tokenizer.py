"""Learn a vocabulary from a corpus.

    bert-jax train-tokenizer --input books/*.txt wiki.jsonl.gz --output tokenizer
    bert-jax train-tokenizer --kind byte-bpe --input books/ --output tokenizer

BERT's WordPiece, RoBERTa's byte-level BPE, or SentencePiece with ALBERT's normalisation (a unigram
model, or its form of BPE).

The inputs are those of `prepare`, and are read twice. The directory it writes is accepted wherever
a tokenizer is, here and by transformers.AutoTokenizer. The same text gives the same vocabulary.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from bert_jax.cli.output import ProgressLine, clock
from bert_jax.cli.source_arguments import add_source_arguments, source_options
from bert_jax.files import NotWritten, temporary_beside, write_checksums, write_file, writing
from bert_jax.local_paths import make_directory
from bert_jax.runs.outputs import check_output
from bert_jax.text.documents import SourceCounts, SourceOptions
from bert_jax.text.sources import read_documents, total_bytes
from bert_jax.tokenizers.files import FILE_NAMES, holds_tokenizer
from bert_jax.tokenizers.tokenizer import Tokenizer
from bert_jax.tokenizers.training import (
    ALBERT_VOCAB_SIZE,
    MAX_SAMPLE_BYTES,
    MAX_SENTENCEPIECE_BYTES,
    ROBERTA_VOCAB_SIZE,
    train_byte_bpe,
    train_sentencepiece,
)
from bert_jax.tokenizers.vocabulary_files import SENTENCEPIECE_NAME
from bert_jax.tokenizers.wordpiece_training import BERT_NUM_UNUSED, BERT_VOCAB_SIZE, train_wordpiece
from bert_jax.tokenizers.words import MarkedWords
from bert_jax.validation import renamed_in_errors

logger = logging.getLogger(__name__)

# Options by the parameters that they set.
_OPTIONS = {
    name: f"--{name.replace('_', '-')}"
    for name in ("vocab_size", "num_unused", "min_frequency", "max_bytes")
}

VOCAB_SIZES = {
    "wordpiece": BERT_VOCAB_SIZE,
    "byte-bpe": ROBERTA_VOCAB_SIZE,
    "sentencepiece": ALBERT_VOCAB_SIZE,
    "sentencepiece-bpe": ALBERT_VOCAB_SIZE,
}
KINDS = tuple(VOCAB_SIZES)
# What the two readings of the inputs are for.
PASSES = {
    "wordpiece": ("counting characters", "counting words"),
    "byte-bpe": ("measuring", "counting words"),
    "sentencepiece": ("measuring", "reading"),
    "sentencepiece-bpe": ("measuring", "reading"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `train-tokenizer`."""
    add_source_arguments(parser)
    parser.add_argument("--output", required=True, type=Path, metavar="DIR", help="a new directory")
    parser.add_argument(
        "--kind", choices=KINDS, default="wordpiece", help="of vocabulary (default: %(default)s)"
    )
    parser.add_argument(
        "--vocab-size",
        type=int,
        metavar="N",
        help="entries, special and unused ones included (default: the release's: "
        + ", ".join(f"{size:,}" for size in dict.fromkeys(VOCAB_SIZES.values()))
        + ")",
    )
    case = parser.add_mutually_exclusive_group()
    case.add_argument(
        "--uncased",
        dest="lowercase",
        action="store_const",
        const=True,
        help="lower-cased text without accents and other marks (default, except for byte-bpe)",
    )
    case.add_argument(
        "--cased",
        dest="lowercase",
        action="store_const",
        const=False,
        help="leave the text alone (byte-bpe always does)",
    )
    parser.add_argument(
        "--keep-accents",
        action="store_true",
        help="lower-cased text with accents, vowel signs and voicing marks, which --uncased strips",
    )
    parser.add_argument(
        "--min-frequency",
        type=int,
        metavar="N",
        help="how often a piece must occur to be learned (default: 2; not of sentencepiece)",
    )
    parser.add_argument(
        "--num-unused",
        type=int,
        metavar="N",
        help=f"[unusedN] slots to fill in later (default: {BERT_NUM_UNUSED}, as in BERT; of "
        "wordpiece alone)",
    )
    parser.add_argument(
        "--max-bytes",
        type=int,
        metavar="N",
        help="text to learn from; of a larger corpus, documents spread evenly over it (default: "
        f"{MAX_SAMPLE_BYTES}, of sentencepiece {MAX_SENTENCEPIECE_BYTES})",
    )


def run(args: argparse.Namespace) -> int:
    """Learn the vocabulary, showing progress on stderr and the result on stdout."""
    if holds_tokenizer(args.output):
        raise ValueError(
            f"--output {args.output} already holds a tokenizer; remove it or name another directory"
        )
    if args.output.exists() and not args.output.is_dir():
        raise ValueError(f"--output {args.output} is a file; a tokenizer is a directory")
    check_output(args.output, "--output")
    _check_options(args)
    texts = _Texts(args.input, source_options(args), PASSES[args.kind], _marked_words(args))
    started = time.monotonic()
    with renamed_in_errors(_OPTIONS):
        tokenizer, files = _learn(args, texts)
    _write(tokenizer, files, args.output)
    counts = texts.counts
    sampled = min(1.0, _max_bytes(args) / counts.text_bytes)
    print(
        f"{args.output}: {tokenizer.vocab_size} entries, "
        f"{'uncased' if tokenizer.lowercase else 'cased'}"
        f"{' with accents' if args.keep_accents else ''}, "
        f"fingerprint {tokenizer.fingerprint[:12]}"
    )
    how = "learned from" if args.kind.startswith("sentencepiece") else "words counted in"
    print(
        f"from {counts.documents} documents in {counts.files} inputs, "
        f"{counts.text_bytes / 1e6:.1f} MB of text"
        + (f" ({how} {sampled:.1%} of it)" if sampled < 1 else "")
        + f", in {time.monotonic() - started:.1f} s"
    )
    left_out = {
        "bad lines": counts.bad_lines,
        "files without a document": counts.empty_files,
        "empty documents": counts.empty_documents,
    }
    if any(left_out.values()):
        print("left out: " + ", ".join(f"{count} {what}" for what, count in left_out.items()))
    return 0


def _check_options(args: argparse.Namespace) -> None:
    """Refuses what means nothing to a kind of vocabulary."""
    kind = args.kind
    for option, value, kinds in (
        ("--num-unused", args.num_unused, ("wordpiece",)),
        ("--min-frequency", args.min_frequency, ("wordpiece", "byte-bpe")),
    ):
        if value is not None and kind not in kinds:
            raise ValueError(
                f"{option} means nothing to --kind {kind}; it is of {', '.join(kinds)}"
            )
    if args.keep_accents and (kind == "byte-bpe" or args.lowercase is False):
        cause = "--kind byte-bpe" if kind == "byte-bpe" else "--cased"
        raise ValueError(
            f"--keep-accents: {cause} already keeps accents. Leave out one of the two."
        )
    if kind == "byte-bpe" and args.lowercase:
        raise ValueError("--uncased: --kind byte-bpe keeps the case; expected another kind")


def _marked_words(args: argparse.Namespace) -> MarkedWords | None:
    """Return a counter for words that lose marks; None if the tokenizer keeps marks."""
    if args.keep_accents or args.lowercase is False or args.kind == "byte-bpe":
        return None
    return MarkedWords("wordpiece" if args.kind == "wordpiece" else "sentencepiece")


def _max_bytes(args: argparse.Namespace) -> int:
    if args.max_bytes is not None:
        return int(args.max_bytes)
    return MAX_SENTENCEPIECE_BYTES if args.kind.startswith("sentencepiece") else MAX_SAMPLE_BYTES


def _write(tokenizer: Tokenizer, files: Mapping[str, bytes], output: Path) -> None:
    """Write all files of a tokenizer to `output`, or none if any of them cannot be written."""
    output = output.absolute()  # "." has no name for a temporary directory next to it
    with writing(output):
        make_directory(output.parent)
        # An existing directory may be a file system of its own, and have no name, as "." has none.
        beside = output / FILE_NAMES[0] if output.exists() else output
        with temporary_beside(beside, directory=True) as temporary:
            try:
                tokenizer.save(temporary)
                for name, content in files.items():
                    write_file(temporary / name, content)
                write_checksums(temporary)
            except NotWritten as error:
                raise NotWritten(output, error.cause) from error
            if not output.exists():
                temporary.rename(output)
                return
            # Keep other files in the directory; move the file that is read first last.
            names = sorted(file.name for file in temporary.iterdir())
            for name in sorted(names, key=lambda name: name == FILE_NAMES[0]):
                os.replace(temporary / name, output / name)


def _learn(args: argparse.Namespace, texts: _Texts) -> tuple[Tokenizer, dict[str, bytes]]:
    """The tokenizer, and files that it is also kept in, by name."""
    max_bytes, lowercase = _max_bytes(args), args.lowercase is not False
    vocab_size = VOCAB_SIZES[args.kind] if args.vocab_size is None else args.vocab_size
    min_frequency = 2 if args.min_frequency is None else args.min_frequency
    bars = sys.stderr.isatty()  # the library's own, once the words are counted
    match args.kind:
        case "wordpiece":
            tokenizer = train_wordpiece(
                texts,
                vocab_size=vocab_size,
                lowercase=lowercase,
                keep_accents=args.keep_accents,
                num_unused=BERT_NUM_UNUSED if args.num_unused is None else args.num_unused,
                min_frequency=min_frequency,
                max_bytes=max_bytes,
                show_progress=bars,
            )
        case "byte-bpe":
            tokenizer = train_byte_bpe(
                texts,
                vocab_size=vocab_size,
                min_frequency=min_frequency,
                max_bytes=max_bytes,
                show_progress=bars,
            )
        case _:
            tokenizer, model = train_sentencepiece(
                texts,
                model_type="bpe" if args.kind == "sentencepiece-bpe" else "unigram",
                vocab_size=vocab_size,
                lowercase=lowercase,
                keep_accents=args.keep_accents,
                max_bytes=max_bytes,
            )
            return tokenizer, {SENTENCEPIECE_NAME: model}
    return tokenizer, {}


class _Texts:
    """The texts of the inputs, read anew each time, with a line of progress on stderr."""

    def __init__(
        self,
        inputs: Sequence[str],
        options: SourceOptions,
        passes: tuple[str, str],
        marked: MarkedWords | None,
    ) -> None:
        self._inputs, self._options, self._marked = inputs, options, marked
        self._total_bytes = total_bytes(inputs, options)
        self._passes = iter(passes)
        self.counts = SourceCounts()

    def __iter__(self) -> Iterator[str]:
        what = next(self._passes)
        self.counts = SourceCounts()
        started = time.monotonic()
        progress = ProgressLine()
        for document in read_documents(self._inputs, self._options, self.counts):
            if self._marked is not None:
                self._marked.add(document.text)
            yield document.text
            progress.show(lambda: self._line(what, time.monotonic() - started))
        progress.end()
        if self._marked is not None and (warning := self._marked.warning()):
            logger.warning("%s", warning)
        self._marked = None  # the second pass reads the same words

    def _line(self, what: str, seconds: float) -> str:
        share = min(1.0, self.counts.bytes_read / max(1, self._total_bytes))
        left = seconds / share - seconds if share else 0.0
        return (
            f"{what}: {share:6.1%}  {self.counts.documents} documents  "
            f"{self.counts.text_bytes / 1e6:,.1f} MB  "
            f"{self.counts.text_bytes / 1e6 / seconds:.1f} MB/s  ETA {clock(left)}"
        )
