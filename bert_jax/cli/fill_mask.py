"""Guess the masked words of sentences with a pretrained model.

bert-jax fill-mask --work-dir runs/demo "The capital of France is [MASK]."
"""

from __future__ import annotations

import argparse

from bert_jax.inference.fill_mask import MASK, FillMask


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `fill-mask`."""
    parser.add_argument(
        "--work-dir", required=True, metavar="DIR", help="of `pretrain` or `import`"
    )
    parser.add_argument("--top", type=int, default=5, metavar="N", help="guesses (default: 5)")
    parser.add_argument("sentence", nargs="+", help=f"a sentence with one or more {MASK}")


def run(args: argparse.Namespace) -> int:
    """Print the most probable words for every mask of every sentence."""
    filled = FillMask(args.work_dir)(args.sentence, top_k=args.top)
    for sentence, text in zip(args.sentence, filled, strict=True):
        print(f"\n{sentence}")
        for number, guesses in enumerate(text.masks, start=1):
            prefix = f"  {MASK} {number}: " if len(text.masks) > 1 else "  "
            print(prefix + "   ".join(f"{each.token} {each.probability:.1%}" for each in guesses))
    return 0
