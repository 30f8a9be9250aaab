"""Checks of values that several commands and configs take: seeds and names of labels."""

from __future__ import annotations

from collections.abc import Sequence

SEEDS = 1 << 32  # a JAX key takes 32 bits


def check_seed(seed: int, name: str = "seed") -> None:
    """Refuse a seed outside 0 to 2^32 - 1.

    Args:
      seed: as the user gave it.
      name: of the option or the config key that holds it.

    Raises:
      ValueError: it is outside; the message names it.
    """
    if not 0 <= seed < SEEDS:
        raise ValueError(f"{name}={seed}: expected 0 up to 2^32 - 1, the range of a JAX key")


def check_label_names(labels: Sequence[str], name: str = "labels") -> None:
    """Refuse names of labels that are empty or repeated, or would break a line of predictions.

    Args:
      labels: the names, in the order of the scores.
      name: of the option or the config key that holds them.

    Raises:
      ValueError: a name is empty or blank, there twice, or has a tab or a line end in it.
    """
    if isinstance(labels, str) or len(set(labels)) != len(labels):
        raise ValueError(f"{name} is {labels!r}; expected a tuple of different strings")
    if any(not label.strip() for label in labels):
        raise ValueError(f"{name} has an empty name in {tuple(labels)!r}. Name every label.")
    if broken := [label for label in labels if set(label) & set("\t\r\n")]:
        raise ValueError(
            f"{name} has {broken[0]!r}; expected no tab and no end of a line in it, which "
            "would break the lines of predictions"
        )
