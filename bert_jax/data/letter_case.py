"""What a normalizer, as tokenizer.json describes it, does to letters."""

from __future__ import annotations

from typing import Any


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
    return normalizer.get("type") == "StripAccents" or strips_accents(normalizer.get("normalizers"))
