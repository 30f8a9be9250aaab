"""Describe why a document is left out of a corpus."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """A rule that a document fails.

    Attributes:
      rule: the name of the rule, such as "gopher.min_words".
      detail: the measured value and the limit, such as "17, at least 50".
    """

    rule: str
    detail: str


def below(rule: str, value: float, minimum: float | None) -> Finding | None:
    """Return a finding if a value is less than the minimum."""
    if minimum is None or value >= minimum:
        return None
    return Finding(rule, f"{_shown(value)}, at least {_shown(minimum)}")


def above(rule: str, value: float, maximum: float | None) -> Finding | None:
    """Return a finding if a value is more than the maximum."""
    if maximum is None or value <= maximum:
        return None
    return Finding(rule, f"{_shown(value)}, at most {_shown(maximum)}")


def _shown(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.3g}"
