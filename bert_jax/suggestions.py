"""Nearest names, for every message that refuses a word."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(name: str, known: Iterable[str]) -> str:
    """Say what was probably meant, or everything there is.

    >>> nearest("pretain", ["prepare", "pretrain"])
    'nearest: pretrain, prepare'
    """
    names = list(known)
    close = difflib.get_close_matches(name, names, n=3, cutoff=0.6)
    return f"nearest: {', '.join(close)}" if close else f"there are: {', '.join(sorted(names))}"
