"""What a normalizer, as tokenizer.json describes it, does to letters."""

from __future__ import annotations

from typing import Any

import tokenizers
from tokenizers import normalizers


def lowercases(normalizer: Any) -> bool:
    """Whether a normalizer, as tokenizer.json describes it, lowers the case."""
    if isinstance(normalizer, list):
        return any(map(lowercases, normalizer))
    if not isinstance(normalizer, dict):
        return False
    kind = normalizer.get("type")
    return (
        kind == "Lowercase"
        or (kind == "BertNormalizer" and normalizer["lowercase"])
        or lowercases(normalizer.get("normalizers"))
    )


def strips_accents(normalizer: Any) -> bool:
    """Whether a normalizer, as tokenizer.json describes it, takes accents off."""
    if isinstance(normalizer, list):
        return any(map(strips_accents, normalizer))
    if not isinstance(normalizer, dict):
        return False
    if normalizer.get("type") == "BertNormalizer":
        stripped = normalizer["strip_accents"]
        return bool(normalizer["lowercase"] if stripped is None else stripped)
    return normalizer.get("type") == "StripAccents" or strips_accents(normalizer.get("normalizers"))


def lowercasing(backend: Any) -> Any:
    """Return a copy of a `tokenizers.Tokenizer` whose normalizer lower-cases the text first."""
    copy = tokenizers.Tokenizer.from_str(backend.to_str())
    steps = [normalizers.Lowercase(), *([copy.normalizer] if copy.normalizer else [])]
    copy.normalizer = normalizers.Sequence(steps)
    return copy
