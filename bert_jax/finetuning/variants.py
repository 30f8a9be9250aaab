"""Define a variant: the values of the config keys that a sweep varies."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# The limit leaves room for the hyperparameters in the name of a run's directory.
_MAX_NAME = 120
# The names of values that are not strings.
_NOT_TEXT = {"None", "True", "False"}


@dataclass(frozen=True)
class Variant:
    """The values of the config keys that a sweep varies; empty if no keys are varied.

    Attributes:
      settings: pairs of a dotted key and its value, sorted by key. Lists are stored as tuples.
    """

    settings: tuple[tuple[str, Any], ...] = ()

    @staticmethod
    def of(values: Mapping[str, Any]) -> Variant:
        """Return the variant with these values, keyed by dotted key."""
        return Variant(tuple((key, _frozen(values[key])) for key in sorted(values)))

    @property
    def values(self) -> dict[str, Any]:
        """The values, keyed by dotted key."""
        return dict(self.settings)

    @property
    def texts(self) -> dict[str, str]:
        """The values as text, keyed by dotted key."""
        return {key: _text(value) for key, value in self.settings}

    @property
    def name(self) -> str:
        """The variant's name in file names, unique among all variants with the same keys."""
        full = ",".join(f"{key}={text}" for key, text in self.texts.items())
        name = re.sub(r"[^\w.,=+-]", "-", full, flags=re.ASCII)[:_MAX_NAME]
        # Two variants can have the same text: a value may contain the start of a later setting, or
        # a string may look like a value of another type.
        ambiguous = any(full.count(f",{key}=") > 1 for key, _ in self.settings[1:])
        ambiguous |= any(value in _NOT_TEXT for _, value in self.settings if isinstance(value, str))
        if name == full and not ambiguous:
            return name
        return f"{name}-{hashlib.sha256(repr(self.settings).encode()).hexdigest()[:8]}"

    def __bool__(self) -> bool:
        """Return whether the sweep varies any key."""
        return bool(self.settings)

    def __str__(self) -> str:
        """Return a readable description of the variant."""
        return ", ".join(f"{key}={text}" for key, text in self.texts.items())

    def __lt__(self, other: Variant) -> bool:
        """Compare variants key by key, treating numbers as numbers and all other values as text."""
        return self._order < other._order

    @property
    def _order(self) -> list[tuple[str, bool, float, str]]:
        return [
            (
                key,
                not isinstance(x, int | float),
                x if isinstance(x, int | float) else 0.0,
                _text(x),
            )
            for key, x in self.settings
        ]


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list | tuple) else value


def _text(value: Any) -> str:
    """Return a value as text, with quotes around a string only if it is blank."""
    return value if isinstance(value, str) and value.strip() else repr(value)
