"""Pairs of segments cut to a length, the longer one first."""

from __future__ import annotations

import logging
from collections.abc import Sequence

logger = logging.getLogger(__name__)


def cut_pair(
    first: Sequence[int], second: Sequence[int], budget: int
) -> tuple[Sequence[int], Sequence[int]]:
    """The beginnings of two segments that together have at most `budget` tokens.

    The longer one is cut until both are equally long, then both; of an odd budget the one that was
    longer (of two equal ones the second) keeps one more. The same tokens as the `longest_first`
    strategy of the tokenizers library keeps.
    """
    if len(first) + len(second) <= budget:
        return first, second
    kept = min(len(first), len(second), budget // 2)
    if len(first) > len(second):
        return first[: budget - kept], second[:kept]
    return first[:kept], second[: budget - kept]


def report_cut(num_cut: int, total: int, max_length: int, places: Sequence[str]) -> None:
    """Logs how many of the examples that stand at `places` ("file:line") were cut, if any."""
    if num_cut:
        source = places[0].partition("[")[0].rpartition(":")[0] or places[0]
        logger.info(
            "%s: %s of %s examples are cut to max_length=%d tokens",
            *(source, f"{num_cut:,}", f"{total:,}", max_length),
        )


def check_max_length(max_length: int, special_tokens: int) -> None:
    """ValueError if `max_length` leaves no room for a token of text beside the special tokens."""
    if max_length <= special_tokens:
        raise ValueError(
            f"max_length is {max_length}; expected at least {special_tokens + 1}: "
            f"{special_tokens} tokens are [CLS] and [SEP]"
        )
