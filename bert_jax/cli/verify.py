"""Run two models on the same input and say how far apart they are, output by output.

    bert-jax verify runs/mine exported/mine
    bert-jax verify bert-base-uncased/ models/base

Each is a work directory, a Hugging Face directory (run by transformers itself), a TensorFlow
checkpoint of Google's BERT (read as `import` reads it), an ONNX file or a StableHLO artefact. The
input is random tokens over all positions and segments, and sentences of different lengths in pairs
with padding. Everything is computed in float32, on the CPU unless JAX_PLATFORMS says otherwise. The
printed differences are the largest absolute one and the relative one, divided by the root mean
square of the second model's values: float32 rounding makes two frameworks differ, and more so in a
model with large values. The exit code is 0 if no relative difference exceeds the tolerance (with
--tolerance 0, if all outputs are bitwise equal), the tokenizers, if both have one, read the
sentences alike, a Hugging Face directory's tokenizer as transformers does, and the
sentence-embedding settings, if both have them (as sentence-transformers models do), are equal; else
1.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from bert_jax.interop.comparison import Difference, title
from bert_jax.interop.verify import verify
from bert_jax.validation import renamed_in_errors


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `verify`."""
    parser.add_argument("first", metavar="A", help="a model")
    parser.add_argument("second", metavar="B", help="the model to compare it with")
    parser.add_argument(
        "--tolerance",
        type=float,
        default=1e-4,
        metavar="X",
        help="largest relative difference that passes; 0 requires bitwise equal outputs "
        "(default: 1e-4)",
    )
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N", help="of the random input (default: 0)"
    )


def run(args: argparse.Namespace) -> int:
    """Print the table; 0 if the two agree, 1 if not."""
    with renamed_in_errors({"tolerance": "--tolerance", "seed": "--seed"}):
        comparison = verify(
            args.first, args.second, tolerance=args.tolerance, seed=args.seed, on_report=print
        )
    print("\n" + "\n".join(_table(comparison.differences)))
    if comparison.unpaired:
        names = ", ".join(map(title, comparison.unpaired))
        print(f"not compared, since only one of them gives it: {names}")
    for line in comparison.misshapen:
        print(f"not the same kind of output: {line}")
    print(f"{'PASS' if comparison.passed else 'FAIL'}: {comparison.verdict}")
    return 0 if comparison.passed else 1


def _table(by_probe: Mapping[str, Mapping[str, Difference]]) -> list[str]:
    """Return a line for every output, with two columns for every probe."""
    lines = [f"{'':22}" + "".join(f"{name:>26}" for name in by_probe)]
    lines.append(f"{'':22}" + f"{'largest':>14}{'relative':>12}" * len(by_probe))
    for name in next(iter(by_probe.values())):
        cells = [
            f"{rows[name].largest:14.2e}{rows[name].relative:12.2e}" for rows in by_probe.values()
        ]
        lines.append(f"{title(name):22}" + "".join(cells))
    return lines
