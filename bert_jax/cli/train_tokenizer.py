"""Learn a WordPiece vocabulary from a corpus.

    bert-jax train-tokenizer --input books/*.txt wiki.jsonl.gz --output tokenizer

The inputs are those of `prepare`, and are read twice. The directory it writes is accepted wherever
a tokenizer is, here and by transformers.AutoTokenizer. The same text gives the same vocabulary.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from bert_jax.cli.progress_line import ProgressLine, clock
from bert_jax.cli.source_arguments import add_source_arguments, source_options
from bert_jax.data.sources import SourceCounts, SourceOptions, read_documents, total_bytes
from bert_jax.data.tokenizer_files import holds_tokenizer
from bert_jax.data.wordpiece_training import (
    BERT_NUM_UNUSED,
    BERT_VOCAB_SIZE,
    MAX_SAMPLE_BYTES,
    train_wordpiece,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `train-tokenizer`."""
    add_source_arguments(parser)
    parser.add_argument("--output", required=True, type=Path, metavar="DIR", help="a new directory")
    parser.add_argument(
        "--vocab-size",
        type=int,
        default=BERT_VOCAB_SIZE,
        metavar="N",
        help="entries, special and unused ones included (default: %(default)s)",
    )
    case = parser.add_mutually_exclusive_group()
    case.add_argument(
        "--uncased",
        dest="lowercase",
        action="store_true",
        default=True,
        help="lower the case and strip accents (default)",
    )
    case.add_argument(
        "--cased", dest="lowercase", action="store_false", help="leave the text alone"
    )
    parser.add_argument(
        "--min-frequency",
        type=int,
        default=2,
        metavar="N",
        help="how often a piece must occur to be learned (default: %(default)s)",
    )
    parser.add_argument(
        "--num-unused",
        type=int,
        default=BERT_NUM_UNUSED,
        metavar="N",
        help="[unusedN] slots to fill in later (default: %(default)s, as in BERT)",
    )
    parser.add_argument(
        "--max-bytes",
        type=int,
        default=MAX_SAMPLE_BYTES,
        metavar="N",
        help="text to count words in; of a larger corpus, documents spread evenly over it "
        "(default: %(default)s)",
    )


def run(args: argparse.Namespace) -> int:
    """Learn the vocabulary, showing progress on stderr and the result on stdout."""
    if holds_tokenizer(args.output):
        raise ValueError(
            f"--output {args.output} already holds a tokenizer; remove it or name another directory"
        )
    if args.output.exists() and not args.output.is_dir():
        raise ValueError(f"--output {args.output} is a file; a tokenizer is a directory")
    texts = _Texts(args.input, source_options(args))
    started = time.monotonic()
    tokenizer = train_wordpiece(
        texts,
        vocab_size=args.vocab_size,
        lowercase=args.lowercase,
        num_unused=args.num_unused,
        min_frequency=args.min_frequency,
        max_bytes=args.max_bytes,
        show_progress=sys.stderr.isatty(),  # the library's own bars, once the words are counted
    )
    tokenizer.save(args.output)
    counts = texts.counts
    sampled = min(1.0, args.max_bytes / counts.text_bytes)
    print(
        f"{args.output}: {tokenizer.vocab_size} entries, "
        f"{'uncased' if tokenizer.lowercase else 'cased'}, "
        f"fingerprint {tokenizer.fingerprint[:12]}"
    )
    print(
        f"from {counts.documents} documents in {counts.files} inputs, "
        f"{counts.text_bytes / 1e6:.1f} MB of text"
        + (f" (words counted in {sampled:.1%} of it)" if sampled < 1 else "")
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


class _Texts:
    """The texts of the inputs, read anew each time, with a line of progress on stderr."""

    def __init__(self, inputs: Sequence[str], options: SourceOptions) -> None:
        self._inputs, self._options = inputs, options
        self._total_bytes = total_bytes(inputs, options)
        self._passes = iter(("counting characters", "counting words"))
        self.counts = SourceCounts()

    def __iter__(self) -> Iterator[str]:
        what = next(self._passes)
        self.counts = SourceCounts()
        started = time.monotonic()
        progress = ProgressLine()
        for document in read_documents(self._inputs, self._options, self.counts):
            yield document.text
            progress.show(lambda: self._line(what, time.monotonic() - started))
        progress.end()

    def _line(self, what: str, seconds: float) -> str:
        share = min(1.0, self.counts.bytes_read / max(1, self._total_bytes))
        left = seconds / share - seconds if share else 0.0
        return (
            f"{what}: {share:6.1%}  {self.counts.documents} documents  "
            f"{self.counts.text_bytes / 1e6:,.1f} MB  "
            f"{self.counts.text_bytes / 1e6 / seconds:.1f} MB/s  ETA {clock(left)}"
        )
