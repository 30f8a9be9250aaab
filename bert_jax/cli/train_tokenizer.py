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
import sys
import time
from pathlib import Path

from bert_jax.cli.output import ProgressLine, clock
from bert_jax.cli.source_arguments import add_source_arguments, source_options
from bert_jax.corpus.train_tokenizer import (
    DEFAULTS,
    KINDS,
    ReadingProgress,
    check_tokenizer_output,
    train_tokenizer,
)
from bert_jax.text.documents import SourceCounts
from bert_jax.tokenizers.tokenizer import Tokenizer
from bert_jax.tokenizers.training import MAX_SAMPLE_BYTES, MAX_SENTENCEPIECE_BYTES
from bert_jax.tokenizers.wordpiece_training import BERT_NUM_UNUSED
from bert_jax.validation import renamed_in_errors

_VOCAB_SIZES = dict.fromkeys(defaults.vocab_size for defaults in DEFAULTS.values())


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
        + ", ".join(f"{size:,}" for size in _VOCAB_SIZES)
        + ")",
    )
    _add_case_arguments(parser)
    _add_training_arguments(parser)


def _add_case_arguments(parser: argparse.ArgumentParser) -> None:
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


def _add_training_arguments(parser: argparse.ArgumentParser) -> None:
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
    """Train the tokenizer, showing progress on stderr and the result on stdout."""
    check_tokenizer_output(args.output, "--output")
    sources = source_options(args)
    progress = _Progress()
    started = time.monotonic()
    with renamed_in_errors(_options(args.kind)):
        tokenizer = train_tokenizer(
            args.input,
            kind=args.kind,
            vocab_size=args.vocab_size,
            output=args.output,
            lowercase=args.lowercase,
            keep_accents=args.keep_accents,
            num_unused=args.num_unused,
            min_frequency=args.min_frequency,
            max_bytes=args.max_bytes,
            sources=sources,
            show_progress=sys.stderr.isatty(),
            on_progress=progress,
        )
    _print_result(args, tokenizer, progress.counts, time.monotonic() - started)
    return 0


def _options(kind: str) -> dict[str, str]:
    """Return the options by the parameters, and their values, that errors name."""
    names = ("vocab_size", "num_unused", "min_frequency", "max_bytes", "keep_accents")
    return {
        **{name: f"--{name.replace('_', '-')}" for name in names},
        f"kind={kind!r}": f"--kind {kind}",
        "lowercase=True": "--uncased",
        "lowercase=False": "--cased",
    }


class _Progress:
    """Shows a progress line for each of the two readings of the inputs."""

    def __init__(self) -> None:
        self.counts = SourceCounts()
        self._line = ProgressLine()

    def __call__(self, reading: ReadingProgress) -> None:
        self.counts = reading.counts
        if reading.finished:
            self._line.end()
            self._line = ProgressLine()
        else:
            self._line.show(lambda: _line(reading))


def _line(reading: ReadingProgress) -> str:
    share, seconds, counts = reading.fraction, reading.seconds, reading.counts
    left = seconds / share - seconds if share else 0.0
    return (
        f"{reading.phase}: {share:6.1%}  {counts.documents} documents  "
        f"{counts.text_bytes / 1e6:,.1f} MB  "
        f"{counts.text_bytes / 1e6 / seconds:.1f} MB/s  ETA {clock(left)}"
    )


def _print_result(
    args: argparse.Namespace, tokenizer: Tokenizer, counts: SourceCounts, seconds: float
) -> None:
    print(
        f"{args.output}: {tokenizer.vocab_size} entries, "
        f"{'uncased' if tokenizer.lowercase else 'cased'}"
        f"{' with accents' if args.keep_accents else ''}, "
        f"fingerprint {tokenizer.fingerprint[:12]}"
    )
    max_bytes = DEFAULTS[args.kind].max_bytes if args.max_bytes is None else args.max_bytes
    sampled = min(1.0, max_bytes / counts.text_bytes)
    how = "learned from" if args.kind.startswith("sentencepiece") else "words counted in"
    print(
        f"from {counts.documents} documents in {counts.files} inputs, "
        f"{counts.text_bytes / 1e6:.1f} MB of text"
        + (f" ({how} {sampled:.1%} of it)" if sampled < 1 else "")
        + f", in {seconds:.1f} s"
    )
    left_out = {
        "bad lines": counts.bad_lines,
        "files without a document": counts.empty_files,
        "empty documents": counts.empty_documents,
    }
    if any(left_out.values()):
        print("left out: " + ", ".join(f"{count} {what}" for what, count in left_out.items()))
