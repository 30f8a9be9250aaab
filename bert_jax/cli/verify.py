"""Run two models on the same input, and print how much their outputs differ.

    bert-jax verify runs/mine exported/mine
    bert-jax verify bert-base-uncased/ models/base

A model can be a work directory, a Hugging Face directory (run by transformers itself), a TensorFlow
checkpoint from Google's BERT release (read the way `import` reads it), an ONNX file or a StableHLO
artifact. The input consists of random tokens that cover all positions and segments, and of pairs of
sentences of different lengths, with padding. Everything is computed in float32, on the CPU unless
JAX_PLATFORMS selects others. For each output, two numbers are printed: the largest absolute
difference, and this difference relative to the root mean square of the second model's values.
Results from different frameworks differ slightly because of float32 rounding, and the difference
grows with the size of the values. The exit code is 0 if

- no relative difference exceeds the tolerance (with --tolerance 0, all outputs must be bitwise
  equal);
- the tokenizers, if both models have one, tokenize the sentences identically, and a Hugging Face
  directory's tokenizer tokenizes them as transformers does;
- the sentence-embedding settings, if both models have them (as sentence-transformers models do),
  are equal;

and 1 otherwise.
"""

import argparse

from bert_jax.argument_parser import ArgumentParser
from bert_jax.interop.verify import verify
from bert_jax.validation import renamed_in_errors


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options of `verify`."""
    parser.add_argument("first", metavar="A", help="model to verify")
    parser.add_argument("second", metavar="B", help="model to compare A with")
    parser.add_option(
        "--tolerance",
        "X",
        "largest relative difference allowed; 0 requires bitwise equal outputs",
        kind=float,
        default=1e-4,
    )
    parser.add_number("--seed", "seed for the random input", default=0)


def run(args: argparse.Namespace) -> int:
    """Print the table of differences; return 0 if the models agree, else 1."""
    with renamed_in_errors({"tolerance": "--tolerance", "seed": "--seed"}):
        comparison = verify(
            args.first, args.second, tolerance=args.tolerance, seed=args.seed, on_report=print
        )
    print("\n" + "\n".join(comparison.lines()))
    return 0 if comparison.passed else 1
