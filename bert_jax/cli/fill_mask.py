"""Guess the masked words of sentences with a pretrained model.

bert-jax fill-mask --work-dir runs/demo "The capital of France is [MASK]."
"""

from __future__ import annotations

import argparse

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.inference.work_dir import TrainedModel, load_masked_lm
from bert_jax.models.heads import PretrainingModel

MASK = "[MASK]"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `fill-mask`."""
    parser.add_argument(
        "--work-dir", required=True, metavar="DIR", help="of `pretrain` or `import`"
    )
    parser.add_argument("--top", type=int, default=5, metavar="N", help="guesses (default: 5)")
    parser.add_argument("sentence", nargs="+", help=f"a sentence with one or more {MASK}")


def run(args: argparse.Namespace) -> int:
    """Print the most probable words for every mask of every sentence."""
    trained = load_masked_lm(args.work_dir)
    if not 1 <= args.top <= trained.tokenizer.vocab_size:
        raise ValueError(
            f"--top is {args.top}; expected 1 up to the vocabulary's {trained.tokenizer.vocab_size}"
        )
    for sentence in args.sentence:
        print(f"\n{sentence}")
        for number, guesses in enumerate(guess(trained, sentence, args.top), start=1):
            prefix = f"  {MASK} {number}: " if sentence.count(MASK) > 1 else "  "
            print(prefix + "   ".join(f"{word} {p:.1%}" for word, p in guesses))
    return 0


def guess(
    trained: TrainedModel[PretrainingModel], sentence: str, top: int
) -> list[list[tuple[str, float]]]:
    """For every mask of `sentence`, in order, its `top` words with their probabilities.

    Raises:
      ValueError: there is no mask, or the sentence is longer than the model's positions.
    """
    token_ids = mask_token_ids(trained, sentence)
    positions = np.flatnonzero(np.array(token_ids) == trained.tokenizer.mask_id)[None]
    ids = jnp.asarray(token_ids, jnp.int32)[None]
    output = trained.model(
        ids, jnp.zeros_like(ids), None, None, jnp.asarray(positions), jnp.zeros((1, 1), jnp.int32)
    )
    probabilities = jax.nn.softmax(output.token_logits[0], axis=-1)
    # A vocabulary may be smaller than the model's padded table; its surplus rows are no words.
    values, indices = jax.lax.top_k(probabilities[:, : trained.tokenizer.vocab_size], top)
    return [
        [
            (str(trained.tokenizer.id_to_token(int(i))), float(p))
            for i, p in zip(row, ps, strict=True)
        ]
        for row, ps in zip(np.asarray(indices), np.asarray(values), strict=True)
    ]


def mask_token_ids(trained: TrainedModel[PretrainingModel], sentence: str) -> list[int]:
    """`[CLS]`, the sentence's ids with `[MASK]` in its places, `[SEP]`."""
    tokenizer = trained.tokenizer
    parts = sentence.split(MASK)
    if len(parts) == 1:
        raise ValueError(f"no {MASK} in {sentence!r}: put one where a word is to be guessed")
    token_ids = [tokenizer.cls_id]
    for number, part in enumerate(tokenizer.encode_batch(parts)):
        token_ids += [tokenizer.mask_id] * (number > 0) + part
    token_ids.append(tokenizer.sep_id)
    limit = trained.config.encoder.max_positions
    if len(token_ids) > limit:
        raise ValueError(
            f"{sentence[:40]!r}... takes {len(token_ids)} positions, the model has {limit}: "
            "shorten it"
        )
    return token_ids
