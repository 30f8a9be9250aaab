"""Train a tokenizer on a corpus.

    bert-jax train-tokenizer --input books/*.txt wiki.jsonl.gz --output tokenizer
    bert-jax train-tokenizer --kind byte-bpe --input books/ --output tokenizer

The kinds are BERT's WordPiece, RoBERTa's byte-level BPE, and SentencePiece with ALBERT's
normalization (a unigram model, or SentencePiece's form of BPE).

The inputs are the same as for `prepare`, and are read twice. Every verb that needs a tokenizer
accepts the directory that this command writes, and so does transformers.AutoTokenizer. The same
text always gives the same vocabulary.
"""

import argparse
import sys
import time

from bert_jax.argument_parser import ArgumentParser, option_names
from bert_jax.cli.arguments import add_text_arguments
from bert_jax.cli.source_arguments import (
    add_case_arguments,
    add_source_arguments,
)
from bert_jax.corpus.report import describe_tokenizer, reading_line, training_lines
from bert_jax.corpus.train_tokenizer import (
    DEFAULTS,
    KINDS,
    OnReading,
    ReadingProgress,
    check_tokenizer_output,
    train_tokenizer,
)
from bert_jax.field_options import option_values
from bert_jax.labeled_data.tokenized_text import tokenize
from bert_jax.terminal import ProgressLine, shows_color, use_utf8
from bert_jax.text.documents import SourceOptions
from bert_jax.tokenizers.tokenizer import Tokenizer
from bert_jax.tokenizers.training import MAX_SAMPLE_BYTES, MAX_SENTENCEPIECE_BYTES
from bert_jax.tokenizers.wordpiece_training import BERT_NUM_UNUSED
from bert_jax.validation import renamed_in_errors

_SETTINGS = ("vocab_size", "num_unused", "min_frequency", "max_bytes", "keep_accents")
_CASES = {"lowercase=True": "--uncased", "lowercase=False": "--cased"}
_OPTIONS = option_names(*_SETTINGS) | _CASES
_VOCAB_SIZES = dict.fromkeys(f"{defaults.vocab_size:,}" for defaults in DEFAULTS.values())


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options of `train-tokenizer`."""
    add_source_arguments(parser)
    parser.add_option("--output", "DIR", "directory to create", required=True)
    parser.add_choice("--kind", KINDS, "kind of vocabulary", default="wordpiece")
    parser.add_number(
        "--vocab-size",
        "number of tokens, including special and unused ones (default: as in the published "
        f"models: {', '.join(_VOCAB_SIZES)})",
    )
    add_case_arguments(
        parser,
        lowercase="--uncased",
        lowercase_help="lowercased text without accents and other marks (the default, except for "
        "byte-bpe)",
        cased_help="unchanged text (always the case for byte-bpe)",
    )
    parser.add_flag(
        "--keep-accents",
        "lowercase text but keep accents, vowel signs and voicing marks, which --uncased strips",
    )
    _add_training_arguments(parser)


def _add_training_arguments(parser: ArgumentParser) -> None:
    parser.add_number(
        "--min-frequency",
        "minimum number of times a piece must occur (default: 2; not for sentencepiece)",
    )
    parser.add_number(
        "--num-unused",
        f"number of [unusedN] tokens to reserve for later use, only for wordpiece (default: "
        f"{BERT_NUM_UNUSED}, as in BERT)",
    )
    parser.add_number(
        "--max-bytes",
        "bytes of text to train on; a larger corpus is sampled evenly (default: "
        f"{MAX_SAMPLE_BYTES}, for sentencepiece {MAX_SENTENCEPIECE_BYTES})",
    )


def run(args: argparse.Namespace) -> int:
    """Train the tokenizer, with progress on stderr and the result on stdout."""
    check_tokenizer_output(args.output, "--output")
    line, latest = ProgressLine(sys.stderr), list[ReadingProgress]()

    def show(reading: ReadingProgress) -> None:
        latest[:] = [reading]
        if reading.finished:
            line.end()
        else:
            line.show(lambda: reading_line(reading))

    started = time.monotonic()
    tokenizer = _train(args, show)
    seconds = time.monotonic() - started
    print(f"{args.output}: {describe_tokenizer(tokenizer)}")
    print("\n".join(training_lines(latest[0].counts, args.kind, args.max_bytes, seconds)))
    return 0


def _train(args: argparse.Namespace, show: OnReading) -> Tokenizer:
    with renamed_in_errors({**_OPTIONS, f"kind={args.kind!r}": f"--kind {args.kind}"}):
        return train_tokenizer(
            args.input,
            kind=args.kind,
            vocab_size=args.vocab_size,
            output=args.output,
            lowercase=args.lowercase,
            keep_accents=args.keep_accents,
            num_unused=args.num_unused,
            min_frequency=args.min_frequency,
            max_bytes=args.max_bytes,
            sources=SourceOptions(**option_values(SourceOptions, args)),
            show_progress=sys.stderr.isatty(),
            on_progress=show,
        )


def add_tokenize_text_arguments(parser: ArgumentParser) -> None:
    """Declare the options of `tokenize`."""
    parser.add_argument("tokenizer", metavar="MODEL", help="work directory, or any tokenizer")
    add_text_arguments(parser)


def tokenize_text(args: argparse.Namespace) -> int:
    """Show how a model's tokenizer splits a text: tokens, ids, words and characters.

    bert-jax tokenize runs/mine "I love my pet Python"
    """
    tokens = tokenize(args.tokenizer, args.text, args.second, args.max_length)
    use_utf8(sys.stdout)
    print("\n".join(tokens.lines(color=shows_color(sys.stdout))))
    return 0
