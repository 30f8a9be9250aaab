"""Guess the masked words of sentences with a pretrained model.

bert-jax fill-mask --work-dir runs/demo "The capital of France is [MASK]."
"""

from __future__ import annotations

import argparse

from bert_jax.cli.arguments import free_text
from bert_jax.cli.output import speak_utf8
from bert_jax.inference.fill_mask import FillMask


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `fill-mask`."""
    parser.add_argument(
        "--work-dir", required=True, metavar="DIR", help="of `pretrain` or `import`"
    )
    parser.add_argument("--top", type=int, default=5, metavar="N", help="guesses (default: 5)")
    parser.add_argument(
        "sentence",
        nargs="+",
        type=free_text,
        help="a sentence with one or more [MASK], or <mask> where the vocabulary is RoBERTa's",
    )


def run(args: argparse.Namespace) -> int:
    """Print the most probable words for every mask of every sentence."""
    fill = FillMask(args.work_dir)
    filled = fill(args.sentence, top_k=args.top)
    speak_utf8()
    for sentence, text in zip(args.sentence, filled, strict=True):
        print(f"\n{sentence}")
        if text.truncated:
            print("  (its end was left out: it is longer than the model can read)")
        for number, guesses in enumerate(text.masks, start=1):
            prefix = f"  {fill.mask} {number}: " if len(text.masks) > 1 else "  "
            print(prefix + "   ".join(f"{each.token} {each.probability:.1%}" for each in guesses))
    return 0
